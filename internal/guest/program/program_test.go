package program

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"caisson.dev/caisson/api"
)

// Either there is a program and the digest is its own, or there is a hint.
func TestDigestIsThePrograms(t *testing.T) {
	b, digest, err := Binary()
	if err != nil {
		if api.Hint(err) == "" {
			t.Errorf("%v, without a hint", err)
		}
		return
	}
	if sum := sha256.Sum256(b); hex.EncodeToString(sum[:]) != digest {
		t.Errorf("digest %s, the program has %x", digest, sum)
	}
}

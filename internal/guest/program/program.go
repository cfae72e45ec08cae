// Package program holds the guest program, built for this architecture and
// embedded by the release build. A plain `go build` embeds a directory that
// may hold only a placeholder, so that the module builds everywhere; Binary
// then says what to do.
package program

import (
	"errors"
	"io/fs"
	"strings"

	"caisson.dev/caisson/api"
)

// Binary returns the guest program, a static executable, and its SHA-256 in
// hexadecimal. The build has written that down, because reading 9 MB to compute
// it took a third of the start of a run.
func Binary() (program []byte, digest string, err error) {
	program, sum, err := read()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, "", &api.Error{
			Code:    "no_guest_program",
			Message: "this caisson was built without its guest program",
			Hint:    "build it with `make build`, which embeds the program",
			Err:     err,
		}
	}
	digest = strings.TrimSpace(string(sum))
	if err == nil && len(digest) != 64 {
		err = errors.New("the guest program was embedded without its digest")
	}
	return program, digest, err
}

package image

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"hash"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// maxWindow is the most memory that one zstd frame may ask for.
const maxWindow = 128 << 20

// applyLayer decompresses one layer of size bytes and applies it, then checks
// that it was what its digests say. An image of a failed layer is thrown away
// by the caller, so applying before the end is known is no risk.
func applyLayer(u *unpacker, r io.Reader, size int64, digest string, diff v1.Hash, progress func(int64)) error {
	packed := &hashingReader{r: r, h: sha256.New(), progress: progress}
	plain, err := decompress(packed)
	if err != nil {
		return err
	}
	defer plain.Close()
	content := &hashingReader{r: plain, h: sha256.New(), progress: func(int64) {}}
	if err := u.apply(content, true); err != nil {
		return err
	}
	// What is behind the end of the archive is part of both digests.
	rest := u.t.lim.MaxBytes - min(content.n, u.t.lim.MaxBytes)
	if _, err := io.Copy(io.Discard, &boundedReader{r: onlyReader{content}, left: rest + 1}); err != nil {
		return tarError(err)
	}
	if _, err := io.Copy(io.Discard, onlyReader{packed}); err != nil {
		return tarError(err)
	}
	switch {
	case packed.n != size:
		return failf(failDigest, "a layer has %d bytes instead of %d", packed.n, size)
	case digest != "" && packed.sum() != digest:
		return failf(failDigest, "a layer is not what sha256:%s stands for", digest)
	case diff.Algorithm != "sha256" || content.sum() != diff.Hex:
		return failf(failDigest, "the contents of a layer are not what %.80s stands for", diff)
	}
	return nil
}

// decompress looks at the first bytes, because media types are often wrong.
func decompress(r io.Reader) (io.ReadCloser, error) {
	br := bufio.NewReaderSize(r, 256<<10)
	head, err := br.Peek(4)
	if err != nil && err != io.EOF {
		return nil, err
	}
	switch {
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, failf(failArchive, "cannot read gzip: %w", err)
		}
		return z, nil
	case bytes.Equal(head, []byte{0x28, 0xb5, 0x2f, 0xfd}):
		z, err := zstd.NewReader(br, zstd.WithDecoderMaxWindow(maxWindow), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, failf(failArchive, "cannot read zstd: %w", err)
		}
		return z.IOReadCloser(), nil
	}
	return io.NopCloser(br), nil
}

// hashingReader computes the digest and length of what passes through.
type hashingReader struct {
	r        io.Reader
	h        hash.Hash
	n        int64
	progress func(int64)
}

func (h *hashingReader) Read(p []byte) (int, error) {
	n, err := h.r.Read(p)
	h.h.Write(p[:n])
	h.n += int64(n)
	if n > 0 {
		h.progress(h.n)
	}
	return n, err
}

func (h *hashingReader) sum() string { return hex.EncodeToString(h.h.Sum(nil)) }

// onlyReader hides methods that would make io.Copy use system calls which the
// jail does not have.
type onlyReader struct{ io.Reader }

package image

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// The unpack child asks for the pieces of an OCI image one at a time over a
// pair of pipes. At the other end is the parent (a layout directory) or the
// fetch child (a registry); neither is believed: every piece but the root is
// checked against its digest by the unpack child, and the root against the
// digest that the user wrote, if any.
type blobRequest struct {
	Kind   uint8
	_      [7]byte
	Size   int64    // most bytes that the asker takes
	Digest [32]byte // SHA-256
}

const (
	blobRoot     uint8 = iota + 1 // index.json of a layout, the named manifest of a registry
	blobManifest                  // a manifest or index, by digest
	blobBlob                      // a configuration or a layer, by digest
)

// A reply is frames of a length (4 bytes) and that much data. Length 0 ends
// it; frameFailed ends it too, and the sender's own status says why.
const (
	frameFailed = 1<<32 - 1
	maxFrame    = 256 << 10
)

// maxManifest bounds each JSON document of an image.
const maxManifest = 4 << 20

// blobSource opens pieces. open must not return more than req.Size bytes.
type blobSource interface {
	open(ctx context.Context, req blobRequest) (io.ReadCloser, error)
}

// serveBlobs answers requests until the asker hangs up, or one fails.
func serveBlobs(ctx context.Context, src blobSource, requests io.Reader, replies io.Writer) error {
	buf := make([]byte, 4+maxFrame)
	for {
		var req blobRequest
		if err := binary.Read(requests, binary.LittleEndian, &req); err == io.EOF {
			return nil
		} else if err != nil {
			return fmt.Errorf("cannot read blob request: %w", err)
		}
		err := serveBlob(ctx, src, req, replies, buf)
		length := uint32(0)
		if err != nil {
			length = frameFailed
		}
		if _, werr := replies.Write(binary.LittleEndian.AppendUint32(nil, length)); err == nil && werr != nil {
			return nil // the asker is gone, and says why itself
		}
		if err != nil {
			return err
		}
	}
}

var errAskerGone = errors.New("the asker of blobs is gone")

func serveBlob(ctx context.Context, src blobSource, req blobRequest, replies io.Writer, buf []byte) error {
	if req.Kind < blobRoot || req.Kind > blobBlob || req.Size < 0 {
		return fmt.Errorf("cannot serve blob: malformed request")
	}
	r, err := src.open(ctx, req)
	if err != nil {
		return err
	}
	defer r.Close()
	for left := req.Size; ; {
		n, err := r.Read(buf[4:])
		if left -= int64(n); left < 0 {
			return failf(failDigest, "blob is longer than its manifest says")
		}
		if n > 0 {
			binary.LittleEndian.PutUint32(buf, uint32(n))
			if _, err := replies.Write(buf[:4+n]); err != nil {
				return errAskerGone
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// blobClient is the asker's side.
type blobClient struct {
	requests io.Writer
	replies  io.Reader
}

func (c *blobClient) open(_ context.Context, req blobRequest) (io.ReadCloser, error) {
	if err := binary.Write(c.requests, binary.LittleEndian, req); err != nil {
		return nil, failf(failSource, "cannot ask for a blob: %w", err)
	}
	return &blobReader{c: c, left: req.Size}, nil
}

// blobReader reads one reply. The next request may follow only after io.EOF.
type blobReader struct {
	c     *blobClient
	frame uint32
	left  int64
	err   error
}

func (b *blobReader) Read(p []byte) (int, error) {
	if b.err == nil && b.frame == 0 {
		b.err = b.next()
	}
	if b.err != nil {
		return 0, b.err
	}
	n, err := b.c.replies.Read(p[:min(len(p), int(b.frame))])
	b.frame -= uint32(n)
	if err != nil {
		b.err = failf(failSource, "the blob was cut off")
	}
	return n, nil
}

func (b *blobReader) next() error {
	var h [4]byte
	if _, err := io.ReadFull(b.c.replies, h[:]); err != nil {
		return failf(failSource, "the blob was cut off")
	}
	switch b.frame = binary.LittleEndian.Uint32(h[:]); {
	case b.frame == 0:
		return io.EOF
	case b.frame > maxFrame:
		return failf(failSource, "the source of the image failed")
	}
	if b.left -= int64(b.frame); b.left < 0 {
		return failf(failDigest, "blob is longer than its manifest says")
	}
	return nil
}

func (b *blobReader) Close() error { return nil }

// layoutSource serves an OCI layout directory from the parent. It makes file
// names from digests only.
type layoutSource struct{ root *os.Root }

func (s layoutSource) open(_ context.Context, req blobRequest) (io.ReadCloser, error) {
	name := "index.json"
	if req.Kind != blobRoot {
		name = "blobs/sha256/" + hex.EncodeToString(req.Digest[:])
	}
	f, err := s.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0) // it may be a FIFO
	if errors.Is(err, os.ErrNotExist) {
		return nil, failf(failNotFound, "the layout has no %s", name)
	}
	if err != nil {
		return nil, err
	}
	if st, err := f.Stat(); err != nil || !st.Mode().IsRegular() {
		f.Close()
		return nil, failf(failFormat, "%s of the layout is no regular file", name)
	}
	return f, nil
}

// digestBytes decodes a SHA-256 digest; other algorithms are not read.
func digestBytes(h v1.Hash) (sum [32]byte, err error) {
	b, err := hex.DecodeString(h.Hex)
	if h.Algorithm != "sha256" || err != nil || len(b) != len(sum) {
		return sum, failf(failFormat, "digest %.80q is not SHA-256", h.String())
	}
	return [32]byte(b), nil
}

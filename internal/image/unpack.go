package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
)

// unpacker applies layers to a tree. File data goes to the spool, an unlinked
// file that the parent opened.
type unpacker struct {
	t        *tree
	spool    *os.File
	off      int64 // bytes of the spool in use, holes included
	progress func(done int64)
	buf      []byte
}

func newUnpacker(lim Limits, spool *os.File) *unpacker {
	return &unpacker{t: newTree(lim), spool: spool, progress: func(int64) {}, buf: make([]byte, 256<<10)}
}

// apply reads one tar stream to its end. Whiteouts mean something only in the
// layers of an OCI image; elsewhere they are names like any other.
func (u *unpacker) apply(r io.Reader, layered bool) error {
	// A header that says nothing costs 512 bytes; the bound is on a stream
	// that goes on without ever adding an entry.
	tr := tar.NewReader(&boundedReader{r: r, left: u.t.lim.MaxBytes + 4096*u.t.lim.MaxEntries})
	for {
		h, err := tr.Next()
		if err == io.EOF {
			u.t.layer++
			return nil
		}
		if err != nil {
			return tarError(err)
		}
		if err := u.one(h, tr, layered); err != nil {
			return err
		}
	}
}

// tarError keeps our own refusals and the source's, and calls the rest a bad
// archive.
func tarError(err error) error {
	if failureOf(err) != failInternal {
		return err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return failf(failCutOff, "the archive is cut off")
	}
	return failf(failArchive, "not a tar archive: %w", err)
}

func (u *unpacker) one(h *tar.Header, r io.Reader, layered bool) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return u.t.count(0)
	}
	parts, err := splitName(h.Name)
	if err != nil {
		return err
	}
	if len(parts) == 0 {
		return u.rootEntry(h)
	}
	base := parts[len(parts)-1]
	if hidden, ok := strings.CutPrefix(base, ".wh."); ok && layered {
		return u.whiteout(parts[:len(parts)-1], hidden)
	}
	n, err := u.node(h)
	if n == nil || err != nil {
		return err
	}
	dir, err := u.t.dir(parts[:len(parts)-1], true)
	if err != nil {
		return err
	}
	if n.isRegular() && h.Typeflag != tar.TypeLink {
		if err := u.data(n, h.Size, r); err != nil {
			return err
		}
	}
	return u.t.put(dir, base, n)
}

// rootEntry takes mode and owner of "./".
func (u *unpacker) rootEntry(h *tar.Header) error {
	if h.Typeflag != tar.TypeDir {
		return failf(failArchive, "%.80q stands for the root and is no directory", h.Name)
	}
	n, err := u.node(h)
	if err != nil {
		return err
	}
	n.children = u.t.root.children
	*u.t.root = *n
	return u.t.count(0)
}

// whiteout applies .wh.NAME and .wh..wh..opq. Other aufs records (.wh..wh.*)
// mean nothing in a layer.
func (u *unpacker) whiteout(parts []string, hidden string) error {
	if err := u.t.count(0); err != nil {
		return err
	}
	if hidden == "" || hidden == "." || hidden == ".." {
		return failf(failArchive, "whiteout of %q", hidden)
	}
	dir, err := u.t.dir(parts, false)
	if dir == nil || err != nil {
		return err
	}
	switch {
	case hidden == ".wh..opq":
		for name := range dir.children {
			u.t.hide(dir, name)
		}
	case !strings.HasPrefix(hidden, ".wh."):
		u.t.hide(dir, hidden)
	}
	return nil
}

// node makes the inode that h describes, nil for one that is left out.
// Extended attributes are all left out: the sandbox kernel reads none from
// EROFS, file capabilities included. Setuid bits stay; they mean something
// only inside.
func (u *unpacker) node(h *tar.Header) (*node, error) {
	n := &node{
		mode: uint16(h.Mode & 0o7777), uid: clampID(h.Uid), gid: clampID(h.Gid),
		mtime: max(0, h.ModTime.Unix()), nsec: uint32(h.ModTime.Nanosecond()),
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse: // the reader turns the old TypeRegA into TypeReg
		n.mode |= syscall.S_IFREG
	case tar.TypeDir:
		n.mode |= syscall.S_IFDIR
		n.children = map[string]entry{}
	case tar.TypeSymlink:
		n.mode |= syscall.S_IFLNK
		n.target = h.Linkname
		if h.Linkname == "" || len(h.Linkname) > maxTarget || strings.IndexByte(h.Linkname, 0) >= 0 {
			return nil, failf(failArchive, "symlink %.80q has a target of %d bytes or a NUL in it", h.Name, len(h.Linkname))
		}
	case tar.TypeLink:
		return u.hardLink(h)
	default:
		u.t.dropped++
		return nil, u.t.count(0)
	}
	return n, nil
}

// clampID keeps ids that EROFS and the guest can hold; others are root's.
func clampID(id int) uint32 {
	if id < 0 || int64(id) >= 1<<32-1 {
		return 0
	}
	return uint32(id)
}

func (u *unpacker) hardLink(h *tar.Header) (*node, error) {
	parts, err := splitName(h.Linkname)
	if err != nil {
		return nil, err
	}
	var target *node
	if len(parts) > 0 {
		dir, err := u.t.dir(parts[:len(parts)-1], false)
		if err != nil {
			return nil, err
		}
		if dir != nil {
			target = dir.children[parts[len(parts)-1]].n
		}
	}
	if target == nil || target.isDir() {
		return nil, failf(failArchive, "hard link %.80q points to %.80q, which is no file in the archive", h.Name, h.Linkname)
	}
	return target, nil
}

// data copies size bytes to the spool, leaving holes where they are zero.
func (u *unpacker) data(n *node, size int64, r io.Reader) error {
	if size < 0 || size > u.t.lim.MaxBytes-u.off {
		return failf(failLimit, "more than %d bytes of file data", u.t.lim.MaxBytes)
	}
	n.off, n.size = u.off, size
	for left := size; left > 0; {
		chunk := u.buf[:min(left, int64(len(u.buf)))]
		if _, err := io.ReadFull(r, chunk); err != nil {
			return tarError(err)
		}
		if err := writeSparse(u.spool, chunk, u.off); err != nil {
			return err
		}
		u.off += int64(len(chunk))
		left -= int64(len(chunk))
		u.progress(u.off)
	}
	return nil
}

var zeros [64 << 10]byte

// writeSparse writes what is not zero. The file must have a hole there, and be
// extended by the caller if it has to end in one.
func writeSparse(w io.WriterAt, p []byte, off int64) error {
	for len(p) > 0 {
		n := min(len(p), len(zeros))
		if !bytes.Equal(p[:n], zeros[:n]) {
			if _, err := w.WriteAt(p[:n], off); err != nil {
				return err
			}
		}
		p, off = p[n:], off+int64(n)
	}
	return nil
}

// boundedReader fails when more comes than was allowed; io.LimitReader would
// call that the end.
type boundedReader struct {
	r    io.Reader
	left int64
	over error // what to say; nil for errTooLong
}

var errTooLong = failf(failLimit, "the archive is longer than its limits allow")

func (b *boundedReader) Read(p []byte) (int, error) {
	if b.left <= 0 {
		if b.over == nil {
			return 0, errTooLong
		}
		return 0, b.over
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.left)])
	b.left -= int64(n)
	return n, err
}

// write completes the tree and writes it as an image.
func (u *unpacker) write(out *os.File, progress func(done, total int64)) (int64, error) {
	if err := u.t.finish(); err != nil {
		return 0, err
	}
	// A file that ends in a hole needs the spool to reach that far.
	if err := u.spool.Truncate(u.off); err != nil {
		return 0, fmt.Errorf("cannot size spool: %w", err)
	}
	return writeEROFS(out, u.t, u.spool, progress)
}

package image

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"syscall"
	"time"
)

// dirWalk visits a directory tree in the order of names, through descriptors
// only: a name that is swapped for a symlink while we walk leads nowhere. It
// stays on one file system, so that a mounted /proc or a network share inside
// is an empty directory of the image.
type dirWalk struct {
	ctx   context.Context
	dev   uint64
	visit func(parent *os.Root, base, name string, st *syscall.Stat_t) error
	depth int
}

func walkDir(ctx context.Context, root *os.Root, visit func(parent *os.Root, base, name string, st *syscall.Stat_t) error) error {
	info, err := root.Lstat(".")
	if err != nil {
		return err
	}
	st := info.Sys().(*syscall.Stat_t)
	w := &dirWalk{ctx: ctx, dev: uint64(st.Dev), visit: visit}
	if err := visit(root, ".", ".", st); err != nil {
		return err
	}
	return w.walk(root, "")
}

func (w *dirWalk) walk(dir *os.Root, prefix string) error {
	if w.depth++; w.depth > maxDepth+1 {
		return failf(failLimit, "%q is over %d directories deep", prefix, maxDepth)
	}
	defer func() { w.depth-- }()
	names, err := readNames(dir)
	if err != nil {
		return err
	}
	for _, base := range names {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if err := w.one(dir, base, path.Join(prefix, base)); err != nil {
			return err
		}
	}
	return nil
}

func (w *dirWalk) one(dir *os.Root, base, name string) error {
	info, err := dir.Lstat(base)
	if err != nil {
		return failf(failChanged, "cannot read %q: %w", name, err)
	}
	st := info.Sys().(*syscall.Stat_t)
	if err := w.visit(dir, base, name, st); err != nil {
		return err
	}
	if !info.IsDir() || uint64(st.Dev) != w.dev {
		return nil
	}
	sub, err := dir.OpenRoot(base)
	if err != nil {
		return fmt.Errorf("cannot read %q: %w", name, err)
	}
	defer sub.Close()
	if again, err := sub.Lstat("."); err != nil || !os.SameFile(info, again) {
		return failf(failChanged, "%q changed while it was read", name)
	}
	return w.walk(sub, name)
}

func readNames(dir *os.Root) ([]string, error) {
	f, err := dir.Open(".")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	slices.Sort(names)
	return names, err
}

// fingerprintDir tells whether a directory is as it was, without reading its
// files. It also adds up their sizes, holes not counted.
func fingerprintDir(ctx context.Context, root *os.Root) (sum string, bytes int64, err error) {
	h := sha256.New()
	err = walkDir(ctx, root, func(_ *os.Root, _, name string, st *syscall.Stat_t) error {
		fmt.Fprintf(h, "%q %d %d %d %d %o %d %d\n", name, st.Size, st.Mtim.Nano(), st.Ctim.Nano(), st.Ino, st.Mode, st.Uid, st.Gid)
		bytes += st.Blocks * 512
		return nil
	})
	return hex.EncodeToString(h.Sum(nil)), bytes, err
}

// tarDir writes a directory as a tar stream for the unpack child. What it
// cannot hold goes as a FIFO, which the child leaves out and counts.
func tarDir(ctx context.Context, root *os.Root, out io.Writer) error {
	t := &dirTar{w: tar.NewWriter(out), seen: map[[2]uint64]string{}, buf: make([]byte, 256<<10)}
	if err := walkDir(ctx, root, t.visit); err != nil {
		return err
	}
	return t.w.Close()
}

type dirTar struct {
	w    *tar.Writer
	seen map[[2]uint64]string // files with several names
	buf  []byte
}

func (t *dirTar) visit(dir *os.Root, base, name string, st *syscall.Stat_t) error {
	h := &tar.Header{
		Name: name, Mode: int64(st.Mode & 0o7777), Uid: int(st.Uid), Gid: int(st.Gid),
		ModTime: time.Unix(st.Mtim.Unix()), Typeflag: tar.TypeFifo, Format: tar.FormatPAX,
	}
	key := [2]uint64{uint64(st.Dev), st.Ino}
	switch st.Mode & syscall.S_IFMT {
	case syscall.S_IFDIR:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case syscall.S_IFLNK:
		target, err := dir.Readlink(base)
		if err != nil {
			return failf(failChanged, "cannot read link %q: %w", name, err)
		}
		h.Typeflag, h.Linkname = tar.TypeSymlink, target
	case syscall.S_IFREG:
		if first := t.seen[key]; first != "" {
			h.Typeflag, h.Linkname = tar.TypeLink, first
			break
		}
		if st.Nlink > 1 {
			t.seen[key] = name
		}
		h.Typeflag, h.Size = tar.TypeReg, st.Size
		return t.file(dir, base, h, st)
	}
	return t.w.WriteHeader(h)
}

func (t *dirTar) file(dir *os.Root, base string, h *tar.Header, st *syscall.Stat_t) error {
	// Not blocking: the file may have become a FIFO since it was looked at.
	f, err := dir.OpenFile(base, os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fmt.Errorf("cannot read %q: %w", h.Name, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("cannot read %q: %w", h.Name, err)
	}
	now := info.Sys().(*syscall.Stat_t)
	if now.Ino != st.Ino || now.Dev != st.Dev || now.Mode != st.Mode || now.Size != st.Size {
		return failf(failChanged, "%q changed while it was read", h.Name)
	}
	if err := t.w.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.CopyBuffer(struct{ io.Writer }{t.w}, onlyReader{io.LimitReader(f, h.Size+1)}, t.buf)
	if errors.Is(err, tar.ErrWriteTooLong) || err == nil && n != h.Size {
		return failf(failChanged, "%q changed while it was read", h.Name)
	}
	return err
}

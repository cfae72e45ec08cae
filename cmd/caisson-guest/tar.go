package main

import (
	"archive/tar"
	"errors"
	"io"
	"net/http"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"
)

// tarDepth bounds the directories that are open at once.
const tarDepth = 256

// tar streams a file or a directory: regular files, directories and links as
// such. Nothing below the path is followed; the receiver checks names anyway.
func (b *box) tar(w http.ResponseWriter, r *http.Request) {
	a, name, err := b.target(r)
	if err != nil {
		fileError(w, name, err)
		return
	}
	top := 0
	err = b.files.as(a, func() (err error) {
		dir, err := unix.Open(path.Dir(name), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		if err != nil {
			return &os.PathError{Op: "open", Path: name, Err: err}
		}
		var st unix.Stat_t
		if err = unix.Fstatat(dir, path.Base(name), &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			unix.Close(dir)
			return &os.PathError{Op: "open", Path: name, Err: err}
		}
		top = dir
		return nil
	})
	if err != nil {
		fileError(w, name, err)
		return
	}
	defer unix.Close(top)
	w.Header().Set("Content-Type", "application/x-tar")
	p := packer{files: b.files, user: a, out: tar.NewWriter(w)}
	err = p.add(top, path.Base(name), path.Base(name), 0)
	if err == nil && !p.begun {
		err = refuse("path '%s' is not a file or a directory", name)
	}
	if err != nil && !p.begun {
		fileError(w, name, err)
		return
	}
	if err := errors.Join(err, p.out.Close()); err != nil {
		panic(http.ErrAbortHandler) // a broken archive must not look whole
	}
}

// packer walks by descriptors, so that nobody can put a link into the path
// behind it.
type packer struct {
	files *pool
	user  account
	out   *tar.Writer
	begun bool // something was sent: an error can no longer be answered
}

// add writes what dir holds under base; name is its name in the archive.
func (p *packer) add(dir int, base, name string, depth int) error {
	var f *os.File
	var h *tar.Header
	err := p.files.as(p.user, func() (err error) {
		f, h, err = openEntry(dir, base)
		return err
	})
	if errors.Is(err, os.ErrNotExist) && depth > 0 {
		return nil // gone meanwhile
	}
	if err != nil || h == nil {
		return err
	}
	if f != nil {
		defer f.Close()
	}
	h.Name = name
	if h.Typeflag == tar.TypeDir {
		h.Name += "/"
	}
	p.begun = true
	if err := p.out.WriteHeader(h); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		_, err = io.CopyN(p.out, f, h.Size) // a file that shrinks breaks the archive
		return err
	case tar.TypeDir:
		return p.addDir(f, name, depth+1)
	}
	return nil
}

func (p *packer) addDir(f *os.File, name string, depth int) error {
	if depth > tarDepth {
		return errors.New("directories are nested too deeply")
	}
	var list []string
	if err := p.files.as(p.user, func() (err error) {
		list, err = f.Readdirnames(-1)
		return err
	}); err != nil {
		return err
	}
	slices.Sort(list)
	for _, base := range list {
		if err := p.add(int(f.Fd()), base, path.Join(name, base), depth); err != nil {
			return err
		}
	}
	return nil
}

// openEntry opens one directory entry. Header nil means that it is of a kind
// that is left out.
func openEntry(dir int, base string) (*os.File, *tar.Header, error) {
	var st unix.Stat_t
	if err := unix.Fstatat(dir, base, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return nil, nil, &os.PathError{Op: "stat", Path: base, Err: err}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		link := make([]byte, maxPath)
		n, err := unix.Readlinkat(dir, base, link)
		return nil, &tar.Header{Typeflag: tar.TypeSymlink, Linkname: string(link[:max(n, 0)]), Mode: 0o777}, err
	}
	if k := st.Mode & unix.S_IFMT; k != unix.S_IFREG && k != unix.S_IFDIR {
		return nil, nil, nil
	}
	fd, err := unix.Openat(dir, base, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, nil, &os.PathError{Op: "open", Path: base, Err: err}
	}
	f := os.NewFile(uintptr(fd), base)
	info, err := f.Stat() // of what was opened: it may be another than before
	if err != nil {
		f.Close()
		return nil, nil, err
	}
	h := &tar.Header{Typeflag: tar.TypeReg, Mode: int64(info.Mode().Perm()), ModTime: info.ModTime()}
	switch {
	case info.IsDir():
		h.Typeflag = tar.TypeDir
	case info.Mode().IsRegular():
		h.Size = info.Size()
	default:
		f.Close()
		return nil, nil, nil
	}
	return f, h, nil
}

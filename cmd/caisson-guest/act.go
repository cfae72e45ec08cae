package main

import (
	"errors"
	"os"
	"path"

	"golang.org/x/sys/unix"
)

// act runs a file operation as the user that a request names. What that user
// may not do is done as root instead, as E2B's clients expect ("files.write"
// to a directory of the image works), but only where no symlink stands in the
// path: otherwise an unprivileged process could plant one and have root follow
// it. Whoever may make the request may also name root.
//
// f makes what is new belong to the user, see makeDirs and own.
func (b *box) act(a account, name string, f func() error) error {
	err := b.files.as(a, f)
	if a.uid == 0 || !errors.Is(err, os.ErrPermission) {
		return err
	}
	return b.files.as(asRoot, func() error {
		if hasLinks(name) {
			return err
		}
		return f()
	})
}

// hasLinks reports whether a symlink stands in the part of name that exists.
// A user can put one there right after; what that user then gains is root in
// the sandbox, which no isolation rests on.
func hasLinks(name string) bool {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
	for {
		fd, err := unix.Openat2(unix.AT_FDCWD, name, &how)
		if err == nil {
			unix.Close(fd)
			return false
		}
		if err != unix.ENOENT || name == "/" {
			return true
		}
		name = path.Dir(name)
	}
}

// makeDirs is os.MkdirAll whose new directories belong to the user.
func makeDirs(a account, name string) error {
	if st, err := os.Stat(name); err == nil && st.IsDir() {
		return nil
	}
	if parent := path.Dir(name); parent != name {
		if err := makeDirs(a, parent); err != nil {
			return err
		}
	}
	err := os.Mkdir(name, 0o755)
	if errors.Is(err, os.ErrExist) {
		if st, serr := os.Stat(name); serr == nil && st.IsDir() {
			return nil // somebody was faster
		}
	}
	if err != nil {
		return err
	}
	return os.Lchown(name, int(a.uid), int(a.gid))
}

// own gives a file to the user. A user who writes to a file of another, as its
// mode allows, cannot and need not.
func own(a account, f *os.File) error {
	if unix.Geteuid() != 0 {
		return nil
	}
	return f.Chown(int(a.uid), int(a.gid))
}

package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// rootDir resolves paths inside a directory as if it were "/": no symlink of
// the image, absolute or with "..", leads out of it. It is used while our own
// threads still live in another root.
type rootDir struct{ fd int }

func openRoot(name string) (*rootDir, error) {
	fd, err := unix.Open(name, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open root %q: %w", name, err)
	}
	return &rootDir{fd}, nil
}

func (r *rootDir) Close() error { return unix.Close(r.fd) }

func (r *rootDir) open(name string, flags int, mode uint32) (int, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_CLOEXEC),
		Mode:    uint64(mode),
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
	}
	for {
		fd, err := unix.Openat2(r.fd, name, &how)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil {
			return -1, &os.PathError{Op: "open", Path: name, Err: err}
		}
		return fd, nil
	}
}

// mkdirAll makes the missing directories of a path, following symlinks inside
// the root only.
func (r *rootDir) mkdirAll(name string, mode uint32) error {
	done := "/"
	for _, part := range strings.Split(strings.Trim(path.Clean(name), "/"), "/") {
		next := path.Join(done, part)
		if err := r.mkdir(done, part, mode); err != nil && !errors.Is(err, unix.EEXIST) {
			return &os.PathError{Op: "mkdir", Path: next, Err: err}
		}
		done = next
	}
	fd, err := r.open(done, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	return unix.Close(fd)
}

func (r *rootDir) mkdir(parent, name string, mode uint32) error {
	fd, err := r.open(parent, unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if name == "" {
		return nil
	}
	return unix.Mkdirat(fd, name, mode)
}

// ensureDir makes name, one component below the root, a real directory: it is
// about to be a mount point or to hold our files, so a link there is replaced.
func (r *rootDir) ensureDir(name string) error {
	var st unix.Stat_t
	err := unix.Fstatat(r.fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFDIR {
		return nil
	}
	if err == nil {
		if err := unix.Unlinkat(r.fd, name, 0); err != nil {
			return fmt.Errorf("cannot replace %q: %w", name, err)
		}
	}
	if err := unix.Mkdirat(r.fd, name, 0o755); err != nil {
		return fmt.Errorf("cannot make %q: %w", name, err)
	}
	return nil
}

// mountPoint makes target a directory or an empty file, unless it exists, and
// returns a descriptor of it. The parent exists.
func (r *rootDir) mountPoint(target string, file bool) (int, error) {
	parent, err := r.open(path.Dir(target), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return -1, err
	}
	defer unix.Close(parent)
	if file {
		fd, ferr := unix.Openat(parent, path.Base(target), unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
		if err = ferr; err == nil {
			unix.Close(fd)
		}
	} else {
		err = unix.Mkdirat(parent, path.Base(target), 0o755)
	}
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return -1, &os.PathError{Op: "create", Path: target, Err: err}
	}
	flags := unix.O_PATH
	if !file {
		flags |= unix.O_DIRECTORY
	}
	return r.open(target, flags, 0)
}

// replaceFile puts a new regular file in the place of whatever name was. Only
// the parent is followed.
func (r *rootDir) replaceFile(name string, data []byte) error {
	parent, err := r.open(path.Dir(name), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer unix.Close(parent)
	base := path.Base(name)
	if err := unix.Unlinkat(parent, base, 0); err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("cannot replace %q: %w", name, err)
	}
	fd, err := unix.Openat(parent, base, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return fmt.Errorf("cannot write %q: %w", name, err)
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// appendFile adds to a file that keeps its owner and mode.
func (r *rootDir) appendFile(name, line string) error {
	fd, err := r.open(name, unix.O_WRONLY|unix.O_APPEND|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), name)
	_, err = f.WriteString(line)
	return errors.Join(err, f.Close())
}

// maxTable bounds /etc/passwd and /etc/group, which an image or guest root
// may have made as large as the disk.
const maxTable = 1 << 20

// readFile returns a small regular file, or nothing. A FIFO cannot make it
// wait.
func (r *rootDir) readFile(name string) []byte {
	fd, err := r.open(name, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	return readRegular(f)
}

func readRegular(f *os.File) []byte {
	st, err := f.Stat()
	if err != nil || !st.Mode().IsRegular() || st.Size() > maxTable {
		return nil
	}
	b, err := io.ReadAll(io.LimitReader(f, maxTable))
	if err != nil {
		return nil
	}
	return b
}

func (r *rootDir) exists(name string) bool {
	fd, err := r.open(name, unix.O_PATH, 0)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
}

// makeOwned makes a directory with an owner and a mode. One that exists keeps
// both, unless force says that they are needed.
func makeOwned(r *rootDir, name string, uid, gid, mode uint32, force bool) error {
	if r.exists(name) && !force {
		return nil
	}
	if err := r.mkdirAll(name, 0o755); err != nil {
		return err
	}
	fd, err := r.open(name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.Fchown(fd, int(uid), int(gid)); err != nil {
		return fmt.Errorf("cannot give %q to user %d: %w", name, uid, err)
	}
	if err := unix.Fchmod(fd, mode); err != nil {
		return fmt.Errorf("cannot set the mode of %q: %w", name, err)
	}
	return nil
}

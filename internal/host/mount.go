package host

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// BindOptions of a bind mount. Setuid and devices are off whatever they say.
type BindOptions struct {
	ReadOnly  bool
	NoExec    bool
	Recursive bool // mounts below source come along
	IDMap     int  // descriptor of a user namespace (NewIDMap); 0 for none
}

// BindMount mounts the file or directory source at target, which exists. The
// last component of neither may be a symlink: source is often a directory that
// somebody else can write to. It belongs into a short-lived child with a mount
// namespace of its own.
func BindMount(source, target string, o BindOptions) error {
	src, err := OpenPath(source)
	if err != nil {
		return fmt.Errorf("cannot mount %q: %w", source, err)
	}
	defer src.Close()
	return BindFile(src, target, o)
}

// OpenPath opens path, for its place only, and follows no symlink on the way:
// any directory above it may be one that a sandbox can write to. What was
// decided about a path is then true of what it opens.
func OpenPath(path string) (*os.File, error) {
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS}
	for {
		fd, err := unix.Openat2(unix.AT_FDCWD, path, &how)
		if err == unix.EINTR || err == unix.EAGAIN {
			continue
		}
		if err != nil {
			if err == unix.ELOOP {
				err = errSymlink
			}
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
		return os.NewFile(uintptr(fd), path), nil
	}
}

var errSymlink = errors.New("a part of it is a symlink")

// BindFile is BindMount of what src has open.
func BindFile(src *os.File, target string, o BindOptions) error {
	source := src.Name()
	fd, err := cloneMount(src, o)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	at, err := unix.Open(target, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("cannot mount at %q: %w", target, err)
	}
	defer unix.Close(at)
	err = unix.MoveMount(fd, "", at, "", unix.MOVE_MOUNT_F_EMPTY_PATH|unix.MOVE_MOUNT_T_EMPTY_PATH)
	if err != nil {
		return fmt.Errorf("cannot mount %q at %q: %w", source, target, err)
	}
	return nil
}

// CloneMount returns a detached mount of source with the options set, for
// move_mount. Nobody sees it before it has them.
func CloneMount(source string, o BindOptions) (int, error) {
	src, err := OpenPath(source)
	if err != nil {
		return -1, fmt.Errorf("cannot mount %q: %w", source, err)
	}
	defer src.Close()
	return cloneMount(src, o)
}

func cloneMount(src *os.File, o BindOptions) (int, error) {
	source := src.Name()
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH)
	if o.Recursive {
		flags |= unix.AT_RECURSIVE
	}
	fd, err := unix.OpenTree(int(src.Fd()), "", flags)
	if err != nil {
		return -1, fmt.Errorf("cannot clone mount of %q: %w", source, supported(err))
	}
	if err := setMountAttr(fd, o); err != nil {
		unix.Close(fd)
		return -1, fmt.Errorf("cannot set mount options of %q: %w", source, supported(err))
	}
	return fd, nil
}

func setMountAttr(fd int, o BindOptions) error {
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV}
	if o.ReadOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	if o.NoExec {
		attr.Attr_set |= unix.MOUNT_ATTR_NOEXEC
	}
	if o.IDMap > 0 {
		attr.Attr_set |= unix.MOUNT_ATTR_IDMAP
		attr.Userns_fd = uint64(o.IDMap)
	}
	flags := uint(unix.AT_EMPTY_PATH)
	if o.Recursive {
		flags |= unix.AT_RECURSIVE
	}
	return unix.MountSetattr(fd, "", flags, &attr)
}

// supported marks what an old kernel, or a file system without idmapped
// mounts, answers.
func supported(err error) error {
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		return fmt.Errorf("%w: %w", ErrNotSupported, err)
	}
	return err
}

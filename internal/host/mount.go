package host

import (
	"errors"
	"fmt"

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
	fd, err := CloneMount(source, o)
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
	src, err := unix.Open(source, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("cannot mount %q: %w", source, err)
	}
	defer unix.Close(src)
	var st unix.Stat_t
	if err := unix.Fstat(src, &st); err != nil {
		return -1, fmt.Errorf("cannot mount %q: %w", source, err)
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return -1, fmt.Errorf("cannot mount %q: it is a symlink", source)
	}
	flags := uint(unix.OPEN_TREE_CLONE | unix.OPEN_TREE_CLOEXEC | unix.AT_EMPTY_PATH)
	if o.Recursive {
		flags |= unix.AT_RECURSIVE
	}
	fd, err := unix.OpenTree(src, "", flags)
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

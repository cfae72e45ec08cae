package host

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// FD is one open descriptor of this process.
type FD struct {
	Num         int
	CloseOnExec bool
	Target      string // what /proc/self/fd says, such as "socket:[123]"
}

// RuntimeOwned tells the poller of the Go runtime from a descriptor that came
// with us: the runtime opens its own close-on-exec, and what is close-on-exec
// cannot have been inherited.
func (f FD) RuntimeOwned() bool {
	return f.CloseOnExec && (f.Target == "anon_inode:[eventpoll]" || f.Target == "anon_inode:[eventfd]")
}

// ListFDs returns the open descriptors without the one that lists them.
func ListFDs() ([]FD, error) {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return nil, fmt.Errorf("cannot list descriptors: %w", err)
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	if err != nil {
		return nil, fmt.Errorf("cannot list descriptors: %w", err)
	}
	fds := make([]FD, 0, len(names))
	for _, name := range names {
		num, err := strconv.Atoi(name)
		if err != nil || num == int(dir.Fd()) {
			continue
		}
		flags, err := unix.FcntlInt(uintptr(num), unix.F_GETFD, 0)
		if err != nil {
			continue // closed since
		}
		target, _ := os.Readlink("/proc/self/fd/" + name)
		target = strings.TrimSuffix(target, " (deleted)")
		fds = append(fds, FD{num, flags&unix.FD_CLOEXEC != 0, target})
	}
	return fds, nil
}

// SealDescriptors marks everything above stderr close-on-exec. main calls it
// first: what our caller left open, by accident or to plant it, then reaches
// no sandbox kernel, file server or other child of ours.
func SealDescriptors() error {
	err := unix.CloseRange(3, math.MaxUint32, unix.CLOSE_RANGE_CLOEXEC)
	if err == nil {
		return nil
	}
	if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("cannot seal descriptors: %w", err)
	}
	fds, err := ListFDs() // kernels before 5.11
	if err != nil {
		return err
	}
	for _, fd := range fds {
		if fd.Num >= 3 {
			unix.CloseOnExec(fd.Num)
		}
	}
	return nil
}

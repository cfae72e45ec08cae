package host_test

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// rawPath calls openat with registers as given.
func rawPath(trap uintptr, _ string, flags, mode uintptr, path string) error {
	p, err := unix.BytePtrFromString(path)
	if err != nil {
		return err
	}
	at := unix.AT_FDCWD
	fd, _, e := unix.Syscall6(trap, uintptr(at), uintptr(unsafe.Pointer(p)), flags, mode, 0, 0)
	if e != 0 {
		return e
	}
	return unix.Close(int(fd))
}

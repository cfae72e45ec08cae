package main

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setFilter adds a seccomp filter to the calling thread only.
func setFilter(p []unix.SockFilter) error {
	prog := unix.SockFprog{Len: uint16(len(p)), Filter: &p[0]}
	_, _, errno := unix.RawSyscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(p)
	if errno != 0 {
		return errno
	}
	return nil
}

// setThreadGroups sets the supplementary groups of the calling thread only;
// the function of package syscall sets those of all threads.
func setThreadGroups(groups []uint32) error {
	var p unsafe.Pointer
	if len(groups) > 0 {
		p = unsafe.Pointer(&groups[0])
	}
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(groups)), uintptr(p), 0)
	if errno != 0 {
		return errno
	}
	return nil
}

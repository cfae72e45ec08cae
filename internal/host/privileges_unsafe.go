package host

import (
	"fmt"
	"os"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dropPrivileges gives up root on every thread. Each call goes to all threads
// at once, because credentials belong to threads and the runtime has started
// several by now. no_new_privs comes with the filter.
func dropPrivileges(cfg jailConfig) error {
	for c := uintptr(0); c < 64; c++ {
		// All threads have the same set. Past the last capability this fails.
		if set, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, c, 0, 0, 0); err != nil || set == 0 {
			continue
		}
		if err := allThreads(unix.SYS_PRCTL, unix.PR_CAPBSET_DROP, c, 0); err != nil {
			return fmt.Errorf("cannot drop capability %d: %w", c, err)
		}
	}
	if !cfg.UserNS { // there the one mapped id is the only one, and setgroups is denied
		if err := setIDs(int(cfg.UID), int(cfg.GID)); err != nil {
			return err
		}
	}
	if err := dropCaps(); err != nil { // ambient ones go with the permitted
		return err
	}
	// After the ids, whose change resets it. It belongs to the address space.
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return fmt.Errorf("cannot clear dumpable: %w", err)
	}
	return checkDropped(cfg)
}

func setIDs(uid, gid int) error {
	if err := syscall.Setgroups([]int{}); err != nil {
		return fmt.Errorf("cannot drop groups: %w", err)
	}
	if err := syscall.Setresgid(gid, gid, gid); err != nil {
		return fmt.Errorf("cannot set gid %d: %w", gid, err)
	}
	if err := syscall.Setresuid(uid, uid, uid); err != nil {
		return fmt.Errorf("cannot set uid %d: %w", uid, err)
	}
	return nil
}

func dropCaps() error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	err := allThreads(unix.SYS_CAPSET, uintptr(unsafe.Pointer(&head)), uintptr(unsafe.Pointer(&none)), 0)
	if err != nil {
		return fmt.Errorf("cannot drop capabilities: %w", err)
	}
	return nil
}

// checkDropped reads the result back from the calling thread.
func checkDropped(cfg jailConfig) error {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var got [2]unix.CapUserData
	if err := unix.Capget(&head, &got[0]); err != nil {
		return fmt.Errorf("cannot read capabilities: %w", err)
	}
	if got != ([2]unix.CapUserData{}) {
		return fmt.Errorf("capabilities left after drop: %+v", got)
	}
	if os.Getuid() != int(cfg.UID) || os.Geteuid() != int(cfg.UID) || os.Getgid() != int(cfg.GID) {
		return fmt.Errorf("running as %d:%d instead of %d:%d", os.Geteuid(), os.Getgid(), cfg.UID, cfg.GID)
	}
	return nil
}

// CheckNoCgo fails in a binary that uses cgo, where threads exist that the Go
// runtime does not know and cannot take privileges from. With gcc installed,
// "go build" does that by itself for package net.
var CheckNoCgo = sync.OnceValue(func() error {
	if allThreads(unix.SYS_GETPPID, 0, 0, 0) == unix.ENOTSUP {
		return fmt.Errorf("this program was built with cgo; build it with CGO_ENABLED=0: %w", ErrNotSupported)
	}
	return nil
})

func allThreads(trap, a, b, c uintptr) error {
	if _, _, e := syscall.AllThreadsSyscall6(trap, a, b, c, 0, 0, 0); e != 0 {
		return e
	}
	return nil
}

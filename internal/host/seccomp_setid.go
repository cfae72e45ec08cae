package host

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

const (
	setIDBits = unix.S_ISUID | unix.S_ISGID
	// deviceBit is in the type of a character and of a block device and of no
	// other type that mknod makes.
	deviceBit  = unix.S_IFCHR
	createBits = unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY
)

// modeRules keep a process and its children from leaving a setuid, setgid or
// device file anywhere. The kernel reads modes as 32 bits and less, so the
// conditions look at single bits and never compare whole registers.
func modeRules() []rule {
	return []rule{
		{calls: "chmod fchmod", when: []conditions{{argHas(1, setIDBits)}}, errno: unix.EPERM,
			reason: "setuid by chmod"},
		{calls: "fchmodat fchmodat2", when: []conditions{{argHas(2, setIDBits)}}, errno: unix.EPERM,
			reason: "setuid by chmod"},
		{calls: "creat mkdir", when: []conditions{{argHas(1, setIDBits)}}, errno: unix.EPERM,
			reason: "setuid at creation"},
		{calls: "mkdirat", when: []conditions{{argHas(2, setIDBits)}}, errno: unix.EPERM,
			reason: "setuid at creation"},
		{calls: "open", when: []conditions{{argHas(1, createBits), argHas(2, setIDBits)}}, errno: unix.EPERM,
			reason: "setuid at creation; without O_CREAT the mode register is garbage"},
		{calls: "openat", when: []conditions{{argHas(2, createBits), argHas(3, setIDBits)}}, errno: unix.EPERM,
			reason: "setuid at creation; without O_CREAT the mode register is garbage"},
		{calls: "mknod", when: []conditions{{argHas(1, setIDBits)}, {argHas(1, deviceBit)}}, errno: unix.EPERM,
			reason: "setuid at creation, device nodes"},
		{calls: "mknodat", when: []conditions{{argHas(2, setIDBits)}, {argHas(2, deviceBit)}}, errno: unix.EPERM,
			reason: "setuid at creation, device nodes"},
		{calls: "openat2 io_uring_setup", errno: unix.ENOSYS,
			reason: "their modes are in memory, where a filter cannot look; callers fall back"},
	}
}

// InstallModeFilter keeps every process of a sandbox, whatever it becomes by
// exec, from making setuid, setgid or device files on the host through a
// writable mount. It is installed in the short-lived child that becomes the
// sandbox kernel, which stacks its own filters on top.
//
// A caller without CAP_SYS_ADMIN gets no_new_privs set with it, as the kernel
// demands.
func InstallModeFilter() error {
	prog, err := compile(modeRules(), unix.SECCOMP_RET_ALLOW)
	if err != nil {
		return fmt.Errorf("cannot install mode filter: %w", err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	install := loadFilter
	if !hasCap(unix.CAP_SYS_ADMIN) {
		install = installFilter
	}
	if err := install(prog); err != nil {
		return fmt.Errorf("cannot install mode filter: %w", err)
	}
	return nil
}

func hasCap(c uint) bool {
	var caps [2]unix.CapUserData
	err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0])
	return err == nil && caps[c/32].Effective&(1<<(c%32)) != 0
}

package host

import (
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// stillborn makes a process with attr that never executes an instruction of a
// program, calls look while it exists, and ends it. A namespace needs a process
// to be born in, and a probe only wants to see that one can be born.
func stillborn(attr *syscall.SysProcAttr, look func(pid int) error) error {
	runtime.LockOSThread() // ptrace answers only the thread that started the child
	defer runtime.UnlockOSThread()
	attr.Ptrace = true // stops it as exec returns
	attr.Pdeathsig = syscall.SIGKILL
	pid, err := syscall.ForkExec("/proc/self/exe", []string{"caisson-stillborn"},
		&syscall.ProcAttr{Env: []string{}, Sys: attr})
	if err != nil {
		return err
	}
	err = look(pid)
	syscall.Kill(pid, syscall.SIGKILL)
	for {
		var ws syscall.WaitStatus
		_, waitErr := syscall.Wait4(pid, &ws, unix.WALL, nil)
		if waitErr == syscall.EINTR {
			continue
		}
		if waitErr != nil || ws.Exited() || ws.Signaled() {
			return err
		}
	}
}

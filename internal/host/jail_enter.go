package host

import (
	"errors"
	"fmt"
	"os"
	"path"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// EnterJail is the first call of a child that Jail.Start started. When it
// returns nil, every thread of the process holds the given descriptors, an
// empty root, and nothing else: no uid but its own, no capability, no way to
// gain one, no system call outside p. On an error the child must exit.
//
// It runs while the process has read nothing but its configuration, so the
// order of the steps matters only for what each needs from the ones before.
func EnterJail(p Profile) error {
	// no_new_privs must be on the thread that loads the filter, which then
	// spreads both.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// Stops the runtime from rereading its cpu limit through a descriptor that
	// is closed below, whose number may then belong to another file.
	runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	filter, err := p.assemble()
	if err != nil {
		return fmt.Errorf("cannot enter jail: %w", err)
	}
	fd, err := takeJailArg()
	if err != nil {
		return fmt.Errorf("cannot enter jail: %w", err)
	}
	cfg, err := readJailConfig(fd)
	if err != nil {
		return fmt.Errorf("cannot enter jail: %w", err)
	}
	parent := fd + 1
	for _, step := range []func() error{
		func() error { return joinByFDs(parent+1, cfg.CgroupFDs) },
		func() error { return closeForeign(cfg.Files, parent) },
		func() error { return emptyRoot(cfg) },
		func() error { return jailRlimits(cfg) },
		func() error { return dropPrivileges(cfg) },
		func() error { return dieWithParent(cfg, parent) },
		func() error { return installFilter(filter) },
	} {
		if err := step(); err != nil {
			return fmt.Errorf("cannot enter jail: %w", err)
		}
	}
	return nil
}

// joinByFDs moves this process into the cgroup whose cgroup.procs files the
// parent opened. "0" is the writer itself, whatever its pid is called here.
func joinByFDs(first, n int) error {
	for fd := first; fd < first+n; fd++ {
		if _, err := unix.Write(fd, []byte("0")); err != nil {
			return fmt.Errorf("cannot join cgroup: %w", err)
		}
		unix.Close(fd)
	}
	return nil
}

// closeForeign closes what is open behind the n given files except keep, and
// refuses directories among the given ones.
func closeForeign(n, keep int) error {
	for fd := 0; fd < 3+n; fd++ {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return fmt.Errorf("cannot stat descriptor %d: %w", fd, err)
		}
		if st.Mode&unix.S_IFMT == unix.S_IFDIR {
			return fmt.Errorf("descriptor %d is a directory, from which openat climbs out of any root", fd)
		}
	}
	fds, err := ListFDs()
	if err != nil {
		return err
	}
	for _, fd := range fds {
		if fd.Num >= 3+n && fd.Num != keep && !fd.RuntimeOwned() {
			unix.Close(fd.Num)
		}
	}
	return nil
}

// emptyRoot makes a tmpfs with the files of cfg the root of this process and
// detaches the old one. The tmpfs is built on /proc, the one directory that
// is certain to exist: we were started through it.
func emptyRoot(cfg jailConfig) error {
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("cannot make mounts private: %w", err)
	}
	if err := unix.Mount("jail", "/proc", "tmpfs", flags, "mode=0755,nr_inodes=1k,size=16m"); err != nil {
		return fmt.Errorf("cannot mount jail root: %w", err)
	}
	if err := unix.Chdir("/proc"); err != nil {
		return fmt.Errorf("cannot enter jail root: %w", err)
	}
	unix.Umask(0)
	if err := fillRoot(cfg); err != nil {
		return err
	}
	unix.Umask(0o077)
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("cannot change root: %w", err)
	}
	// The old root lies on top of the new one at "." and goes with all below it.
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("cannot detach old root: %w", err)
	}
	if err := unix.Chdir("/"); err != nil {
		return fmt.Errorf("cannot enter new root: %w", err)
	}
	if err := unix.Mount("", "/", "", flags|unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""); err != nil {
		return fmt.Errorf("cannot make jail root read-only: %w", err)
	}
	if err := unix.Sethostname([]byte("caisson")); err != nil {
		return fmt.Errorf("cannot set jail hostname: %w", err)
	}
	return nil
}

// fillRoot puts files, directories and /tmp into the current directory.
func fillRoot(cfg jailConfig) error {
	rest := cfg.contents
	for _, f := range cfg.Root {
		if f.Size > len(rest) {
			return errors.New("cannot fill jail root: config is short")
		}
		if err := os.MkdirAll("."+path.Dir(f.Name), 0o755); err != nil {
			return fmt.Errorf("cannot fill jail root: %w", err)
		}
		if err := os.WriteFile("."+f.Name, rest[:f.Size], 0o444); err != nil {
			return fmt.Errorf("cannot fill jail root: %w", err)
		}
		rest = rest[f.Size:]
	}
	for _, d := range cfg.Dirs {
		if err := os.MkdirAll("."+d.Target, 0o755); err != nil {
			return fmt.Errorf("cannot fill jail root: %w", err)
		}
		o := BindOptions{ReadOnly: !d.Writable, NoExec: true}
		if err := BindMount(d.Source, "."+d.Target, o); err != nil {
			return err
		}
	}
	if cfg.TmpBytes == 0 {
		return nil
	}
	if err := os.Mkdir("tmp", 0o700); err != nil {
		return fmt.Errorf("cannot make jail /tmp: %w", err)
	}
	data := "mode=0700,nr_inodes=64k,size=" + strconv.FormatInt(cfg.TmpBytes, 10) +
		",uid=" + strconv.FormatUint(uint64(cfg.UID), 10) + ",gid=" + strconv.FormatUint(uint64(cfg.GID), 10)
	if err := unix.Mount("jail", "tmp", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, data); err != nil {
		return fmt.Errorf("cannot mount jail /tmp: %w", err)
	}
	return nil
}

// jailRlimits leaves out RLIMIT_NPROC: it counts every process of the uid, so
// one jail could starve the others. The filter lets nothing fork, and a cgroup
// bounds the threads.
func jailRlimits(cfg jailConfig) error {
	for res, max := range map[int]uint64{
		unix.RLIMIT_CORE:     0, // a core file would hold what the child knew
		unix.RLIMIT_MEMLOCK:  0,
		unix.RLIMIT_MSGQUEUE: 0,
		unix.RLIMIT_NOFILE:   cfg.NoFile,
	} {
		// syscall, not unix: it also stops os from restoring NOFILE later.
		if err := syscall.Setrlimit(res, &syscall.Rlimit{Cur: max, Max: max}); err != nil {
			return fmt.Errorf("cannot set rlimit %d to %d: %w", res, max, err)
		}
	}
	return nil
}

// dieWithParent arms the death signal again, because changing the uid cleared
// it, and then looks whether the parent died in between. getppid would not
// tell: seen from a pid namespace every outside parent is 0.
func dieWithParent(cfg jailConfig, pidfd int) error {
	defer unix.Close(pidfd)
	if cfg.SurvivesParent {
		return nil
	}
	// On every thread: the signal belongs to a thread, and some thread may end.
	if err := allThreads(unix.SYS_PRCTL, unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0); err != nil {
		return fmt.Errorf("cannot set parent death signal: %w", err)
	}
	fds := []unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	if err != nil {
		return fmt.Errorf("cannot watch parent: %w", err)
	}
	if n != 0 {
		return errors.New("parent is gone")
	}
	return nil
}

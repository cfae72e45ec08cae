package main

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// enter moves the calling thread, which stays locked to its goroutine for
// ever, into the users' namespaces. Its root is then the users' root, so that
// no path it is given can name anything else.
func (ns *namespace) enter(kinds int) error {
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_FS); err != nil {
		return fmt.Errorf("cannot leave the common root: %w", err)
	}
	if err := unix.Setns(ns.pidfd, kinds); err != nil {
		return fmt.Errorf("cannot enter the users' namespaces: %w", err)
	}
	return nil
}

// moveRoot makes newRoot the root of the users' mount namespace, and takes the
// skeleton, the image and the writable layer out of it. It is called once, on
// a thread that has entered.
func moveRoot(hostname string) error {
	for _, f := range []func() error{
		func() error { return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "") },
		func() error { return unix.Chdir(newRoot) },
		func() error { return unix.PivotRoot(".", ".") },
		func() error { return unix.Unmount(".", unix.MNT_DETACH) },
		func() error { return unix.Chdir("/") },
		func() error { return unix.Sethostname([]byte(hostname)) },
	} {
		if err := f(); err != nil {
			return fmt.Errorf("cannot move into the users' root: %w", err)
		}
	}
	return nil
}

// userCaps is the bounding set of user processes: what guest root can have.
var userCaps = []uintptr{
	unix.CAP_CHOWN, unix.CAP_DAC_OVERRIDE, unix.CAP_FSETID, unix.CAP_FOWNER, unix.CAP_SETGID, unix.CAP_SETUID,
	unix.CAP_SETPCAP, unix.CAP_SETFCAP, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_CHROOT, unix.CAP_KILL, unix.CAP_AUDIT_WRITE,
}

// dropBounding takes everything else out of the calling thread's bounding set.
func dropBounding() error {
	keep := map[uintptr]bool{}
	for _, c := range userCaps {
		keep[c] = true
	}
	for c := uintptr(0); c <= unix.CAP_LAST_CAP; c++ {
		if keep[c] {
			continue
		}
		// EINVAL: a capability that this kernel does not know.
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil && err != unix.EINVAL {
			return fmt.Errorf("cannot drop capability %d: %w", c, err)
		}
	}
	return nil
}

// pool runs file operations on threads that have entered the users' mount
// namespace, as a given user: the user's own permissions hold, and what is
// made belongs to that user. Threads are started when needed; two stay.
type pool struct {
	ns    *namespace
	jobs  chan func()
	slots chan struct{} // one for each thread
	idle  chan struct{} // one for each thread that waits for a job
}

const (
	poolThreads = 8
	poolIdle    = 2
)

func newPool(ns *namespace) *pool {
	return &pool{ns: ns, jobs: make(chan func()), slots: make(chan struct{}, poolThreads), idle: make(chan struct{}, poolIdle)}
}

// as runs f as a user and waits for it. f is run again when it met the limit
// of open files that the spawner sets for an instant, so it must bear that.
func (p *pool) as(a account, f func() error) error {
	for attempt := 0; ; attempt++ {
		err := p.once(a, f)
		if attempt == 3 || !errors.Is(err, unix.EMFILE) {
			return err
		}
		time.Sleep(time.Millisecond << attempt)
	}
}

func (p *pool) once(a account, f func() error) (err error) {
	done := make(chan struct{})
	p.submit(func() {
		defer close(done)
		// A bug met by one request ends that request, not the sandbox.
		defer func() {
			if r := recover(); r != nil {
				err = fmt.Errorf("file operation failed: %v", r)
			}
		}()
		err = withIdentity(a, f)
	})
	<-done
	return err
}

func (p *pool) submit(job func()) {
	select {
	case p.jobs <- job:
		return
	default:
	}
	select {
	case p.jobs <- job:
	case p.slots <- struct{}{}:
		go p.thread(job)
	}
}

func (p *pool) thread(job func()) {
	defer func() { <-p.slots }()
	if err := p.ns.enter(unix.CLONE_NEWNS); err != nil {
		die(err) // there is no safe root to fall back to
	}
	for {
		job()
		select {
		case p.idle <- struct{}{}:
		default:
			return // the locked thread ends with its goroutine
		}
		job = <-p.jobs
		<-p.idle
	}
}

// withIdentity runs f with a user's ids and groups on the calling thread. The
// saved id stays root, which is the way back; user processes cannot see this
// thread, so they gain nothing from the moment in between.
func withIdentity(a account, f func() error) error {
	if a.uid == 0 {
		return f()
	}
	if err := become(a.uid, a.gid, a.groups); err != nil {
		return fmt.Errorf("cannot act as %q: %w", a.name, err)
	}
	defer func() {
		if err := become(0, 0, nil); err != nil {
			die(fmt.Errorf("cannot become root again: %w", err))
		}
	}()
	return f()
}

func become(uid, gid uint32, groups []uint32) error {
	const same = ^uintptr(0)
	// Root comes first on the way back and last on the way there, since the
	// other two calls need its capabilities.
	if uid == 0 {
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, 0, 0, same); e != 0 {
			return e
		}
	}
	if err := setThreadGroups(groups); err != nil {
		return err
	}
	if _, _, e := unix.RawSyscall(unix.SYS_SETRESGID, uintptr(gid), uintptr(gid), same); e != 0 {
		return e
	}
	if uid != 0 {
		if _, _, e := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), same); e != 0 {
			return e
		}
	}
	return nil
}

// die ends the sandbox: the host sees PID 1 exit.
func die(err error) {
	fmt.Fprintln(os.Stderr, "caisson-guest:", err)
	os.Exit(1)
}

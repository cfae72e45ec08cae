package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"caisson.dev/caisson/internal/guest"
)

// ownFiles is the limit of open files of PID 1 itself, which needs a few for
// each process however low the users' limit is.
const ownFiles = 8192

// spec is one process to start, already resolved: who, where, what.
type spec struct {
	user account
	path string // as execve gets it: absolute, or relative to dir
	args []string
	env  []string
	dir  string
	tty  *ttySize // nil: pipes
	// stdin is a pipe if set, otherwise /dev/null. A terminal ignores it.
	stdin bool
}

// child is a started process and our ends of its streams. A terminal has one
// stream, both ways, in tty.
type child struct {
	pid   int    // as we see it
	inner uint32 // as the user's processes see it
	stdin *os.File
	out   *os.File
	err   *os.File
	tty   *os.File
}

// spawner is the one place from which a process of a user can start (I11). It
// owns a thread that has entered every namespace of the users, has their
// bounding set and their seccomp filter, and is in their control group; a
// child is born with all of that and cannot be without.
type spawner struct {
	reqs chan func()
	// reaping is held while a child is made and made known, and while one is
	// waited for.
	reaping sync.Mutex
	nofile  uint64

	// Both are opened in the users' root before a user runs: guest root may
	// put anything in the place of /dev/null, and any file system over /dev.
	null *os.File // the standard input of processes that have none
	ptys *os.File // the users' devpts; nobody inside can replace an entry of it

	root   *rootDir // the users' root, for whom is not in it
	fdinfo *os.File // /proc/self/fdinfo of our own /proc
}

func startSpawner(ns *namespace, tasks *os.File, cfg guest.Config) (*spawner, error) {
	fdinfo, err := os.OpenFile("/proc/self/fdinfo", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot look at our own descriptors: %w", err)
	}
	s := &spawner{reqs: make(chan func()), nofile: uint64(cfg.NoFile), fdinfo: fdinfo}
	ready := make(chan error)
	go s.thread(ns, tasks, cfg.Hostname, ready)
	return s, <-ready
}

func (s *spawner) thread(ns *namespace, tasks *os.File, hostname string, ready chan<- error) {
	runtime.LockOSThread()
	err := func() error {
		if err := ns.enter(userNamespaces); err != nil {
			return err
		}
		if err := moveRoot(hostname); err != nil {
			return err
		}
		if err := s.openDevices(); err != nil {
			return err
		}
		defer tasks.Close()
		if _, err := tasks.WriteString("0"); err != nil { // 0 is the writing thread
			return fmt.Errorf("cannot limit tasks: %w", err)
		}
		if err := dropBounding(); err != nil {
			return err
		}
		return installFilter() // last: it refuses what came before
	}()
	ready <- err
	for err == nil {
		(<-s.reqs)()
	}
}

func (s *spawner) openDevices() (err error) {
	if s.null, err = os.OpenFile("/dev/null", os.O_RDWR, 0); err != nil {
		return fmt.Errorf("cannot open the null device: %w", err)
	}
	if s.ptys, err = os.OpenFile("/dev/pts", unix.O_PATH|unix.O_DIRECTORY, 0); err != nil {
		return fmt.Errorf("cannot open the terminals: %w", err)
	}
	s.root, err = openRoot("/")
	return err
}

// start starts a process. born is called before the child can be reaped.
func (s *spawner) start(sp spec, born func(*child)) error {
	var err error
	done := make(chan struct{})
	s.reqs <- func() {
		defer close(done)
		err = s.fork(sp, born)
	}
	<-done
	return err
}

// fork runs on the spawner's thread.
func (s *spawner) fork(sp spec, born func(*child)) error {
	c, files, err := s.streams(sp)
	if err != nil {
		return err
	}
	defer s.closeAll(files)
	pidfd := -1
	attr := &syscall.ProcAttr{
		Dir: sp.dir,
		Env: sp.env,
		Sys: &syscall.SysProcAttr{
			Setsid:  true,
			Setctty: sp.tty != nil,
			PidFD:   &pidfd,
			// Groups before ids, and the directory last: it is entered with
			// the user's own permissions.
			Credential: &syscall.Credential{Uid: sp.user.uid, Gid: sp.user.gid, Groups: sp.user.groups},
		},
	}
	for _, f := range files {
		attr.Files = append(attr.Files, f.Fd())
	}
	// Until the lock is given back a dead child stays a zombie, and its pids
	// remain its own.
	s.reaping.Lock()
	defer s.reaping.Unlock()
	// The limit of open files is the child's, not ours: it is ours only while
	// the child copies it. An operation of ours that meets it meanwhile is
	// tried again, see pool.as.
	s.limitFiles(s.nofile)
	c.pid, err = syscall.ForkExec(sp.path, sp.args, attr)
	s.limitFiles(ownFiles)
	if err != nil {
		c.close()
		return err
	}
	defer unix.Close(pidfd)
	c.inner = s.innerPid(pidfd)
	born(c)
	return nil
}

func (s *spawner) limitFiles(n uint64) {
	if err := unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: n, Max: n}, nil); err != nil {
		die(fmt.Errorf("cannot set the limit of open files: %w", err))
	}
}

// streams makes the pipes or the terminal. The files that it returns are the
// child's three.
func (s *spawner) streams(sp spec) (*child, []*os.File, error) {
	if sp.tty != nil {
		return s.terminal(sp)
	}
	c := &child{}
	in := s.null
	var files []*os.File
	if sp.stdin {
		r, w, err := os.Pipe()
		if err != nil {
			return nil, nil, err
		}
		in, c.stdin = r, w
	}
	files = append(files, in)
	for _, end := range []**os.File{&c.out, &c.err} {
		r, w, err := os.Pipe()
		if err != nil {
			c.close()
			s.closeAll(files)
			return nil, nil, err
		}
		*end, files = r, append(files, w)
	}
	return c, files, nil
}

func (s *spawner) terminal(sp spec) (*child, []*os.File, error) {
	fd, err := unix.Openat(int(s.ptys.Fd()), "ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("cannot open a terminal: %w", err)
	}
	master := os.NewFile(uintptr(fd), "terminal")
	slave, err := openSlave(fd, int(s.ptys.Fd()), sp)
	if err != nil {
		master.Close()
		return nil, nil, fmt.Errorf("cannot open a terminal: %w", err)
	}
	return &child{tty: master}, []*os.File{slave, slave, slave}, nil
}

func openSlave(master, dir int, sp spec) (*os.File, error) {
	if err := unix.IoctlSetPointerInt(master, unix.TIOCSPTLCK, 0); err != nil {
		return nil, err
	}
	n, err := unix.IoctlGetInt(master, unix.TIOCGPTN)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Openat(dir, strconv.Itoa(n), unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	slave := os.NewFile(uintptr(fd), "terminal")
	const ttyGroup = 5
	if err := errors.Join(unix.Fchown(fd, int(sp.user.uid), ttyGroup), sp.tty.apply(fd)); err != nil {
		slave.Close()
		return nil, err
	}
	return slave, nil
}

// ttySize is a terminal's size in characters.
type ttySize struct{ cols, rows uint16 }

func (t ttySize) apply(fd int) error {
	return unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: t.cols, Row: t.rows})
}

// innerPid reads the pid in the innermost namespace. Our own /proc tells it
// through the descriptor, which names the process whatever became of it; it is
// opened by its directory, since this thread's root has another /proc.
func (s *spawner) innerPid(pidfd int) uint32 {
	fd, err := unix.Openat(int(s.fdinfo.Fd()), strconv.Itoa(pidfd), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return 0
	}
	defer unix.Close(fd)
	b := make([]byte, 512)
	n, err := unix.Read(fd, b)
	if err != nil {
		return 0
	}
	return parseInnerPid(b[:n])
}

// parseInnerPid takes the last number of the line "NSpid:". Zero means that
// the process is already gone.
func parseInnerPid(info []byte) uint32 {
	for line := range bytes.Lines(info) {
		f := strings.Fields(string(line))
		if len(f) < 2 || f[0] != "NSpid:" {
			continue
		}
		n, err := strconv.ParseUint(f[len(f)-1], 10, 32)
		if err != nil {
			return 0
		}
		return uint32(n)
	}
	return 0
}

func (c *child) close() {
	for _, f := range []*os.File{c.stdin, c.out, c.err, c.tty} {
		if f != nil {
			f.Close()
		}
	}
}

func (s *spawner) closeAll(files []*os.File) {
	for _, f := range files {
		if f != s.null {
			f.Close()
		}
	}
}

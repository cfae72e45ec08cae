package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"caisson.dev/caisson/internal/guest"
)

// box is the sandbox as PID 1 sees it.
type box struct {
	reaper int // its pid, as we see it
	files  *pool
	spawn  *spawner
	procs  *table

	mu  sync.RWMutex // guards cfg: /init changes parts of it
	cfg guest.Config
}

// openBox builds everything that the server needs, in the order in which each
// part depends on the one before.
func openBox(cfg guest.Config) (*box, error) {
	syscall.Umask(0o022)
	if err := setOwnLimits(cfg); err != nil {
		return nil, err
	}
	etcWritten, err := buildRoot(cfg)
	if err != nil {
		return nil, err
	}
	tasks, err := limitTasks(cfg.Pids)
	if err != nil {
		return nil, err
	}
	ns, err := startReaper(upperDir, newRoot+"/proc")
	if err != nil {
		return nil, err
	}
	b := &box{cfg: cfg, reaper: ns.pid, files: newPool(ns), procs: newTable()}
	if b.spawn, err = startSpawner(ns, tasks, cfg); err != nil {
		return nil, err
	}
	go b.reap()
	// The first file operation would wait for a thread to enter the root.
	go func() { _ = b.files.as(asRoot, func() error { return nil }) }()
	return b, etcWritten()
}

// ownThreads is room for the threads of PID 1, which count as root's.
const ownThreads = 24

// processLimit is exact for each uid, and an ordinary user cannot change its
// uid here. The control group of limitTasks counts all users together but is
// not exact: this sandbox kernel looks at one of a task's groups at each fork,
// chosen by the order of a map. PID 1 has CAP_SYS_RESOURCE and is exempt.
func processLimit(cfg guest.Config) uint64 {
	if cfg.User.UID == 0 {
		return uint64(cfg.Pids) + ownThreads
	}
	return uint64(cfg.Pids)
}

// setOwnLimits sets the limits that PID 1 and every process share. The limit
// of open files differs, see spawner.fork.
func setOwnLimits(cfg guest.Config) error {
	// The handler is never called for its own sake: an ignored signal would
	// stay ignored in every process, a handled one is reset by exec.
	signal.Notify(make(chan os.Signal, 1), unix.SIGXFSZ, unix.SIGPIPE)
	for _, l := range []struct {
		name     string
		resource int
		value    uint64
	}{
		{"file size", unix.RLIMIT_FSIZE, uint64(cfg.FileSize)},
		{"core", unix.RLIMIT_CORE, 0},
		{"processes", unix.RLIMIT_NPROC, processLimit(cfg)},
		{"open files", unix.RLIMIT_NOFILE, ownFiles},
	} {
		// syscall.Setrlimit, not unix.Prlimit: it also makes package syscall
		// forget the value that it would restore in every child.
		if err := syscall.Setrlimit(l.resource, &syscall.Rlimit{Cur: l.value, Max: l.value}); err != nil {
			return fmt.Errorf("cannot limit %s to %d: %w", l.name, l.value, err)
		}
	}
	return nil
}

// reap waits for every child that we have: the processes that we started, and
// orphans of theirs that the kernel gives to us instead of to the reaper.
func (b *box) reap() {
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, unix.SIGCHLD)
	for {
		for b.reapOne() {
		}
		<-ch
	}
}

// reapOne reports whether there may be more.
func (b *box) reapOne() bool {
	b.spawn.reaping.Lock()
	defer b.spawn.reaping.Unlock()
	var ws syscall.WaitStatus
	pid, err := syscall.Wait4(-1, &ws, syscall.WNOHANG, nil)
	if errors.Is(err, unix.EINTR) {
		return true
	}
	if err != nil || pid <= 0 {
		return false
	}
	if pid == b.reaper {
		die(errors.New("process 1 of the user namespace ended, and every process with it"))
	}
	b.procs.exited(pid, ws)
	return true
}

// settings returns what /init may change.
func (b *box) settings() (token string, user, workDir string, env map[string]string) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.cfg.Token, b.cfg.User.Name, b.cfg.WorkDir, maps.Clone(b.cfg.Env)
}

// asRoot is the account of operations that are our own.
var asRoot = account{name: "root", home: "/root"}

var errUnknownUser = errors.New("no such user")

// lookup finds an account in the users' root; "" is the default user.
func (b *box) lookup(name string) (account, error) {
	if name == "" {
		_, name, _, _ = b.settings()
	}
	b.mu.RLock()
	u := b.cfg.User
	b.mu.RUnlock()
	// Whoever the host started the sandbox for is who the host says, and root
	// is root, whatever the image or a process wrote into /etc: mounts give
	// that user's id the authority of their owner.
	switch name {
	case u.Name:
		groups := parseGroups(b.spawn.root.readFile("/etc/group"), name)
		return account{name: name, uid: u.UID, gid: u.GID, home: u.Home, groups: groups}, nil
	case "root":
		return asRoot, nil
	}
	if a, ok := parseAccount(b.spawn.root.readFile("/etc/passwd"), name); ok {
		a.groups = parseGroups(b.spawn.root.readFile("/etc/group"), name)
		return a, nil
	}
	return account{}, errUnknownUser
}

// readTable reads a small file on a thread in the users' root.
func readTable(name string) []byte {
	f, err := os.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	return readRegular(f)
}

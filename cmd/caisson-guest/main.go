// Command caisson-guest is PID 1 of every sandbox. It builds the root of the
// user's processes, starts every one of them, and serves E2B's envd protocol
// to the host on 127.0.0.1. It runs as guest root with all capabilities and
// holds the token, so it never shares a PID, mount or IPC namespace, a
// descriptor or an environment variable with a user process.
//
// How a process comes to be, in the order of the files:
//
//	setup.go    mounts, in our own mount namespace (the skeleton)
//	reaper.go   process 1 of the users' PID namespace
//	threads.go  threads of ours that have entered the users' root
//	spawn.go    the one function that starts a process (I11)
//	process.go  its streams, its subscribers and its end
//	server.go   the routes and who may call them
package main

import (
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"

	"caisson.dev/caisson/internal/guest"
)

// memoryLimit is where the collector of PID 1 starts to work hard. What PID 1
// uses is the sandbox's memory, so it is small; buffers are bounded elsewhere.
const memoryLimit = 32 << 20

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "caisson-guest:", err)
		os.Exit(1)
	}
}

func run() error {
	// Started by hand as root of a real machine, it would mount over things.
	if os.Getpid() != 1 {
		return fmt.Errorf("cannot run as pid %d: it is process 1 of a sandbox and nothing else", os.Getpid())
	}
	runtime.GOMAXPROCS(2)
	debug.SetGCPercent(50)
	debug.SetMemoryLimit(memoryLimit)

	cfg, err := takeConfig()
	if err != nil {
		return err
	}
	// The host's first connection waits here while the root is built.
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", guest.Port))
	if err != nil {
		return fmt.Errorf("cannot listen: %w", err)
	}
	box, err := openBox(cfg)
	if err != nil {
		return err
	}
	return newServer(box.handler()).Serve(newGate(l))
}

// takeConfig reads the configuration once; nobody can read it again.
func takeConfig() (guest.Config, error) {
	os.Clearenv()
	f := os.NewFile(guest.ConfigFD, "configuration")
	b, err := io.ReadAll(io.LimitReader(f, guest.MaxConfig))
	f.Close()
	if err != nil {
		return guest.Config{}, fmt.Errorf("cannot read the configuration: %w", err)
	}
	cfg, err := guest.DecodeConfig(string(b))
	if err != nil {
		return guest.Config{}, err
	}
	return cfg, checkConfig(cfg)
}

// checkConfig refuses what would otherwise mean "unlimited" or fail late.
func checkConfig(c guest.Config) error {
	for _, l := range []struct {
		name  string
		value int64
		least int64
	}{
		{"disk_bytes", c.DiskBytes, 1 << 20},
		{"disk_inodes", c.DiskInodes, 64},
		{"shm_bytes", c.ShmBytes, 4096},
		{"pids", c.Pids, 1},
		{"nofile", c.NoFile, 16},
		{"file_size", c.FileSize, 4096},
	} {
		if l.value < l.least {
			return fmt.Errorf("cannot use config: %s is %d, at least %d is needed", l.name, l.value, l.least)
		}
	}
	if !validName(c.User.Name) {
		return fmt.Errorf("cannot use config: bad user name %q", c.User.Name)
	}
	if !validField(c.User.Home) || c.User.Home[0] != '/' {
		return fmt.Errorf("cannot use config: bad home directory %q", c.User.Home)
	}
	return nil
}

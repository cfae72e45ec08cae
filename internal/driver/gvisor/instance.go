package gvisor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/urpc"
	"gvisor.dev/gvisor/runsc/boot"
	"gvisor.dev/gvisor/runsc/sandbox"

	"caisson.dev/caisson/internal/driver"
	"caisson.dev/caisson/internal/host"
)

// instance is one running gVisor sandbox.
type instance struct {
	d      *Driver
	spec   driver.Spec
	cgroup *host.Cgroup
	slot   *host.Lock // of the range of ids
	sb     *sandbox.Sandbox
	pidfd  *os.File
	child  *exec.Cmd // the create child of an attached sandbox
	watch  *host.MemoryWatch
	events chan struct{}

	booted   func() error // narrows the processor quota, once
	killOnce sync.Once
	killErr  error
	ended    chan struct{}
}

var _ driver.Instance = (*instance)(nil)

func (d *Driver) newInstance(spec driver.Spec, g *host.Cgroup, res createResult, child *exec.Cmd) (*instance, error) {
	for _, pid := range []int{res.SandboxPID, res.GoferPID} {
		if pid == 0 {
			continue
		}
		if err := g.Verify(pid); err != nil {
			return nil, err
		}
	}
	fd, err := unix.PidfdOpen(res.SandboxPID, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("cannot watch the sandbox kernel: %w", err)
	}
	watch, err := g.WatchMemory(spec.Limits.Memory)
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	in := &instance{
		d: d, spec: spec, cgroup: g, child: child, watch: watch,
		events: make(chan struct{}, 1),
		sb:     &sandbox.Sandbox{ID: spec.ID, ControlSocketPath: res.ControlSocket},
		pidfd:  os.NewFile(uintptr(fd), "pidfd"),
		ended:  make(chan struct{}),
	}
	in.sb.Pid.Store(res.SandboxPID)
	in.booted = sync.OnceValue(func() error { return g.SetCPUQuota(spec.Limits.CPU) })
	go in.waitForEnd()
	go in.watchMemory()
	return in, nil
}

// watchMemory passes the kernel's memory events on, and sets the trap again
// once the pressure is over.
func (in *instance) watchMemory() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		<-in.ended
		cancel()
	}()
	for in.watch.Wait(ctx) == nil {
		select {
		case in.events <- struct{}{}:
		default: // one is waiting to be seen
		}
		for in.pressed() {
			select {
			case <-in.ended:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
		if in.watch.Rearm() != nil {
			return // the cgroup is gone
		}
	}
}

func (in *instance) pressed() bool {
	m, err := in.cgroup.Memory()
	return err == nil && m.Anon+m.Shmem > in.spec.Limits.Memory
}

// waitForEnd closes ended when the sandbox kernel is gone.
func (in *instance) waitForEnd() {
	defer close(in.ended)
	raw, err := in.pidfd.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Read(func(fd uintptr) bool {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
		return err == nil && n > 0
	})
}

func (in *instance) ID() string { return in.spec.ID }

func (in *instance) MemoryEvents() <-chan struct{} { return in.events }

// Dial asks the sandbox kernel to connect one end of a socket pair to port.
func (in *instance) Dial(ctx context.Context, port uint16) (*os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot make a socket pair: %w", err)
	}
	ours, theirs := os.NewFile(uintptr(fds[0]), "guest"), os.NewFile(uintptr(fds[1]), "sentry")
	defer theirs.Close()
	err = in.sb.PortForward(&boot.PortForwardOpts{
		FilePayload: urpc.FilePayload{Files: []*os.File{theirs}},
		ContainerID: in.spec.ID,
		Port:        port,
	})
	if err != nil {
		ours.Close()
		return nil, fmt.Errorf("cannot connect to port %d of sandbox %s: %w", port, in.spec.ID, err)
	}
	// Only who has a connection can have a program started.
	if err := in.booted(); err != nil {
		ours.Close()
		return nil, err
	}
	return ours, ctx.Err()
}

func (in *instance) Usage() (driver.Usage, error) {
	m, err := in.cgroup.Memory()
	if err != nil {
		return driver.Usage{}, err
	}
	cpu, err := in.cgroup.CPU()
	if err != nil {
		return driver.Usage{}, err
	}
	kills, err := in.cgroup.OOMKills()
	if err != nil {
		return driver.Usage{}, err
	}
	return driver.Usage{Memory: m.Anon + m.Shmem, Charged: m.Total, MemoryPeak: m.Peak, CPU: cpu, OOMKills: kills}, nil
}

func (in *instance) Wait(ctx context.Context) error {
	select {
	case <-in.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (in *instance) Processes() ([]int, error) { return in.cgroup.Procs() }

func (in *instance) Kill() error {
	in.killOnce.Do(func() {
		in.killErr = in.kill()
	})
	return in.killErr
}

// endTimeout bounds the wait for a killed kernel, whose memory the host may
// take a while to free.
const endTimeout = 10 * time.Second

func (in *instance) kill() error {
	in.watch.Close()
	// The kernel tells at once when the sandbox is gone; what removeAll does
	// about processes is for those that this did not reach.
	_ = unix.PidfdSendSignal(int(in.pidfd.Fd()), unix.SIGKILL, nil, 0)
	if procs, err := in.cgroup.Procs(); err == nil {
		for _, p := range procs {
			_ = unix.Kill(p, unix.SIGKILL)
		}
	}
	select {
	case <-in.ended:
	case <-time.After(endTimeout): // removeAll tries on and says what is left
	}
	if in.child != nil {
		_ = in.child.Wait()
	}
	err := in.d.removeAll(in.spec.ID, in.cgroup)
	if err == nil {
		_ = in.slot.UnlockRemove()
	}
	in.pidfd.Close()
	return err
}

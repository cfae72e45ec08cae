// Package gvisor is the isolation level "gvisor": a kernel of its own in user
// space, linked into our binary and started as children of it. It holds what
// is specific to gVisor; limits, policy and what runs inside are decided
// elsewhere.
package gvisor

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/cleanup"

	"caisson.dev/caisson/internal/driver"
	"caisson.dev/caisson/internal/host"
	"caisson.dev/caisson/internal/reexec"
)

// Level is the name of this isolation level.
const Level = "gvisor"

// Driver makes gVisor sandboxes. RunDir is a root-owned directory on a tmpfs,
// such as /run/caisson; all sandboxes of a machine share it.
type Driver struct {
	RunDir string
	LogDir string // for bug reports: everything that gVisor logs; empty for nothing
}

var _ driver.Driver = (*Driver)(nil)

func (d *Driver) Level() string { return Level }

func (d *Driver) rootDir() string           { return filepath.Join(d.RunDir, "gvisor") }
func (d *Driver) stateDir(id string) string { return filepath.Join(d.RunDir, "sandbox", id) }

// cgroupName is below host's own parent group, which it adds.
func cgroupName(id string) string { return id }

var idPattern = regexp.MustCompile(`^[a-z0-9]{1,40}$`)

// Create starts a sandbox. The order matters: the cgroup stands before the
// first process of the sandbox exists.
func (d *Driver) Create(ctx context.Context, spec driver.Spec) (driver.Instance, error) {
	if !idPattern.MatchString(spec.ID) {
		return nil, fmt.Errorf("cannot create sandbox: bad id %q", spec.ID)
	}
	cgs, err := host.DetectCgroups()
	if err != nil {
		return nil, err
	}
	g, err := cgs.Create(cgroupName(spec.ID), host.Limits{
		MemoryMax: spec.Limits.MemoryHard, Pids: spec.Limits.Pids,
		CPUQuota: spec.Limits.CPU, CPUWeight: int(spec.Limits.CPUWeight),
	})
	if err != nil {
		return nil, err
	}
	cu := cleanup.Make(func() { d.removeAll(spec.ID, g) })
	defer cu.Clean()
	for _, dir := range []string{d.rootDir(), d.stateDir(spec.ID)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("cannot make the state directory: %w", err)
		}
	}
	child, res, err := d.startChild(ctx, spec)
	if err != nil {
		return nil, err
	}
	in, err := d.newInstance(spec, g, res, child)
	if err != nil {
		return nil, err
	}
	cu.Release()
	return in, nil
}

// startChild runs the create child and reads its answer.
func (d *Driver) startChild(ctx context.Context, spec driver.Spec) (*exec.Cmd, createResult, error) {
	slot, err := randomSlot()
	if err != nil {
		return nil, createResult{}, err
	}
	req, err := requestFile(createRequest{
		Spec: spec, StateDir: d.stateDir(spec.ID), RootDir: d.rootDir(), LogDir: d.LogDir,
		Cgroup: cgroupName(spec.ID), Slot: slot,
	})
	if err != nil {
		return nil, createResult{}, err
	}
	defer req.Close()
	logs, err := memfd("gvisor-log")
	if err != nil {
		return nil, createResult{}, err
	}
	defer logs.Close()
	resR, resW, err := os.Pipe()
	if err != nil {
		return nil, createResult{}, err
	}
	defer resR.Close()
	cmd := reexec.Command(createMode)
	cmd.Stderr = logs
	cmd.ExtraFiles = []*os.File{req, resW}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC,
	}
	if spec.Attached {
		cmd.SysProcAttr.Pdeathsig = unix.SIGKILL
	}
	err = startOnLastingThread(cmd)
	resW.Close()
	if err != nil {
		return nil, createResult{}, fmt.Errorf("cannot start the create child: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = cmd.Process.Kill() })
	defer stop()
	res, err := readResult(resR)
	if err != nil {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if ctx.Err() != nil {
			return nil, res, ctx.Err()
		}
		return nil, res, fmt.Errorf("cannot create sandbox: %w%s", err, tail(logs))
	}
	if !spec.Attached {
		_ = cmd.Wait()
		return nil, res, nil
	}
	return cmd, res, nil
}

// startOnLastingThread starts cmd on a thread that lives as long as cmd does:
// the kernel sends a parent-death signal when the starting *thread* ends.
func startOnLastingThread(cmd *exec.Cmd) error {
	if cmd.SysProcAttr.Pdeathsig == 0 {
		return cmd.Start()
	}
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked before the child is gone
		err := cmd.Start()
		started <- err
		if err == nil {
			_, _ = waitNoReap(cmd.Process.Pid)
		}
		runtime.UnlockOSThread()
	}()
	return <-started
}

// waitNoReap blocks until pid has ended and leaves its status for its waiter.
func waitNoReap(pid int) (unix.Siginfo, error) {
	var info unix.Siginfo
	for {
		err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return info, err
		}
	}
}

// Clean removes everything that a sandbox id may have left.
func (d *Driver) Clean(id string) error {
	if !idPattern.MatchString(id) {
		return fmt.Errorf("cannot clean sandbox: bad id %q", id)
	}
	cgs, err := host.DetectCgroups()
	if err != nil {
		return err
	}
	g, err := cgs.Open(cgroupName(id))
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		g = nil
	}
	return d.removeAll(id, g)
}

// removeAll kills every process of the sandbox and removes its cgroup and
// files. It needs nothing from the sandbox.
func (d *Driver) removeAll(id string, g *host.Cgroup) error {
	var errs []error
	if g != nil {
		errs = append(errs, g.Kill(), g.Remove())
		g.Close()
	}
	for _, name := range []string{
		"runsc-" + id + ".sock",
		id + "_sandbox:" + id + ".state",
		id + "_sandbox:" + id + ".lock",
	} {
		if err := os.Remove(filepath.Join(d.rootDir(), name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, os.RemoveAll(d.stateDir(id)))
	return errors.Join(errs...)
}

func randomSlot() (uint32, error) {
	var b [4]byte
	if _, err := rand.Read(b[:]); err != nil {
		return 0, fmt.Errorf("cannot choose a uid range: %w", err)
	}
	return binary.LittleEndian.Uint32(b[:]) % idSlots, nil
}

// requestFile holds the request in memory: it carries the guest's token,
// which belongs on no disk and in no argument list.
func requestFile(req createRequest) (*os.File, error) {
	f, err := memfd("create-request")
	if err != nil {
		return nil, err
	}
	if err := json.NewEncoder(f).Encode(req); err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot encode the create request: %w", err)
	}
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func memfd(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("cannot make a memory file: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// tail returns the last lines that the create child logged, for an error.
func tail(f *os.File) string {
	const most = 2048
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil || size == 0 {
		return ""
	}
	b := make([]byte, min(size, most))
	if _, err := f.ReadAt(b, size-int64(len(b))); err != nil {
		return ""
	}
	return "\n" + strings.TrimSpace(string(b))
}

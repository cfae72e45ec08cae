package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"caisson.dev/caisson/internal/host"
	"caisson.dev/caisson/internal/reexec"
)

// Spare is a create child that has started and waits to be told what to
// create. Its start takes as long as our own, so that a command that is going
// to need one starts it first of all.
type Spare struct {
	cmd  *exec.Cmd
	req  *os.File // we write one request
	res  *os.File // we read one answer
	logs *os.File // what the library logged, for errors
	once sync.Once
}

// StartSpare starts a create child in namespaces of its own. It dies with the
// process that called this, whatever becomes of it.
func StartSpare() (*Spare, error) {
	logs, err := memfd("gvisor-log")
	if err != nil {
		return nil, err
	}
	reqR, reqW, err := os.Pipe()
	if err != nil {
		logs.Close()
		return nil, err
	}
	defer reqR.Close()
	resR, resW, err := os.Pipe()
	if err != nil {
		logs.Close()
		reqW.Close()
		return nil, err
	}
	defer resW.Close()
	cmd := reexec.Command(createMode)
	cmd.Stderr = logs
	cmd.ExtraFiles = []*os.File{reqR, resW}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWIPC,
		Pdeathsig:  unix.SIGKILL,
	}
	go warmCgroups()
	s := &Spare{cmd: cmd, req: reqW, res: resR, logs: logs}
	if err := startOnLastingThread(cmd); err != nil {
		s.closeFiles()
		return nil, fmt.Errorf("cannot start the create child: %w", err)
	}
	return s, nil
}

func warmCgroups() {
	if cgs, err := host.DetectCgroups(); err == nil {
		cgs.Warm()
	}
}

func (s *Spare) closeFiles() {
	for _, f := range []*os.File{s.req, s.res, s.logs} {
		f.Close()
	}
}

// Close ends a spare that was not used. One that was used belongs to its
// sandbox, and Close does nothing.
func (s *Spare) Close() {
	s.once.Do(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		s.closeFiles()
	})
}

// boot has a create child boot the sandbox kernel. The child is returned when
// it stays, as the holder of an attached sandbox.
func (d *Driver) boot(ctx context.Context, req createRequest) (*exec.Cmd, createResult, error) {
	s := d.Spare
	d.Spare = nil
	if s == nil {
		var err error
		if s, err = StartSpare(); err != nil {
			return nil, createResult{}, err
		}
	}
	used := false
	s.once.Do(func() { used = true })
	if !used {
		return nil, createResult{}, errors.New("cannot use a create child that was closed")
	}
	defer s.closeFiles()
	stop := context.AfterFunc(ctx, func() { _ = s.cmd.Process.Kill() })
	defer stop()
	res, err := s.ask(req)
	if err == nil && req.Spec.Attached {
		return s.cmd, res, nil
	}
	if err != nil {
		_ = s.cmd.Process.Kill()
	}
	_ = s.cmd.Wait()
	switch {
	case err == nil:
		return nil, res, nil
	case ctx.Err() != nil:
		return nil, res, ctx.Err()
	}
	return nil, res, fmt.Errorf("%w%s", err, tail(s.logs))
}

// ask sends the request, which carries the guest's token and therefore is on
// no disk and in no argument list, and waits for the answer.
func (s *Spare) ask(req createRequest) (createResult, error) {
	if err := json.NewEncoder(s.req).Encode(req); err != nil {
		return createResult{}, fmt.Errorf("cannot send the create request: %w", err)
	}
	s.req.Close()
	return readResult(s.res)
}

// startOnLastingThread starts cmd on a thread that lives as long as cmd does:
// the kernel sends a parent-death signal when the starting *thread* ends.
func startOnLastingThread(cmd *exec.Cmd) error {
	started := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // not unlocked before the child is gone
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			waitNoReap(cmd.Process.Pid)
		}
	}()
	return <-started
}

// waitNoReap blocks until pid has ended and leaves its status for its waiter.
func waitNoReap(pid int) {
	var info unix.Siginfo
	for unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
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
	return withoutWarnings(string(b))
}

// withoutWarnings drops gVisor's advice to its own operators, which are not
// our users, and keeps what it died of.
func withoutWarnings(logs string) string {
	var kept strings.Builder
	for line := range strings.Lines(logs) {
		if line = strings.TrimSpace(line); line != "" && !warning.MatchString(line) {
			kept.WriteString("\n" + line)
		}
	}
	return kept.String()
}

var warning = regexp.MustCompile(`^[WID][0-9]{4} [0-9:.]+ `)

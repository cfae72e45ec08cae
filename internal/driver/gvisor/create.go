package gvisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/container"

	"caisson.dev/caisson/internal/driver"
	"caisson.dev/caisson/internal/host"
)

// createRequest goes from the driver to its create child on descriptor 3.
type createRequest struct {
	Spec     driver.Spec
	StateDir string // of this sandbox; the child stages mounts below it
	RootDir  string // gVisor's own state, shared by all sandboxes
	LogDir   string // gVisor's logs; empty for none
	Cgroup   string
	Slot     uint32
}

// createResult comes back on descriptor 4.
type createResult struct {
	SandboxPID    int
	GoferPID      int
	ControlSocket string
	Err           string
}

const maxResult = 64 << 10

// createMain is the create child: it stages the mounts in a mount namespace of
// its own, joins the sandbox's cgroup, and starts the sandbox kernel, which
// inherits all of it. It is a process of its own because gVisor donates the
// process-wide stdio to the guest, and so that a panic or a leaked descriptor
// in the library stays here.
func createMain() int {
	log.SetTarget(&log.GoogleEmitter{Writer: &log.Writer{Next: os.Stderr}})
	log.SetLevel(log.Warning)
	req, err := readRequest(os.NewFile(3, "request"))
	out := os.NewFile(4, "result")
	if errors.Is(err, io.EOF) {
		return 0 // a spare that nobody needed
	}
	if err != nil {
		return report(out, createResult{Err: err.Error()})
	}
	c, err := create(req)
	if err != nil {
		return report(out, createResult{Err: err.Error()})
	}
	res := createResult{SandboxPID: c.SandboxPid(), GoferPID: c.GoferPid.Load(), ControlSocket: c.Sandbox.ControlSocketPath}
	if code := report(out, res); code != 0 || !req.Spec.Attached {
		return code
	}
	debug.FreeOSMemory() // this process is charged to the sandbox from here on
	return hold(c.SandboxPid())
}

func readRequest(f *os.File) (createRequest, error) {
	defer f.Close()
	var req createRequest
	if err := json.NewDecoder(f).Decode(&req); err != nil {
		return req, fmt.Errorf("cannot read the create request: %w", err)
	}
	return req, nil
}

func report(f *os.File, r createResult) int {
	defer f.Close()
	if err := json.NewEncoder(f).Encode(r); err != nil || r.Err != "" {
		return 1
	}
	return 0
}

// hold waits for the sandbox kernel, whose parent we are. The kernel kills it
// when we die, and us when our parent dies (attached sandboxes only).
func hold(pid int) int {
	var ws unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &ws, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		return 0
	}
}

func create(req createRequest) (*container.Container, error) {
	// Joining takes the kernel some 10 ms (an RCU grace period), in which the
	// rest is prepared. Memory that this process has touched before stays
	// charged to our own cgroup; every process of the sandbox starts after it.
	joined := make(chan error, 1)
	go func() { joined <- joinCgroup(req.Cgroup) }()
	if err := host.LoopbackUp(); err != nil {
		return nil, err
	}
	stage, err := stageMounts(req)
	if err != nil {
		return nil, err
	}
	// From here on no process of this sandbox can leave a setuid file or a
	// device node on the host, whatever the layers above do.
	if err := host.InstallModeFilter(); err != nil {
		return nil, fmt.Errorf("cannot install the mode filter: %w", err)
	}
	bundle := filepath.Join(req.StateDir, bundleName(req.Spec.Limits))
	spec := buildSpec(req.Spec, stage, req.Slot)
	if err := writeBundle(bundle, spec); err != nil {
		return nil, err
	}
	conf, err := newConfig(req.RootDir, req.LogDir)
	if err != nil {
		return nil, err
	}
	if err := <-joined; err != nil {
		return nil, err
	}
	config, err := configPipe(req.Spec.GuestConfig)
	if err != nil {
		return nil, fmt.Errorf("cannot pass the guest's configuration: %w", err)
	}
	defer config.Close()
	c, err := container.New(conf, container.Args{
		ID: req.Spec.ID, Spec: spec, BundleDir: bundle, Attached: req.Spec.Attached,
		PassFiles: map[int]*os.File{guestConfigFD: config},
	})
	if err != nil {
		return nil, fmt.Errorf("cannot boot the sandbox kernel: %w", err)
	}
	if err := c.Start(conf); err != nil {
		_ = c.Destroy()
		return nil, fmt.Errorf("cannot start PID 1: %w", err)
	}
	return c, nil
}

func joinCgroup(name string) error {
	cgs, err := host.DetectCgroups()
	if err != nil {
		return err
	}
	g, err := cgs.Open(name)
	if err != nil {
		return err
	}
	defer g.Close()
	if err := g.Join(); err != nil {
		return err
	}
	return g.Verify(os.Getpid())
}

// readResult reads what the child said; a child that died says nothing.
func readResult(r io.Reader) (createResult, error) {
	var res createResult
	if err := json.NewDecoder(io.LimitReader(r, maxResult)).Decode(&res); err != nil {
		return res, fmt.Errorf("the create child ended without an answer")
	}
	if res.Err != "" {
		return res, errors.New(res.Err)
	}
	return res, nil
}

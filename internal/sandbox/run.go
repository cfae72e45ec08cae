package sandbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/driver"
	"caisson.dev/caisson/internal/guest"
	"caisson.dev/caisson/internal/guest/attach"
)

// Run makes a sandbox, runs one program in it and destroys it. The error is
// for a sandbox that could not be made or a program that could not be started;
// everything later is in the result. Ending ctx stops the program first.
func Run(ctx context.Context, cfg Config, req api.RunRequest) (*api.RunResult, error) {
	req.Limits = req.Limits.WithDefaults()
	if err := req.Limits.Validate(); err != nil {
		return nil, err
	}
	p, err := newPlan(cfg, req)
	if err != nil {
		return nil, err
	}
	lock, err := claim(cfg.RunDir, p.id)
	if err != nil {
		return nil, fmt.Errorf("cannot claim an id: %w", err)
	}
	release := lock.Unlock // keeps the mark for the next start to clean up by
	defer func() { _ = release() }()
	attached := startAttach(p.task, cfg.Stdio)
	in, err := cfg.Driver.Create(ctx, p.spec)
	a := <-attached
	defer a.close()
	if err != nil {
		release = lock.UnlockRemove // Create leaves nothing behind
		return nil, &api.Error{Code: "create_failed", Message: "cannot create the sandbox: " + err.Error(), Hint: "see what this machine lacks with: caisson run --probe", Err: err}
	}
	defer func() {
		go a.close() // while the kernel takes the sandbox down
		if in.Kill() == nil {
			release = lock.UnlockRemove
		}
	}()
	if a.err != nil {
		return nil, a.err
	}
	file, err := dialGuest(ctx, in)
	if err != nil {
		return nil, err
	}
	if err := a.session.Connect(file); err != nil {
		return nil, fmt.Errorf("cannot reach the attach child: %w", err)
	}
	if file, err = in.Dial(ctx, guest.Port); err != nil {
		return nil, fmt.Errorf("cannot connect to the guest program: %w", err)
	}
	if err := a.session.Connect(file); err != nil {
		return nil, fmt.Errorf("cannot reach the attach child: %w", err)
	}
	r := newRun(cfg, req, p, a.session, in)
	if err := r.supervise(ctx); err != nil {
		return nil, err
	}
	return r.result(), nil
}

// attaching is an attach child, or why there is none.
type attaching struct {
	session *attach.Session
	err     error
}

func (a attaching) close() {
	if a.session != nil {
		a.session.Close()
	}
}

// startAttach starts the attach child while the sandbox kernel boots.
func startAttach(t attach.Task, stdio attach.Stdio) <-chan attaching {
	ch := make(chan attaching, 1)
	go func() {
		s, err := attach.Start(t, stdio, nil)
		ch <- attaching{s, err}
	}()
	return ch
}

// run is the state of one supervised program.
type run struct {
	cfg     Config
	req     api.RunRequest
	plan    plan
	session *attach.Session
	in      driver.Instance

	memory  memoryWatch
	beat    heartbeat
	started time.Time // zero until the program runs
	ended   time.Time
	out     *attach.Message // Ended
	end     end
	events  []string
	files   []api.ArtifactResult
	usage   driver.Usage

	killing     int              // kills asked for and not yet reported
	settle      <-chan time.Time // after the program's end: when to stop waiting for such a report
	kill        <-chan time.Time // after an interrupt: when patience ends
	interrupted bool
}

// end is why a run is over. The zero value is "not over".
type end struct {
	code   string
	reason string
}

func newRun(cfg Config, req api.RunRequest, p plan, s *attach.Session, in driver.Instance) *run {
	return &run{
		cfg: cfg, req: req, plan: p, session: s, in: in,
		memory: newMemoryWatch(p.spec.Limits.Memory),
	}
}

// startTimeout is for the guest program's part of a start, which takes some
// milliseconds where nothing is wrong.
const startTimeout = time.Minute

// settleTime bounds the wait for the name of what was killed for memory.
const settleTime = 500 * time.Millisecond

// interruptPatience is how long a program may take to end after Ctrl-C.
const interruptPatience = 3 * time.Second

// supervise waits for the end of the program and for everything that ends it.
// It is one loop on one goroutine: limits, signals and messages meet here.
func (r *run) supervise(ctx context.Context) error {
	gone := make(chan struct{})
	waitCtx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() {
		if r.in.Wait(waitCtx) == nil {
			close(gone)
		}
	}()
	wall := time.NewTimer(startTimeout)
	tick := time.NewTimer(time.Hour)
	defer wall.Stop()
	defer tick.Stop()
	interrupt := ctx.Done()
	for r.end == (end{}) {
		tick.Reset(r.nextCheck())
		select {
		case m, ok := <-r.session.Messages():
			if err := r.message(m, ok, wall); err != nil {
				return err
			}
		case <-r.in.MemoryEvents():
			r.check()
		case <-tick.C:
			r.check()
		case <-wall.C:
			if r.started.IsZero() {
				return fmt.Errorf("the program did not start within %v", startTimeout)
			}
			r.end = end{api.EndWall, "wall clock limit " + r.req.Limits.Wall.String()}
		case <-gone:
			r.lost()
		case size := <-r.cfg.Terminal.Resized:
			_ = r.session.Send(attach.Message{Kind: attach.Resize, A: int64(size[0]), B: int64(size[1])})
		case <-interrupt:
			interrupt = nil
			r.interrupt()
		case <-r.settle:
			r.end = r.programEnd(*r.out)
		case <-r.kill:
			r.end = end{api.EndInterrupt, "interrupted; the program did not end by itself"}
		}
	}
	r.finish(ctx, gone)
	return nil
}

// interrupt passes the wish to stop on to the program, once.
func (r *run) interrupt() {
	r.interrupted = true
	r.kill = time.After(interruptPatience)
	if !r.started.IsZero() { // else it is told as soon as it has
		r.tellInterrupt()
	}
}

func (r *run) tellInterrupt() {
	_ = r.session.Send(attach.Message{Kind: attach.Signal, Num: int32(syscall.SIGINT)})
}

// message handles what the attach child says. An error is a program that did
// not start.
func (r *run) message(m attach.Message, ok bool, wall *time.Timer) error {
	if !ok {
		r.end = end{api.EndGuestLost, "the process that carries the program's streams ended"}
		return nil
	}
	switch m.Kind {
	case attach.Started:
		r.started = time.Now()
		if r.interrupted {
			r.tellInterrupt()
		}
		wall.Reset(r.req.Limits.Wall)
	case attach.Ended:
		r.ended = time.Now()
		r.out = &m
		if r.killing == 0 {
			r.end = r.programEnd(m)
			break
		}
		// The report of what was killed for memory is on its way.
		r.settle = time.After(settleTime)
	case attach.Pong:
		if u, err := r.in.Usage(); err == nil {
			r.usage = u
		}
		r.beat.answered(r.usage.CPU)
	case attach.Killed:
		r.killed(m)
		if r.out != nil {
			r.end = r.programEnd(*r.out)
		}
	case attach.Closed:
		if m.Text != "" {
			r.end = end{api.EndError, "cannot write the program's output: " + m.Text}
			break
		}
		r.end = end{api.EndSignaled, "the reader of its output went away"}
		r.out = &attach.Message{A: int64(syscall.SIGPIPE)}
	case attach.Failed:
		return r.failed(m)
	}
	return nil
}

// programEnd names the reason of an ordinary end. A program that was killed
// for memory is told so, since signal 9 alone explains nothing.
func (r *run) programEnd(m attach.Message) end {
	if m.A == 0 {
		return end{api.EndExited, fmt.Sprintf("exited with code %d", m.Num)}
	}
	if len(r.events) > 0 && m.A == int64(syscall.SIGKILL) {
		return end{api.EndMemory, r.events[len(r.events)-1]}
	}
	return end{api.EndSignaled, "ended by signal: " + syscall.Signal(m.A).String()}
}

// failed handles a program that could not be started or a guest that broke.
func (r *run) failed(m attach.Message) error {
	if m.Num == attach.FailStart && r.started.IsZero() {
		return &api.Error{Code: "cannot_start", Message: fmt.Sprintf("cannot start %q in image %s: %s", r.plan.task.Cmd, r.cfg.Image.Name, m.Text), Hint: r.startHint(m.Text)}
	}
	gone := r.in.Wait(shortly()) == nil // else its death would look like a broken protocol
	if !r.started.IsZero() {
		if gone {
			r.lost()
		} else {
			r.end = end{api.EndGuestLost, "the guest program broke its protocol: " + m.Text}
		}
		return nil
	}
	if gone {
		r.lost()
		return errors.New(r.end.reason)
	}
	return fmt.Errorf("cannot start %q: %s", r.plan.task.Cmd, m.Text)
}

// startHint goes by the guest's words, which decide about nothing but a hint.
func (r *run) startHint(why string) string {
	switch {
	case strings.Contains(why, "cwd "):
		return "the directory of --workdir must be in the image or in a mount"
	case strings.Contains(why, "permission denied"):
		return "it must be an executable file that the user inside may run; --user root is root inside only"
	case strings.Contains(why, "too many open files"):
		return "raise --nofile"
	case r.req.Script != nil:
		return fmt.Sprintf("the image must have %s; try --image debian:bookworm,%s", r.plan.task.Cmd, debianPackage(r.req.Script.Lang))
	}
	return "the program must be in the image; see what is there with: caisson run -- ls /usr/bin"
}

func debianPackage(lang string) string {
	return map[string]string{"python": "python3", "node": "nodejs", "bash": "bash"}[lang]
}

// lost says why a sandbox ended that nobody had asked to end.
func (r *run) lost() {
	r.usage, _ = r.in.Usage()
	if r.usage.OOMKills > 0 {
		r.end = end{api.EndMemory, fmt.Sprintf("memory limit %s: the host killed the sandbox", api.Bytes(r.req.Limits.Memory))}
		return
	}
	r.end = end{api.EndGuestLost, "the sandbox ended unasked: its kernel or its PID 1 is gone"}
}

// finish takes the last measurements and what the run leaves behind.
func (r *run) finish(ctx context.Context, gone <-chan struct{}) {
	if r.ended.IsZero() {
		r.ended = time.Now()
	}
	if r.out != nil && len(r.req.Artifacts) > 0 {
		r.collect(ctx, gone)
	}
	if u, err := r.in.Usage(); err == nil {
		r.usage = u
	}
}

func (r *run) result() *api.RunResult {
	res := &api.RunResult{
		ID: r.plan.id, Level: r.cfg.Driver.Level(), Image: r.cfg.Image.Name, Digest: r.cfg.Image.Digest,
		Reason: r.end.reason, Code: r.end.code, Events: r.events, Artifacts: r.files, Limits: r.req.Limits,
	}
	res.ExitCode, res.Signal = r.exit()
	res.Stdout, res.Stderr = &api.Output{}, &api.Output{}
	if r.out != nil { // else nobody counted; what was kept is still there
		res.Stdout.Bytes, res.Stderr.Bytes = r.out.B, r.out.C
	}
	for _, o := range []*api.Output{res.Stdout, res.Stderr} {
		o.Kept = min(o.Bytes, r.req.Limits.Output)
		o.Truncated = o.Bytes > o.Kept
	}
	began := cmp.Or(r.cfg.Began, r.started)
	res.Usage = api.RunUsage{
		Total: time.Since(began), Startup: r.started.Sub(began), Run: r.ended.Sub(r.started),
		CPU: r.usage.CPU, MemoryPeak: r.usage.MemoryPeak,
	}
	return res
}

// exit returns the code of the command: the program's own where it has one.
func (r *run) exit() (code int, signal string) {
	if r.out != nil {
		if r.out.A != 0 {
			return 128 + int(r.out.A), syscall.Signal(r.out.A).String()
		}
		return int(r.out.Num), ""
	}
	switch r.end.code {
	case api.EndWall, api.EndCPU, api.EndMemory:
		return api.ExitLimit, ""
	case api.EndInterrupt:
		return api.ExitInterrupt, ""
	case api.EndGuestLost:
		return api.ExitLost, ""
	}
	return api.ExitInternal, ""
}

// shortly is how long a sandbox kernel takes to be seen as gone after its
// connection broke.
func shortly() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	context.AfterFunc(ctx, cancel)
	return ctx
}

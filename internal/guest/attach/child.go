package attach

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"caisson.dev/caisson/internal/guest/process"
	"caisson.dev/caisson/internal/host"
	"caisson.dev/caisson/internal/reexec"
)

// Mode is the name of the child mode.
const Mode = "attach"

func init() { reexec.Register(Mode, childMain) }

// Descriptors of the child, after stdio.
const (
	fdConn = 3 + iota
	fdTask
	fdArtifacts
)

func childMain() int {
	if err := host.EnterJail(host.ProfilePure); err != nil {
		fmt.Fprintln(os.Stderr, "caisson: error:", err)
		return 125
	}
	signal.Ignore(syscall.SIGPIPE) // a gone reader is an error of write, not our end
	conn, err := OpenConn(fdConn)
	if err != nil {
		return 125
	}
	task, err := readTask(os.NewFile(fdTask, "task"))
	if err != nil {
		_ = conn.Send(Message{Kind: Failed, Num: FailInternal, Text: err.Error()}, nil)
		return 125
	}
	c := &child{conn: conn, task: task, artifacts: os.NewFile(fdArtifacts, "artifacts")}
	if err := c.run(); err != nil {
		_ = conn.Send(Message{Kind: Failed, Num: failCode(err), Text: err.Error()}, nil)
		return 1
	}
	return 0
}

// child is the state of the attach process.
type child struct {
	conn      *Conn
	task      Task
	artifacts *os.File
	guest     *client
	pid       uint32
}

// startError is a program that the guest refused to start; its text is for
// the user.
type startError struct{ text string }

func (e startError) Error() string { return e.text }

func failCode(err error) int32 {
	var se startError
	if errors.As(err, &se) {
		return FailStart
	}
	return FailGuest
}

// run waits for the guest connection, starts the process, and then serves the
// parent until it closes the conversation.
func (c *child) run() error {
	output, control := make(chan net.Conn, 1), make(chan net.Conn, 1)
	c.guest = newClient(output, control, c.task.Token)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := c.receiveConn(output); err != nil {
		return err
	}
	go func() {
		err := c.prepare(ctx)
		if err == nil {
			err = c.stream(ctx)
		}
		if err != nil {
			_ = c.conn.Send(Message{Kind: Failed, Num: failCode(err), Text: err.Error()}, nil)
		}
	}()
	if err := c.receiveConn(control); err != nil {
		return err
	}
	// The guest program closes connections on which nobody shows the token
	// soon, and there is no other to be had.
	go c.guest.hello(ctx)
	return c.serve(ctx)
}

// receiveConn takes a connection into the guest from the parent.
func (c *child) receiveConn(to chan<- net.Conn) error {
	defer close(to)
	m, file, err := c.conn.Receive()
	if err != nil {
		return nil // the parent gave up before the guest was there
	}
	if m.Kind != Connect || file == nil {
		return errors.New("expected a guest connection")
	}
	nc, err := net.FileConn(file)
	file.Close()
	if err != nil {
		return fmt.Errorf("cannot use the guest connection: %w", err)
	}
	to <- nc
	return nil
}

// prepare hands over the files of the task.
func (c *child) prepare(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for _, f := range c.task.Files {
		if err := c.guest.upload(ctx, f, c.task.User); err != nil {
			return err
		}
	}
	return nil
}

// stream starts the process and copies its output until it ends.
func (c *child) stream(ctx context.Context) error {
	events, err := c.guest.start(ctx, c.task)
	if err != nil {
		return startFailure(err)
	}
	defer events.Close()
	out := output{w: os.Stdout, max: c.task.Output}
	errs := output{w: os.Stderr, max: c.task.Output}
	for events.Receive() {
		switch ev := events.Msg().GetEvent().GetEvent().(type) {
		case *process.ProcessEvent_Start:
			c.started(ctx, ev.Start.GetPid())
		case *process.ProcessEvent_Data:
			c.data(ev.Data, &out, &errs)
		case *process.ProcessEvent_End:
			return c.conn.Send(ended(ev.End, out.bytes, errs.bytes), nil)
		}
	}
	if err := events.Err(); err != nil {
		return startFailure(err)
	}
	return errors.New("the guest closed the stream before the program ended")
}

func startFailure(err error) error {
	var ce *connect.Error
	if errors.As(err, &ce) {
		switch ce.Code() {
		case connect.CodeInvalidArgument, connect.CodeUnauthenticated, connect.CodeNotFound, connect.CodePermissionDenied:
			return startError{ce.Message()}
		}
	}
	return err
}

func (c *child) started(ctx context.Context, pid uint32) {
	c.pid = pid
	_ = c.conn.Send(Message{Kind: Started, A: int64(pid)}, nil)
	if c.task.Stdin {
		go c.copyStdin(ctx, pid)
	}
}

func (c *child) data(d *process.ProcessEvent_DataEvent, out, errs *output) {
	var err error
	switch o := d.GetOutput().(type) {
	case *process.ProcessEvent_DataEvent_Stdout:
		err = out.write(o.Stdout)
	case *process.ProcessEvent_DataEvent_Pty:
		err = out.write(o.Pty)
	case *process.ProcessEvent_DataEvent_Stderr:
		err = errs.write(o.Stderr)
	}
	switch {
	case errors.Is(err, syscall.EPIPE):
		_ = c.conn.Send(Message{Kind: Closed}, nil)
	case err != nil:
		_ = c.conn.Send(Message{Kind: Closed, Text: err.Error()}, nil)
	}
}

func ended(e *process.ProcessEvent_EndEvent, out, errs int64) Message {
	m := Message{Kind: Ended, Num: e.GetExitCode(), B: out, C: errs}
	if !e.GetExited() {
		m.A = signalNumber(e.GetStatus())
	}
	return m
}

// serve answers the parent until it goes away.
func (c *child) serve(ctx context.Context) error {
	for {
		m, file, err := c.conn.Receive()
		if file != nil {
			file.Close()
		}
		if err != nil {
			return nil
		}
		go c.handle(ctx, m)
	}
}

func (c *child) handle(ctx context.Context, m Message) {
	switch m.Kind {
	case Signal:
		_ = c.guest.signal(ctx, c.pid, m.Num)
	case Resize:
		_ = c.guest.resize(ctx, c.pid, uint32(m.A), uint32(m.B))
	case Ping:
		if c.guest.health(ctx) == nil {
			_ = c.conn.Send(Message{Kind: Pong}, nil)
		}
	case KillBig:
		_ = c.conn.Send(c.guest.killLargest(ctx), nil)
	case Stop:
		done := Message{Kind: Stopped}
		if _, err := c.guest.call(ctx, http.MethodPost, "/caisson/stop", nil); err != nil {
			done.Text = err.Error()
		}
		_ = c.conn.Send(done, nil)
	case Artifact:
		end := Message{Kind: ArtifactEnd, A: m.A}
		if err := c.collect(ctx, m.A); err != nil {
			end.Text = err.Error()
		}
		_ = c.conn.Send(end, nil)
	}
}

// copyStdin sends our stdin on, one chunk at a time: the next is read when
// the guest has taken the last.
func (c *child) copyStdin(ctx context.Context, pid uint32) {
	buf := make([]byte, 32<<10)
	for {
		n, err := os.Stdin.Read(buf)
		if n > 0 && c.guest.input(ctx, pid, buf[:n], c.task.TTY) != nil {
			return
		}
		if err != nil {
			if errors.Is(err, io.EOF) && !c.task.TTY {
				_ = c.guest.closeStdin(ctx, pid)
			}
			return
		}
	}
}

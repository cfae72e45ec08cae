package main

import (
	"context"
	"errors"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"caisson.dev/caisson/internal/guest/process"
)

// Sizes of one data event. E2B's clients see the same.
const (
	pipeChunk = 64 << 10
	ttyChunk  = 16 << 10
)

// killGrace is how long the streams of a killed process are still read: a
// descendant that left its group may hold them open for ever.
const killGrace = 100 * time.Millisecond

// proc is a process that we started, its streams and who listens to them.
type proc struct {
	child
	info *process.ProcessInfo
	done chan struct{} // closed when it is dead and its output is read
	stop *time.Timer   // the caller's deadline, or nil

	// untilExit: the streams end with the process, whoever else holds them.
	// Otherwise they end when the last holder has closed them, as E2B's do.
	untilExit bool

	input chan struct{} // held by the one who writes to stdin or the terminal

	mu       sync.Mutex
	subs     map[*subscriber]struct{}
	status   syscall.WaitStatus
	dead     bool // reaped; streams may still be read
	killed   bool // on request
	timedOut bool
	noInput  bool
}

func newProc(info *process.ProcessInfo) *proc {
	return &proc{info: info, done: make(chan struct{}), input: make(chan struct{}, 1), subs: map[*subscriber]struct{}{}}
}

// subscriber is one stream to a client. A process waits for the slowest of
// them, so that nobody has to buffer; once none is left, output is discarded
// and the process never waits.
type subscriber struct {
	events chan event
	gone   chan struct{}
}

// event is lent to a subscriber until it says ack: data points into the
// reader's buffer.
type event struct {
	data *process.ProcessEvent_DataEvent
	ack  chan<- struct{}
}

func (p *proc) subscribe() (*subscriber, func()) {
	s := &subscriber{events: make(chan event), gone: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.subs[s] = struct{}{}
	return s, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.subs, s)
		close(s.gone)
	}
}

// publish hands data to every subscriber and returns when all have sent it.
func (p *proc) publish(data *process.ProcessEvent_DataEvent, ack chan struct{}) {
	p.mu.Lock()
	subs := make([]*subscriber, 0, len(p.subs))
	for s := range p.subs {
		subs = append(subs, s)
	}
	p.mu.Unlock()
	for _, s := range subs {
		select {
		case s.events <- event{data, ack}:
		case <-s.gone:
			continue
		}
		// The subscriber may go instead of saying ack, or do both.
		select {
		case <-ack:
		case <-s.gone:
			select {
			case <-ack:
			default:
			}
		}
	}
}

// run reads the streams to their end and returns when the process is dead as
// well. exited tells the death.
func (p *proc) run(exited <-chan struct{}) {
	var wg sync.WaitGroup
	if p.tty != nil {
		wg.Go(func() { p.pump(p.tty, ttyChunk, wrapTTY) })
	} else {
		wg.Go(func() { p.pump(p.out, pipeChunk, wrapStdout) })
		wg.Go(func() { p.pump(p.err, pipeChunk, wrapStderr) })
	}
	<-exited
	p.mu.Lock()
	killed := p.killed
	p.mu.Unlock()
	switch {
	case killed:
		p.cutOutput()
	case p.untilExit:
		p.endOutput()
	}
	wg.Wait()
	if p.stop != nil {
		p.stop.Stop()
	}
	p.closeInput()
	p.child.close()
}

func (p *proc) cutOutput() {
	for _, f := range []*os.File{p.out, p.err, p.tty} {
		if f != nil {
			f.SetReadDeadline(time.Now().Add(killGrace))
		}
	}
}

// endOutput ends the pumps after what is in the streams now.
func (p *proc) endOutput() {
	for _, f := range []*os.File{p.out, p.err, p.tty} {
		if f != nil {
			f.SetReadDeadline(time.Unix(1, 0))
		}
	}
}

func wrapStdout(b []byte) *process.ProcessEvent_DataEvent {
	return &process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Stdout{Stdout: b}}
}

func wrapStderr(b []byte) *process.ProcessEvent_DataEvent {
	return &process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Stderr{Stderr: b}}
}

func wrapTTY(b []byte) *process.ProcessEvent_DataEvent {
	return &process.ProcessEvent_DataEvent{Output: &process.ProcessEvent_DataEvent_Pty{Pty: b}}
}

// chunks are kept between processes: a buffer for each stream of each of a
// hundred idle shells would be 6 MB. A stream takes one when it has data.
var chunks = sync.Pool{New: func() any { return new([pipeChunk]byte) }}

func (p *proc) pump(f *os.File, size int, wrap func([]byte) *process.ProcessEvent_DataEvent) {
	raw, err := f.SyscallConn()
	if err != nil {
		return
	}
	ack := make(chan struct{}, 1)
	for {
		var n int
		var rerr error
		var buf *[pipeChunk]byte
		err := raw.Read(func(fd uintptr) bool {
			buf = chunks.Get().(*[pipeChunk]byte)
			n, rerr = unix.Read(int(fd), buf[:size])
			if rerr == unix.EAGAIN {
				chunks.Put(buf)
				return false
			}
			return true
		})
		if errors.Is(err, os.ErrDeadlineExceeded) && p.untilExit {
			p.drain(raw, size, wrap, ack)
		}
		// EIO: the last process has closed its side of the terminal.
		if err != nil {
			return
		}
		if n > 0 {
			p.publish(wrap(buf[:n]), ack)
		}
		chunks.Put(buf)
		if rerr != unix.EINTR && n <= 0 {
			return
		}
	}
}

// drain passes on what a stream holds at this moment. A descendant that goes on
// writing adds nothing, and a client that reads slowly loses nothing.
func (p *proc) drain(raw syscall.RawConn, size int, wrap func([]byte) *process.ProcessEvent_DataEvent, ack chan struct{}) {
	buf := chunks.Get().(*[pipeChunk]byte)
	defer chunks.Put(buf)
	left := 0
	raw.Control(func(fd uintptr) { left, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	for left > 0 {
		n := 0
		raw.Control(func(fd uintptr) { n, _ = unix.Read(int(fd), buf[:min(size, left)]) })
		if n <= 0 {
			return
		}
		left -= n
		p.publish(wrap(buf[:n]), ack)
	}
}

var (
	errNoInput   = errors.New("process has no open stdin")
	errTTYInput  = errors.New("process has a terminal, not a stdin")
	errPipeInput = errors.New("process has no terminal")
	errEnded     = errors.New("process has ended")
)

// write sends input and returns when the process has taken all of it.
func (p *proc) write(ctx context.Context, b []byte, tty bool) error {
	f := p.stdin
	switch {
	case tty && p.tty == nil:
		return errPipeInput
	case !tty && p.tty != nil:
		return errTTYInput
	case tty:
		f = p.tty
	}
	select {
	case p.input <- struct{}{}:
		defer func() { <-p.input }()
	case <-ctx.Done():
		return ctx.Err()
	}
	p.mu.Lock()
	closed := p.noInput
	p.mu.Unlock()
	if f == nil || closed {
		return errNoInput
	}
	stop := context.AfterFunc(ctx, func() { f.SetWriteDeadline(time.Unix(1, 0)) })
	_, err := f.Write(b)
	if !stop() {
		f.SetWriteDeadline(time.Time{})
		if err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			err = ctx.Err()
		}
	}
	return err
}

// closeStdin may be called more than once.
func (p *proc) closeStdin() error {
	if p.tty != nil {
		return errTTYInput
	}
	p.closeInput()
	return nil
}

func (p *proc) closeInput() {
	p.mu.Lock()
	already := p.noInput
	p.noInput = true
	p.mu.Unlock()
	if p.stdin != nil && !already {
		p.stdin.Close() // ends a write that waits
	}
}

func (p *proc) resize(t ttySize) error {
	if p.tty == nil {
		return errPipeInput
	}
	raw, err := p.tty.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	if err := raw.Control(func(fd uintptr) { serr = t.apply(int(fd)) }); err != nil {
		return err
	}
	return serr
}

// signal goes to the whole process group: E2B's own clients ask for that,
// because what a shell started would otherwise live on.
func (p *proc) signal(sig syscall.Signal) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	select {
	case <-p.done:
		return errEnded // the number may be another group's by now
	default:
	}
	if sig == syscall.SIGKILL {
		p.killed = true
		if p.dead {
			p.cutOutput()
		}
	}
	err := syscall.Kill(-p.pid, sig)
	if errors.Is(err, syscall.ESRCH) {
		return nil // only its output is left
	}
	return err
}

func (p *proc) timeOut() {
	p.mu.Lock()
	p.timedOut = true
	p.mu.Unlock()
	p.signal(syscall.SIGKILL)
}

// end returns the last event. It may be called once done is closed.
func (p *proc) end() *process.ProcessEvent_EndEvent {
	p.mu.Lock()
	defer p.mu.Unlock()
	return endEvent(p.status)
}

// endEvent tells a wait status in the words of Go's os.ProcessState, which is
// what E2B's clients parse.
func endEvent(ws syscall.WaitStatus) *process.ProcessEvent_EndEvent {
	e := &process.ProcessEvent_EndEvent{ExitCode: -1}
	switch {
	case ws.Exited():
		e.Exited = true
		e.ExitCode = int32(ws.ExitStatus())
		e.Status = "exit status " + strconv.Itoa(ws.ExitStatus())
	case ws.Signaled():
		e.Status = "signal: " + ws.Signal().String()
	}
	if ws.CoreDump() {
		e.Status += " (core dumped)"
	}
	if !e.Exited || e.ExitCode != 0 {
		e.Error = &e.Status
	}
	return e
}

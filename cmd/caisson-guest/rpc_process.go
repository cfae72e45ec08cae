package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"connectrpc.com/connect"

	"caisson.dev/caisson/internal/guest"
	"caisson.dev/caisson/internal/guest/process"
)

// processService is E2B's process.Process.
type processService struct{ *box }

func (s processService) List(context.Context, *connect.Request[process.ListRequest]) (*connect.Response[process.ListResponse], error) {
	return connect.NewResponse(&process.ListResponse{Processes: s.procs.list()}), nil
}

// Start starts a process, whose life does not depend on the stream's: a client
// that goes away leaves it running. Only a deadline in the request kills it.
func (s processService) Start(ctx context.Context, req *connect.Request[process.StartRequest], stream *connect.ServerStream[process.StartResponse]) error {
	user, err := s.userOf(req.Header())
	if err != nil {
		return err
	}
	sp, err := s.resolve(user, req.Msg)
	if err != nil {
		return startError(err)
	}
	p := newProc(&process.ProcessInfo{Config: req.Msg.GetProcess(), Tag: req.Msg.Tag})
	p.untilExit = req.Header().Get(guest.UntilExitHeader) != ""
	sub, unsubscribe := p.subscribe()
	defer unsubscribe()
	err = s.spawn.start(sp, func(c *child) {
		p.child, p.info.Pid = *c, c.inner
		if at, ok := ctx.Deadline(); ok {
			p.stop = time.AfterFunc(time.Until(at), p.timeOut)
		}
		s.procs.add(p)
	})
	if err != nil {
		return startError(err)
	}
	return forward(ctx, p, sub, keepalive(req.Header()), func(e *process.ProcessEvent) error {
		return stream.Send(&process.StartResponse{Event: e})
	})
}

func (s processService) Connect(ctx context.Context, req *connect.Request[process.ConnectRequest], stream *connect.ServerStream[process.ConnectResponse]) error {
	p := s.procs.find(req.Msg.GetProcess(), true)
	if p == nil {
		return errNoProcess
	}
	sub, unsubscribe := p.subscribe()
	defer unsubscribe()
	return forward(ctx, p, sub, keepalive(req.Header()), func(e *process.ProcessEvent) error {
		return stream.Send(&process.ConnectResponse{Event: e})
	})
}

// forward carries events to one client until the process or the client ends.
func forward(ctx context.Context, p *proc, sub *subscriber, every time.Duration, send func(*process.ProcessEvent) error) error {
	start := &process.ProcessEvent_StartEvent{Pid: p.inner}
	if err := send(&process.ProcessEvent{Event: &process.ProcessEvent_Start{Start: start}}); err != nil {
		return err
	}
	silent := time.NewTimer(every)
	defer silent.Stop()
	for {
		var e process.ProcessEvent
		select {
		case ev := <-sub.events:
			e.Event = &process.ProcessEvent_Data{Data: ev.data}
			err := send(&e)
			ev.ack <- struct{}{}
			if err != nil {
				return err
			}
		case <-silent.C:
			e.Event = &process.ProcessEvent_Keepalive{Keepalive: &process.ProcessEvent_KeepAlive{}}
			if err := send(&e); err != nil {
				return err
			}
		case <-p.done:
			return sendEnd(p, send)
		case <-ctx.Done():
			return contextError(ctx.Err())
		}
		silent.Reset(every)
	}
}

func sendEnd(p *proc, send func(*process.ProcessEvent) error) error {
	p.mu.Lock()
	timedOut := p.timedOut
	p.mu.Unlock()
	if timedOut {
		return contextError(context.DeadlineExceeded)
	}
	return send(&process.ProcessEvent{Event: &process.ProcessEvent_End{End: p.end()}})
}

// keepalive returns how long a stream may be silent.
func keepalive(h http.Header) time.Duration {
	n, err := strconv.Atoi(h.Get("Keepalive-Ping-Interval"))
	if err != nil || n < 1 || n > 24*3600 {
		n = 90
	}
	return time.Duration(n) * time.Second
}

func (s processService) SendInput(ctx context.Context, req *connect.Request[process.SendInputRequest]) (*connect.Response[process.SendInputResponse], error) {
	p := s.procs.find(req.Msg.GetProcess(), false)
	if p == nil {
		return nil, errNoProcess
	}
	if err := sendInput(ctx, p, req.Msg.GetInput()); err != nil {
		return nil, err
	}
	return connect.NewResponse(&process.SendInputResponse{}), nil
}

func sendInput(ctx context.Context, p *proc, in *process.ProcessInput) error {
	var err error
	switch v := in.GetInput().(type) {
	case *process.ProcessInput_Stdin:
		err = p.write(ctx, v.Stdin, false)
	case *process.ProcessInput_Pty:
		err = p.write(ctx, v.Pty, true)
	default:
		return connect.NewError(connect.CodeUnimplemented, errors.New("no such kind of input"))
	}
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return contextError(err)
	default:
		return connect.NewError(connect.CodeInternal, err)
	}
}

func (s processService) StreamInput(ctx context.Context, stream *connect.ClientStream[process.StreamInputRequest]) (*connect.Response[process.StreamInputResponse], error) {
	var p *proc
	for stream.Receive() {
		switch v := stream.Msg().GetEvent().(type) {
		case *process.StreamInputRequest_Start:
			if p = s.procs.find(v.Start.GetProcess(), false); p == nil {
				return nil, errNoProcess
			}
		case *process.StreamInputRequest_Data:
			if p == nil {
				return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("input before a process was named"))
			}
			if err := sendInput(ctx, p, v.Data.GetInput()); err != nil {
				return nil, err
			}
		}
	}
	if err := stream.Err(); err != nil {
		return nil, err
	}
	return connect.NewResponse(&process.StreamInputResponse{}), nil
}

// SendSignal takes every signal number. The names that E2B's clients know are
// two of them.
func (s processService) SendSignal(_ context.Context, req *connect.Request[process.SendSignalRequest]) (*connect.Response[process.SendSignalResponse], error) {
	p := s.procs.find(req.Msg.GetProcess(), false)
	if p == nil {
		return nil, errNoProcess
	}
	n := req.Msg.GetSignal()
	if n < 1 || n > 31 {
		return nil, connect.NewError(connect.CodeUnimplemented, errors.New("no such signal"))
	}
	if err := p.signal(syscall.Signal(n)); err != nil {
		return nil, connect.NewError(connect.CodeInternal, err)
	}
	return connect.NewResponse(&process.SendSignalResponse{}), nil
}

func (s processService) CloseStdin(_ context.Context, req *connect.Request[process.CloseStdinRequest]) (*connect.Response[process.CloseStdinResponse], error) {
	p := s.procs.find(req.Msg.GetProcess(), false)
	if p == nil {
		return nil, errNoProcess
	}
	if err := p.closeStdin(); err != nil {
		return nil, connect.NewError(connect.CodeUnknown, err)
	}
	return connect.NewResponse(&process.CloseStdinResponse{}), nil
}

func (s processService) Update(_ context.Context, req *connect.Request[process.UpdateRequest]) (*connect.Response[process.UpdateResponse], error) {
	p := s.procs.find(req.Msg.GetProcess(), false)
	if p == nil {
		return nil, errNoProcess
	}
	if req.Msg.Pty != nil {
		if err := p.resize(*sizeOf(req.Msg.Pty)); err != nil {
			return nil, connect.NewError(connect.CodeInternal, err)
		}
	}
	return connect.NewResponse(&process.UpdateResponse{}), nil
}

var errNoProcess = connect.NewError(connect.CodeNotFound, errors.New("no such process"))

// startError gives a failed start the code that tells the client why.
func startError(err error) error {
	var refused *refusedError
	var missing *notFoundError
	code := connect.CodeInternal
	switch {
	case errors.As(err, &refused), errors.Is(err, syscall.ENOEXEC), errors.Is(err, syscall.E2BIG):
		code = connect.CodeInvalidArgument
	case errors.As(err, &missing), errors.Is(err, syscall.ENOENT):
		code = connect.CodeNotFound
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		code = connect.CodePermissionDenied
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM):
		code = connect.CodeResourceExhausted // the limit of tasks or of memory
	}
	return connect.NewError(code, fmt.Errorf("cannot start process: %w", err))
}

func contextError(err error) error {
	if errors.Is(err, context.DeadlineExceeded) {
		return connect.NewError(connect.CodeDeadlineExceeded, errors.New("the deadline of the request has passed"))
	}
	return connect.NewError(connect.CodeCanceled, errors.New("the request was cancelled"))
}

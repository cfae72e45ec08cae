package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"caisson.dev/caisson/internal/guest/process"
)

// Clients parse the words of Go's os.ProcessState: real processes are compared.
func TestEndEventSpeaksLikeGo(t *testing.T) {
	for script, want := range map[string]int32{"true": 0, "exit 3": 3, "kill -9 $$": -1, "kill -15 $$": -1} {
		cmd := exec.Command("/bin/sh", "-c", script)
		cmd.Run()
		e := endEvent(cmd.ProcessState.Sys().(syscall.WaitStatus))
		if e.Status != cmd.ProcessState.String() || e.ExitCode != want || e.Exited != cmd.ProcessState.Exited() {
			t.Errorf("%q: %v, want %d and %q", script, e, want, cmd.ProcessState)
		}
		if (e.Error == nil) != (want == 0) || e.Error != nil && *e.Error != e.Status {
			t.Errorf("%q: error %v", script, e.Error)
		}
	}
	if e := endEvent(syscall.WaitStatus(0x80 | 11)); e.Status != "signal: segmentation fault (core dumped)" {
		t.Errorf("status %q", e.Status)
	}
}

// pipeProc is a process whose streams are ours: out is its standard output,
// exit its death.
func pipeProc(t *testing.T) (p *proc, tab *table, out *os.File, exit func()) {
	t.Helper()
	p = newProc(&process.ProcessInfo{Pid: 7})
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	er, ew, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ew.Close()
	// A pid that cannot be: no test may signal a real process.
	p.child = child{pid: 1 << 30, inner: 7, out: r, err: er}
	tab = newTable()
	return p, tab, w, func() { tab.exited(p.pid, 0) }
}

// A descendant that holds a stream, and one that writes to it for ever, end
// neither the process late nor its output early, however slow the reader is.
func TestStreamsEndWithTheProcessWhenAsked(t *testing.T) {
	p, tab, out, exit := pipeProc(t)
	defer out.Close() // the descendant's end stays open
	p.untilExit = true
	sub, unsubscribe := p.subscribe()
	defer unsubscribe()
	tab.add(p)
	if _, err := out.Write(make([]byte, 60<<10)); err != nil {
		t.Fatal(err)
	}
	exit()
	go func() {
		for {
			if _, err := out.Write(make([]byte, 4<<10)); err != nil {
				return
			}
		}
	}()
	got, late := 0, time.After(10*time.Second)
	for {
		select {
		case ev := <-sub.events:
			got += len(ev.data.GetStdout())
			time.Sleep(200 * time.Millisecond)
			ev.ack <- struct{}{}
		case <-p.done:
			if got < 60<<10 || got > 1<<20 {
				t.Errorf("read %d bytes", got)
			}
			return
		case <-late:
			t.Fatal("the streams do not end")
		}
	}
}

func TestOutputWaitsForTheSlowestSubscriber(t *testing.T) {
	p, tab, out, exit := pipeProc(t)
	sub, unsubscribe := p.subscribe()
	defer unsubscribe()
	tab.add(p)
	written := make(chan int, 1)
	go func() {
		n := 0
		for range 64 {
			out.SetWriteDeadline(time.Now().Add(10 * time.Second))
			k, _ := out.Write(make([]byte, 32<<10))
			n += k
		}
		out.Close()
		exit()
		written <- n
	}()
	ev := <-sub.events // taken, not acknowledged: the process cannot go on
	select {
	case n := <-written:
		t.Fatalf("the process wrote %d bytes that nobody read", n)
	case <-sub.events:
		t.Fatal("a second event before the first was acknowledged")
	case <-time.After(50 * time.Millisecond): // long enough to fill a pipe
	}
	got := len(ev.data.GetStdout())
	ev.ack <- struct{}{}
	for {
		select {
		case ev := <-sub.events:
			got += len(ev.data.GetStdout())
			ev.ack <- struct{}{}
			continue
		case <-p.done:
		}
		break
	}
	if n := <-written; got != n {
		t.Errorf("%d bytes arrived before the end, %d were written", got, n)
	}
}

func TestOutputIsDiscardedOnceTheLastSubscriberIsGone(t *testing.T) {
	p, tab, out, exit := pipeProc(t)
	sub, unsubscribe := p.subscribe()
	tab.add(p)
	go func() {
		for range 64 {
			out.Write(make([]byte, 32<<10))
		}
		out.Close()
		exit()
	}()
	<-sub.events
	unsubscribe() // without an acknowledgement
	<-p.done
	if tab.find(&process.ProcessSelector{Selector: &process.ProcessSelector_Pid{Pid: 7}}, false) != nil {
		t.Error("an ended process is still found")
	}
	if tab.find(&process.ProcessSelector{Selector: &process.ProcessSelector_Pid{Pid: 7}}, true) != p {
		t.Error("the end of a process cannot be asked for")
	}
	if err := p.signal(syscall.SIGKILL); !errors.Is(err, errEnded) {
		t.Errorf("a signal after the end: %v", err)
	}
}

func TestForwardSendsStartDataEnd(t *testing.T) {
	p, tab, out, exit := pipeProc(t)
	sub, unsubscribe := p.subscribe()
	defer unsubscribe()
	tab.add(p)
	go func() {
		out.WriteString("hello")
		out.Close()
		exit()
	}()
	var got []string
	err := forward(t.Context(), p, sub, time.Hour, func(e *process.ProcessEvent) error {
		switch v := e.Event.(type) {
		case *process.ProcessEvent_Start:
			got = append(got, "start")
		case *process.ProcessEvent_Data:
			got = append(got, string(v.Data.GetStdout()))
		case *process.ProcessEvent_End:
			got = append(got, v.End.Status)
		}
		return nil
	})
	if want := "start hello exit status 0"; err != nil || strings.Join(got, " ") != want {
		t.Errorf("%q, %v, want %q", got, err, want)
	}
}

func TestWriteEndsWithItsRequest(t *testing.T) {
	p, _, _, _ := pipeProc(t)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	p.stdin = w
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := p.write(ctx, make([]byte, 1<<20), false); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a write that nobody reads: %v", err)
	}
	if err := p.write(t.Context(), nil, true); !errors.Is(err, errPipeInput) {
		t.Errorf("terminal input: %v", err)
	}
	for range 2 {
		if err := p.closeStdin(); err != nil {
			t.Error(err)
		}
	}
	if err := p.write(t.Context(), []byte("x"), false); !errors.Is(err, errNoInput) {
		t.Errorf("after close: %v", err)
	}
}

func TestEndsAreForgotten(t *testing.T) {
	tab := newTable()
	for range maxEnded + 10 {
		tab.finish(newProc(nil))
	}
	if len(tab.ended) != maxEnded {
		t.Errorf("%d ends are kept", len(tab.ended))
	}
}

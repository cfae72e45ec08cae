package attach

import (
	"fmt"
	"os"
	"os/exec"
	"sync"

	"caisson.dev/caisson/internal/host"
	"caisson.dev/caisson/internal/reexec"
)

// Stdio is where the streams of the process go. Nil is /dev/null.
type Stdio struct {
	In, Out, Err *os.File
}

// Session is the parent's side of one attach child.
type Session struct {
	conn      *Conn
	cmd       *exec.Cmd
	artifacts *os.File
	messages  chan Message
	closeOnce sync.Once
}

// Start starts the child. It can be called before the sandbox exists: the
// child then waits for Connect.
func Start(t Task, stdio Stdio, group *host.Cgroup) (*Session, error) {
	task, err := t.file()
	if err != nil {
		return nil, err
	}
	defer task.Close()
	conn, theirs, err := NewPair()
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	r, w, err := os.Pipe()
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("cannot make the artifact pipe: %w", err)
	}
	defer w.Close()
	jail := host.Jail{
		Argv0: reexec.Argv0(Mode), Files: []*os.File{theirs, task, w},
		Stdin: stdio.In, Stdout: stdio.Out, Stderr: stdio.Err, Cgroup: group,
	}
	cmd, err := jail.Start()
	if err != nil {
		conn.Close()
		r.Close()
		return nil, fmt.Errorf("cannot start the attach child: %w", err)
	}
	s := &Session{conn: conn, cmd: cmd, artifacts: r, messages: make(chan Message)}
	go s.receive()
	return s, nil
}

// receive hands on what the child says until it ends.
func (s *Session) receive() {
	defer close(s.messages)
	for {
		m, file, err := s.conn.Receive()
		if file != nil {
			file.Close() // the child has nothing to give us
		}
		if err != nil {
			return
		}
		s.messages <- m
	}
}

// Messages delivers what the child says; it is closed when the child ends.
// Somebody must read it until then.
func (s *Session) Messages() <-chan Message { return s.messages }

// Artifacts is the pipe on which artifact entries arrive.
func (s *Session) Artifacts() *os.File { return s.artifacts }

// Connect gives the child a connection into the guest, and closes file. It is
// called twice: the first carries the program's output, the second the rest.
func (s *Session) Connect(file *os.File) error {
	defer file.Close()
	return s.conn.Send(Message{Kind: Connect}, file)
}

// Send asks the child for something.
func (s *Session) Send(m Message) error { return s.conn.Send(m, nil) }

// Close ends the child and waits for it.
func (s *Session) Close() {
	s.closeOnce.Do(func() {
		_ = s.cmd.Process.Kill()
		s.artifacts.Close()
		for range s.messages {
		}
		_ = s.cmd.Wait()
		s.conn.Close()
	})
}

package cli

import (
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/term"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/daemon"
)

// streams are where the program's input comes from and its output goes: our
// own, or with --json two unnamed files that are read at the end.
type streams struct {
	stdio    daemon.Stdio
	terminal daemon.Terminal
	captured []*os.File
	raw      *term.State
	resize   chan os.Signal
}

func (c *runCmd) openStreams(g *Globals) (*streams, error) {
	s := &streams{stdio: daemon.Stdio{In: stdin(), Out: os.Stdout, Err: os.Stderr}}
	if g.JSON {
		if err := s.capture(); err != nil {
			return nil, err
		}
	}
	if c.TTY {
		if err := s.openTerminal(); err != nil {
			s.close()
			return nil, err
		}
	}
	return s, nil
}

// stdin returns our stdin, or nil where it is /dev/null or closed: a program
// then sees the same at once, without anybody copying nothing.
func stdin() *os.File {
	fi, err := os.Stdin.Stat()
	if err != nil {
		return nil
	}
	null, err := os.Stat(os.DevNull)
	if err == nil && os.SameFile(fi, null) {
		return nil
	}
	return os.Stdin
}

func (s *streams) capture() error {
	for _, p := range []**os.File{&s.stdio.Out, &s.stdio.Err} {
		f, err := os.CreateTemp("", "caisson-output-")
		if err != nil {
			return fmt.Errorf("cannot make a file for the output: %w", err)
		}
		_ = os.Remove(f.Name())
		*p = f
		s.captured = append(s.captured, f)
	}
	return nil
}

// openTerminal passes keys through unchanged; the program's terminal is the
// one that reacts to them.
func (s *streams) openTerminal() error {
	fd := int(os.Stdin.Fd())
	if !term.IsTerminal(fd) {
		return &api.Error{Code: "usage", Message: "-t needs a terminal as stdin", Hint: "leave -t out when input is piped"}
	}
	cols, rows, err := term.GetSize(fd)
	if err != nil {
		cols, rows = 80, 24
	}
	state, err := term.MakeRaw(fd)
	if err != nil {
		return fmt.Errorf("cannot set up the terminal: %w", err)
	}
	s.raw = state
	s.terminal = daemon.Terminal{Cols: uint32(cols), Rows: uint32(rows), Resized: s.watchSize(fd)}
	return nil
}

func (s *streams) watchSize(fd int) <-chan [2]uint32 {
	out := make(chan [2]uint32, 1)
	s.resize = make(chan os.Signal, 1)
	signal.Notify(s.resize, syscall.SIGWINCH)
	go func() {
		for range s.resize {
			if cols, rows, err := term.GetSize(fd); err == nil {
				select {
				case out <- [2]uint32{uint32(cols), uint32(rows)}:
				default:
				}
			}
		}
	}()
	return out
}

// restore gives the terminal back; it may be called twice.
func (s *streams) restore() {
	if s.raw != nil {
		_ = term.Restore(int(os.Stdin.Fd()), s.raw)
		s.raw = nil
	}
	if s.resize != nil {
		signal.Stop(s.resize)
		close(s.resize)
		s.resize = nil
	}
}

func (s *streams) close() {
	s.restore()
	for _, f := range s.captured {
		f.Close()
	}
}

func (s *streams) printJSON(w io.Writer, res *api.RunResult) error {
	for i, o := range []*api.Output{res.Stdout, res.Stderr} {
		if _, err := s.captured[i].Seek(0, io.SeekStart); err != nil {
			return fmt.Errorf("cannot read the output: %w", err)
		}
		b, err := io.ReadAll(s.captured[i])
		if err != nil {
			return fmt.Errorf("cannot read the output: %w", err)
		}
		fill(o, b, res.Limits.Output)
	}
	writeJSON(w, res)
	return nil
}

// Package script tests the command line as a user meets it. The files in
// testdata are also the documentation of its behaviour.
package script

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"caisson.dev/caisson/internal/cli"
	"caisson.dev/caisson/internal/guest/program"
	"caisson.dev/caisson/internal/host"
	"caisson.dev/caisson/internal/reexec"
	"caisson.dev/caisson/internal/testenv"
)

func TestMain(m *testing.M) {
	reexec.Dispatch()
	testscript.Main(checked{m}, map[string]func(){"caisson": caisson})
}

// checked runs the tests with the leak check around them.
type checked struct{ m *testing.M }

func (c checked) Run() int { return testenv.Run(c.m) }

func caisson() {
	if err := host.SealDescriptors(); err != nil {
		os.Exit(125)
	}
	os.Exit(cli.Main(os.Args[1:], time.Now()))
}

func TestScripts(t *testing.T) {
	_, _, err := program.Binary()
	testenv.NeedGuest(t, err)
	data := t.TempDir()
	testscript.Run(t, testscript.Params{
		Dir:  "testdata",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits},
		Setup: func(e *testscript.Env) error {
			e.Setenv("DATA", data)
			e.Setenv("HOME", e.WorkDir)
			return nil
		},
	})
}

// exits runs a command and wants that exit code: exits 120 caisson run …
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: exits CODE COMMAND…")
	}
	got := 0
	err := ts.Exec(args[1], args[2:]...)
	if ee := new(exec.ExitError); errors.As(err, &ee) {
		got = ee.ExitCode()
	} else if err != nil {
		ts.Fatalf("%v", err)
	}
	if strconv.Itoa(got) != args[0] {
		ts.Fatalf("exit code %d, want %s", got, args[0])
	}
}

// Package daemon is the composition root: it is the only place that knows
// which parts are wired to which. It holds no logic of its own beyond that
// wiring and the order of start and stop.
package daemon

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/driver"
	"caisson.dev/caisson/internal/driver/gvisor"
)

// Paths are where Caisson keeps things. Both are owned by root, mode 0700.
type Paths struct {
	Data string // images; survives a reboot
	Run  string // state of live sandboxes; does not
}

// DefaultPaths are used when nothing else is said.
var DefaultPaths = Paths{Data: "/var/lib/caisson", Run: "/run/caisson"}

// levels are the isolation levels by name, strongest first. Names without a
// constructor are planned; asking for one is an error and never gets another
// level (I3).
var levels = []struct {
	name string
	new  func(Paths, *Spare) driver.Driver
}{
	{"microvm", nil},
	{gvisor.Level, func(p Paths, s *Spare) driver.Driver { return &gvisor.Driver{RunDir: p.Run, Spare: s} }},
	{"oci", nil},
	{"process", nil},
	{"wasm", nil},
}

// Spare is a process that is started before it is known what for.
type Spare = gvisor.Spare

// StartSpare starts one for RunOptions.Spare. Without root there is none, and
// the run will say why.
func StartSpare() *Spare {
	if os.Geteuid() != 0 {
		return nil
	}
	s, err := gvisor.StartSpare()
	if err != nil {
		return nil // the run will try again and report it
	}
	return s
}

func newDriver(level string, p Paths, spare *Spare) (driver.Driver, error) {
	var have []string
	known := false
	for _, l := range levels {
		if l.new != nil {
			have = append(have, l.name)
		}
		if l.name != level {
			continue
		}
		if l.new != nil {
			return l.new(p, spare), nil
		}
		known = true
	}
	problem := "no such isolation level"
	if known {
		problem = "isolation level not built into this version"
	}
	return nil, &api.Error{
		Code:    "no_level",
		Message: fmt.Sprintf("%s: %q", problem, level),
		Hint:    "use --level " + strings.Join(have, " or --level ") + "; no other level is taken in its place",
	}
}

// notReady turns what a probe found into one error, or nil.
func notReady(level string, missing []driver.Missing) error {
	if len(missing) == 0 {
		return nil
	}
	var what, fix []string
	for _, m := range missing {
		what = append(what, m.What)
		fix = append(fix, m.Fix)
	}
	return &api.Error{
		Code:    "level_not_ready",
		Message: fmt.Sprintf("isolation level %q cannot run here: missing %s", level, strings.Join(what, "; ")),
		Hint:    strings.Join(slices.Compact(fix), "; "),
	}
}

// prepare makes the directories. They are refused when somebody else could
// have put something into them.
func (p Paths) prepare() error {
	for _, dir := range []string{p.Data, p.Run} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return &api.Error{Code: "no_data_dir", Message: fmt.Sprintf("cannot make %s: %v", dir, errText(err)), Hint: "run as root; or free space there", Err: err}
		}
		fi, err := os.Lstat(dir)
		if err != nil {
			return err
		}
		st, ok := fi.Sys().(*syscall.Stat_t)
		if !ok || !fi.IsDir() || fi.Mode().Perm()&0o022 != 0 || int(st.Uid) != os.Geteuid() {
			return &api.Error{Code: "no_data_dir", Message: fmt.Sprintf("%q is not a directory of this account that nobody else can write", dir), Hint: fmt.Sprintf("chown and chmod 0700 %s, or name another with --data", filepath.Clean(dir))}
		}
	}
	return nil
}

// errText drops the path that os errors repeat.
func errText(err error) string {
	if pe, ok := err.(*os.PathError); ok {
		return pe.Err.Error()
	}
	return err.Error()
}

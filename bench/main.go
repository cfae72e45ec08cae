// Command bench measures Caisson beside other tools on this machine, with the
// same root file system, in turns. It prints tables, keeps the raw rows in
// bench/results and the tables in bench/README.md, and judges nothing: no
// figure makes it fail.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// bench is what every measurement needs to know.
type bench struct {
	rounds  int
	dir     string // bench/out, absolute
	results string // bench/results
	suite   string
	machine machine
	tables  []string // markdown
	skipped []string
}

func main() {
	rounds := flag.Int("rounds", 20, "runs of each tool in run-cold")
	only := flag.String("only", "", "measure only these, separated by commas: cold, idle, init, overlay")
	flag.Parse()
	if err := run(*rounds, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(rounds int, only string) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("needs root, as sandboxes do")
	}
	b, err := newBench(rounds)
	if err != nil {
		return err
	}
	stop := make(chan os.Signal, 1)
	signal.Notify(stop, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-stop
		b.unmount()
		os.Exit(130)
	}()
	defer b.unmount()
	if err := b.prepare(); err != nil {
		return err
	}
	for _, m := range []struct {
		name    string
		measure func() error
	}{{"cold", b.cold}, {"idle", b.idle}, {"init", b.inits}, {"overlay", b.overlay}} {
		if only != "" && !strings.Contains(","+only+",", ","+m.name+",") {
			continue
		}
		if err := m.measure(); err != nil {
			b.skip("%s: %v", m.name, err)
		}
	}
	return b.report(only == "")
}

func newBench(rounds int) (*bench, error) {
	dir, err := filepath.Abs("bench/out")
	if err != nil {
		return nil, err
	}
	m, err := readMachine()
	if err != nil {
		return nil, err
	}
	return &bench{rounds: rounds, dir: dir, results: "bench/results", suite: m.suite, machine: m}, nil
}

// path names something in the work directory. Its entries start with a dot so
// that the go command and our own tests do not walk through a whole Debian.
func (b *bench) path(name string) string { return filepath.Join(b.dir, "."+name) }

func (b *bench) skip(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	fmt.Println("skipped:", s)
	b.skipped = append(b.skipped, s)
}

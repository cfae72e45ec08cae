// Command demo prints the result of `caisson run --json` for people: what the
// program wrote, or a summary. It exists so that the demo needs nothing but
// Go on the host.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"
)

// result is the part of the JSON that the demo shows.
type result struct {
	Level  string
	Reason string
	Events []string
	Stdout struct{ Data string }
	Stderr struct{ Data string }
	Usage  struct {
		Total   time.Duration `json:"total_ns"`
		Startup time.Duration `json:"startup_ns"`
		CPU     time.Duration `json:"cpu_ns"`
		Peak    int64         `json:"memory_peak_bytes"`
	}
	Limits struct {
		CPU     float64
		Memory  int64
		Pids    int64
		Disk    int64
		CPUTime time.Duration `json:"cpu_time_ns"`
		Wall    time.Duration
	}
	Error *struct{ Message, Hint string }
}

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: show output|summary FILE")
	}
	b, err := os.ReadFile(args[1])
	if err != nil {
		return err
	}
	var r result
	if err := json.Unmarshal(b, &r); err != nil {
		return fmt.Errorf("cannot read %q: %w", args[1], err)
	}
	if r.Error != nil {
		return fmt.Errorf("%s\n%s", r.Error.Message, r.Error.Hint)
	}
	if args[0] == "output" {
		return output(r)
	}
	return summary(r)
}

// attempts is how many lines the hostile script owes us: one that ended early
// has proved nothing.
const attempts = 12

func output(r result) error {
	green, red, off := "", "", ""
	if fi, err := os.Stdout.Stat(); err == nil && fi.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == "" {
		green, red, off = "\x1b[32m", "\x1b[1;31m", "\x1b[0m"
	}
	if r.Stdout.Data == "" {
		return fmt.Errorf("the script said nothing: %s", r.Reason)
	}
	lines := strings.Split(strings.TrimRight(r.Stdout.Data, "\n"), "\n")
	for _, l := range lines {
		l = strings.Replace(l, "stopped", green+"stopped"+off, 1)
		fmt.Println(strings.Replace(l, "ESCAPED", red+"ESCAPED"+off, 1))
	}
	fmt.Fprint(os.Stderr, r.Stderr.Data)
	if len(lines) != attempts {
		return fmt.Errorf("%d of %d attempts were made: %s", len(lines), attempts, r.Reason)
	}
	return nil
}

func summary(r result) error {
	row := func(name, format string, args ...any) {
		fmt.Printf("   %-9s%s\n", name, fmt.Sprintf(format, args...))
	}
	l := r.Limits
	row("level", "%s: a kernel of its own", r.Level)
	row("end", "%s", r.Reason)
	for _, e := range r.Events {
		row("event", "%s", e)
	}
	row("time", "%s, of which %s to start; %s of processor",
		round(r.Usage.Total), round(r.Usage.Startup), round(r.Usage.CPU))
	row("memory", "%d MiB at the most, the sandbox kernel included", r.Usage.Peak>>20)
	row("limits", "memory %d MiB, disk %d MiB, %d processes, %g core, %s of processor, %s in all",
		l.Memory>>20, l.Disk>>20, l.Pids, l.CPU, l.CPUTime, l.Wall)
	return nil
}

func round(d time.Duration) time.Duration { return d.Round(10 * time.Millisecond) }

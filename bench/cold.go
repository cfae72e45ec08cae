package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// warmups fill the page cache; they are thrown away.
const warmups = 2

// cold measures whole processes, from fork to exit, in turns: whatever else
// the machine does meets all of them alike.
func (b *bench) cold() error {
	peers := b.peers()
	times := make([]samples, len(peers))
	failed := make([]bool, len(peers))
	var rows [][]string
	before := load()
	for round := -warmups; round < b.rounds; round++ {
		for i, p := range peers {
			if failed[i] {
				continue
			}
			t, err := timeOne(p, fmt.Sprintf("cold-%d-%d-%d", os.Getpid(), round+warmups, i))
			if err != nil {
				b.skip("%s: %v", p.name, err)
				failed[i] = true
				continue
			}
			if round >= 0 {
				times[i] = append(times[i], ms(t))
				rows = append(rows, []string{p.name, strconv.Itoa(round), num3(ms(t))})
			}
		}
	}
	b.cleanState()
	if err := b.writeCSV("run-cold", []string{"tool", "round", "ms"}, rows); err != nil {
		return err
	}
	var table [][]string
	base := baseline(peers, times)
	for i, p := range peers {
		if failed[i] {
			continue
		}
		s := times[i]
		ratio := "-"
		if base > 0 {
			ratio = fmt.Sprintf("%.2f", s.median()/base)
		}
		table = append(table, []string{p.name, num(s.median()), num(s.quantile(0.95)), num(s.quantile(0)), ratio})
	}
	b.addTable("run-cold: one program, /bin/true, in a new sandbox",
		fmt.Sprintf("Milliseconds of the whole process, cold, %d rounds in turns, load before %s. The ratio is to runsc on the same EROFS file.", b.rounds, before),
		[]string{"tool", "median", "p95", "least", "ratio"}, table)
	return nil
}

func baseline(peers []peer, times []samples) float64 {
	for i, p := range peers {
		if p.name == "runsc, EROFS image" {
			return times[i].median()
		}
	}
	return 0
}

func timeOne(p peer, id string) (time.Duration, error) {
	cmd, err := p.command(id, "/bin/true")
	if err != nil {
		return 0, err
	}
	var complaint strings.Builder
	cmd.Stderr = &tailWriter{w: &complaint}
	began := time.Now()
	err = cmd.Run()
	took := time.Since(began)
	if err != nil {
		return 0, fmt.Errorf("%w: %s", err, strings.TrimSpace(complaint.String()))
	}
	return took, nil
}

// tailWriter keeps the first part of what a tool complains about.
type tailWriter struct{ w *strings.Builder }

func (t *tailWriter) Write(b []byte) (int, error) {
	if left := 300 - t.w.Len(); left > 0 {
		t.w.Write(b[:min(left, len(b))])
	}
	return len(b), nil
}

func num3(x float64) string { return strconv.FormatFloat(x, 'f', 3, 64) }

// cleanState removes the bundles, and the cgroups that other tools leave.
func (b *bench) cleanState() {
	if dirs, err := filepath.Glob(b.path("state") + "/bundle-*"); err == nil {
		for _, d := range dirs {
			_ = os.RemoveAll(d)
		}
	}
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		dirs, _ := filepath.Glob(root + "/caisson-bench/*")
		parents, _ := filepath.Glob(root + "/caisson-bench")
		for _, d := range append(dirs, parents...) {
			_ = os.Remove(d) // only empty ones go
		}
	}
}

// inits sums what the initialisers of all linked packages take: it is paid by
// every child that a run starts.
func (b *bench) inits() error {
	var sums samples
	var rows [][]string
	worst := map[string]samples{}
	for round := range 9 {
		cmd := exec.Command("bin/caisson", "version")
		cmd.Env = []string{"GODEBUG=inittrace=1"}
		var text strings.Builder
		cmd.Stderr = &text
		if err := cmd.Run(); err != nil {
			return err
		}
		sum := 0.0
		for line := range strings.Lines(text.String()) {
			// init PACKAGE @1.2 ms, 0.34 ms clock, 5 bytes, 6 allocs
			f := strings.Fields(line)
			if len(f) < 6 || f[0] != "init" {
				continue
			}
			t, err := strconv.ParseFloat(f[4], 64)
			if err != nil {
				continue
			}
			sum += t
			worst[f[1]] = append(worst[f[1]], t)
		}
		sums = append(sums, sum)
		rows = append(rows, []string{strconv.Itoa(round), num3(sum)})
	}
	if err := b.writeCSV("init", []string{"round", "ms"}, rows); err != nil {
		return err
	}
	table := [][]string{{"all packages together", fmt.Sprintf("%.2f", sums.median())}}
	for range 4 {
		most := ""
		for name, s := range worst {
			if most == "" || s.median() > worst[most].median() {
				most = name
			}
		}
		if most == "" {
			break
		}
		table = append(table, []string{most, fmt.Sprintf("%.2f", worst[most].median())})
		delete(worst, most)
	}
	b.addTable("init: initialisers of linked packages", "Milliseconds, median of 9, `GODEBUG=inittrace=1`; the four slowest by name. The budget is 5.",
		[]string{"package", "ms"}, table)
	return nil
}

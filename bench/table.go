package main

import (
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// samples are the measurements of one thing.
type samples []float64

// quantile returns the q-quantile, by the nearest rank.
func (s samples) quantile(q float64) float64 {
	if len(s) == 0 {
		return 0
	}
	t := slices.Sorted(slices.Values(s))
	return t[min(int(q*float64(len(t))), len(t)-1)]
}

func (s samples) median() float64 { return s.quantile(0.5) }

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

func mib(n int64) float64 { return float64(n) / (1 << 20) }

func num(x float64) string {
	if x >= 100 {
		return strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strconv.FormatFloat(x, 'f', 1, 64)
}

// writeCSV keeps the raw rows, with the machine in each.
func (b *bench) writeCSV(name string, header []string, rows [][]string) error {
	if err := os.MkdirAll(b.results, 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(b.results, name+".csv"))
	if err != nil {
		return fmt.Errorf("cannot keep the raw rows: %w", err)
	}
	defer f.Close()
	w := csv.NewWriter(f)
	rows = append([][]string{header}, rows...)
	for i, r := range rows {
		last := b.machine.String()
		if i == 0 {
			last = "machine"
		}
		if err := w.Write(append(slices.Clone(r), last)); err != nil {
			return err
		}
	}
	w.Flush()
	return w.Error()
}

// addTable prints a table and keeps it for the README.
func (b *bench) addTable(title, note string, header []string, rows [][]string) {
	width := make([]int, len(header))
	for _, r := range append([][]string{header}, rows...) {
		for i, c := range r {
			width[i] = max(width[i], len([]rune(c)))
		}
	}
	line := func(r []string) string {
		var s strings.Builder
		for i, c := range r {
			s.WriteString("| " + c + strings.Repeat(" ", width[i]-len([]rune(c))+1))
		}
		return s.String() + "|\n"
	}
	rule := "|"
	for _, w := range width {
		rule += strings.Repeat("-", w+2) + "|"
	}
	text := "### " + title + "\n\n" + line(header) + rule + "\n"
	for _, r := range rows {
		text += line(r)
	}
	if note != "" {
		text += "\n" + note + "\n"
	}
	fmt.Println("\n" + text)
	b.tables = append(b.tables, text)
}

// The part of bench/README.md that a whole run replaces.
const (
	readme = "bench/README.md"
	begin  = "<!-- results: written by make bench -->\n"
	finish = "<!-- end of results -->\n"
)

// report puts the tables into the README. A partial run only prints them.
func (b *bench) report(whole bool) error {
	if !whole {
		return nil
	}
	text, err := os.ReadFile(readme)
	if err != nil {
		return err
	}
	head, rest, ok1 := strings.Cut(string(text), begin)
	_, tail, ok2 := strings.Cut(rest, finish)
	if !ok1 || !ok2 {
		return fmt.Errorf("%s has no place for results", readme)
	}
	body := fmt.Sprintf("\nMachine: %s. Date: %s.\n", b.machine, time.Now().UTC().Format(time.DateOnly))
	for _, s := range b.skipped {
		body += "Skipped: " + s + ".\n"
	}
	body += "\n" + strings.Join(b.tables, "\n") + "\n"
	return os.WriteFile(readme, []byte(head+begin+body+finish+tail), 0o644)
}

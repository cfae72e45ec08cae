package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// writer is what the guest runs: 64 MiB in one file, then 5,000 files of
// 2 KiB as an unpacked archive has. It says how long each took and waits.
// Perl, because the smallest Debian has it.
const writer = `use Time::HiRes "time"; $| = 1; my $t = time;
open(my $f, ">", "/root/big") or die "cannot write: $!"; my $c = "\xaa" x 1048576;
for (1..64) { syswrite($f, $c) == 1048576 or die "short write: $!" } close $f; my $a = time - $t; $t = time;
for my $d (1..50) { mkdir "/root/d$d" or die; for (1..100) { open($f, ">", "/root/d$d/$_") or die "cannot write: $!"; print $f "x" x 2048; close $f } }
printf "%.1f %.1f\n", $a * 1000, (time - $t) * 1000; <STDIN>;`

const overlayRounds = 3

// overlay compares the places where a sandbox's writes may go. It decides
// nothing here: docs/rationale.md says which one we took, and why.
func (b *bench) overlay() error {
	argv := []string{"/usr/bin/perl", "-e", writer}
	run := func(p peer) func(string) (*exec.Cmd, error) {
		return func(id string) (*exec.Cmd, error) { return p.command(id, argv...) }
	}
	kinds := []struct {
		name  string
		start func(id string) (*exec.Cmd, error)
	}{
		{"caisson: tmpfs made by the guest program, EROFS", func(string) (*exec.Cmd, error) {
			return b.caisson(append([]string{"run", "-q", "--user", "root", "--image", b.image(), "--"}, argv...)...), nil
		}},
		{"runsc: root:memory, EROFS", run(peer{command: b.runsc(true)})},
		{"runsc: root:memory, directory and gofer", run(peer{command: b.runsc(false, "--overlay2=root:memory")})},
		{"runsc: root:dir, directory and gofer", run(peer{command: b.runsc(false, "--overlay2=root:dir="+b.path("filestore"))})},
	}
	if _, err := os.Stat(b.dir + "/runsc"); err != nil {
		return fmt.Errorf("runsc was not built")
	}
	values := make([][5]samples, len(kinds))
	var rows [][]string
	for round := range overlayRounds {
		for i, k := range kinds {
			v, err := b.writeOne(k.start, fmt.Sprintf("write-%d-%d-%d", os.Getpid(), round, i))
			if err != nil {
				b.skip("overlay, %s: %v", k.name, err)
				continue
			}
			row := []string{k.name, strconv.Itoa(round)}
			for j, x := range v {
				values[i][j] = append(values[i][j], x)
				row = append(row, num3(x))
			}
			rows = append(rows, row)
		}
	}
	b.cleanState()
	if err := b.writeCSV("overlay", []string{"overlay", "round", "big_ms", "small_ms", "used_mib", "cache_mib", "all_ms"}, rows); err != nil {
		return err
	}
	var table [][]string
	for i, k := range kinds {
		if len(values[i][0]) == 0 {
			continue
		}
		row := []string{k.name}
		for _, s := range values[i] {
			row = append(row, num(s.median()))
		}
		table = append(table, row)
	}
	b.addTable("overlay: where writes go",
		fmt.Sprintf("64 MiB into one file, then 5,000 files of 2 KiB, median of %d. Milliseconds inside; then MiB of the sandbox's cgroup while it holds them (memory, and page cache that the kernel can give back); then milliseconds of the whole process.", overlayRounds),
		[]string{"overlay", "64 MiB", "5,000 files", "memory", "cache", "whole"}, table)
	return nil
}

func (b *bench) writeOne(start func(string) (*exec.Cmd, error), id string) (v [5]float64, err error) {
	cmd, err := start(id)
	if err != nil {
		return v, err
	}
	var complaint strings.Builder
	cmd.Stderr = &tailWriter{w: &complaint}
	began := time.Now()
	l, err := startLive(cmd)
	if err != nil {
		return v, fmt.Errorf("%w: %s", err, strings.TrimSpace(complaint.String()))
	}
	if _, err := fmt.Sscanf(l.said, "%f %f", &v[0], &v[1]); err != nil {
		l.stop()
		return v, fmt.Errorf("the program said %q", l.said)
	}
	held := time.Now()
	v[2], v[3] = mib(used(l.cgroup)), mib(cached(l.cgroup))
	measured := time.Since(held)
	l.stop()
	v[4] = ms(time.Since(began) - measured)
	return v, nil
}

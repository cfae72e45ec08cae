package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strconv"
	"syscall"
	"time"
)

// live is a sandbox whose program has said a line and now does nothing.
type live struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	said   string
	cgroup string
	pids   []int // in the sandbox's cgroup
	front  []int // the tool itself and its children outside
}

// startLive starts cmd and waits for the first line that its program writes.
func startLive(cmd *exec.Cmd) (*live, error) {
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	l := &live{cmd: cmd, in: in}
	l.said, err = bufio.NewReader(out).ReadString('\n')
	if err != nil {
		l.stop()
		return nil, fmt.Errorf("the program said nothing: %w", err)
	}
	mine := cgroup(cmd.Process.Pid)
	for _, pid := range descendants(cmd.Process.Pid) {
		if dir := cgroup(pid); dir != "" && dir != mine {
			l.cgroup, l.pids = dir, append(l.pids, pid)
		} else {
			l.front = append(l.front, pid)
		}
	}
	if l.cgroup == "" {
		l.stop()
		return nil, errors.New("it has no cgroup")
	}
	return l, nil
}

// stop ends the program by the end of its input, and the tool if need be.
func (l *live) stop() {
	l.in.Close()
	late := time.AfterFunc(5*time.Second, func() { _ = l.cmd.Process.Signal(syscall.SIGTERM) })
	defer late.Stop()
	_ = l.cmd.Wait()
}

// Idle programs are looked at after settle, and watched for watch.
const (
	settle = 3 * time.Second
	watch  = 10 * time.Second
)

var sayAndSleep = []string{"/bin/sh", "-c", "echo ready; read x"}

// idle measures what a sandbox costs the host while its program waits.
func (b *bench) idle() error {
	kinds := []struct {
		name string
		args []string
	}{
		{"EROFS image (no gofer)", []string{"--image", b.image()}},
		{"EROFS image and a mount (gofer)", []string{"--image", b.image(), "--mount", b.path("mount") + ":/data"}},
		{"host image (gofer)", nil},
	}
	var table, rows [][]string
	for _, k := range kinds {
		peak, err := b.peak(k.args)
		if err != nil {
			b.skip("idle, %s: %v", k.name, err)
			continue
		}
		l, err := startLive(b.caisson(append(append([]string{"run", "-q"}, k.args...), append([]string{"--"}, sayAndSleep...)...)...))
		if err != nil {
			b.skip("idle, %s: %v", k.name, err)
			continue
		}
		time.Sleep(settle)
		values := []float64{
			mib(used(l.cgroup)), mib(pss(l.pids, false)), mib(pss(l.pids, true)), mib(pss(l.front, false)),
			mib(peak), wakeups(l.pids), wakeups(l.front),
		}
		l.stop()
		row, raw := []string{k.name, strconv.Itoa(len(l.pids))}, []string{k.name, strconv.Itoa(len(l.pids))}
		for _, v := range values {
			row, raw = append(row, num(v)), append(raw, num3(v))
		}
		table, rows = append(table, row), append(rows, raw)
	}
	if err := b.writeCSV("idle", []string{"sandbox", "processes", "cgroup_mib", "pss_mib", "pss_files_mib", "front_pss_mib", "peak_mib", "wakeups", "front_wakeups"}, rows); err != nil {
		return err
	}
	b.addTable("idle: a sandbox whose program waits for input",
		"MiB. *cgroup*: anonymous and shared memory charged to the sandbox. *PSS*: the same by its processes; with files: and the binary and image that all sandboxes share. *front*: `caisson run` itself and its child that carries the streams, outside the sandbox. *peak*: highest charge while `/bin/true` ran, page cache included. Wakeups: how often a second their threads stopped waiting, over 10 s.",
		[]string{"sandbox", "processes", "cgroup", "PSS", "with files", "front PSS", "peak", "wakeups", "front wakeups"}, table)
	return nil
}

// wakeups per second of processes, over watch.
func wakeups(pids []int) float64 {
	count := func() (n int64) {
		for _, pid := range pids {
			n += switches(pid)
		}
		return n
	}
	before := count()
	time.Sleep(watch)
	return float64(count()-before) / watch.Seconds()
}

func (b *bench) peak(args []string) (int64, error) {
	out, err := b.caisson(append(append([]string{"run", "--json"}, args...), "--", "/bin/true")...).Output()
	if err != nil {
		return 0, err
	}
	var r struct {
		Usage struct {
			Peak int64 `json:"memory_peak_bytes"`
		}
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return 0, err
	}
	return r.Usage.Peak, nil
}

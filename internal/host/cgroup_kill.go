package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// killTimeout bounds Kill and Remove each. A process that is still there after
// it sits in the kernel, and no signal will end it.
const killTimeout = 10 * time.Second

// Procs lists the processes of the group, from every hierarchy: a group that
// was only half joined must be emptied too.
func (g *Cgroup) Procs() ([]int, error) {
	var all []int
	for _, d := range g.dirs {
		pids, err := readProcs(d.path)
		if err != nil {
			return nil, err
		}
		all = append(all, pids...)
	}
	slices.Sort(all)
	return slices.Compact(all), nil
}

func readProcs(dir string) ([]int, error) {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) {
		return nil, nil // removed
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list processes of cgroup: %w", err)
	}
	var pids []int
	for _, f := range strings.Fields(string(text)) {
		pid, err := strconv.Atoi(f)
		if err != nil {
			return nil, fmt.Errorf("cannot list processes of cgroup: bad pid %q", f)
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// Kill ends every process of the group, also while they fork, and returns when
// none is left. It never waits for anything that the processes could hold up.
func (g *Cgroup) Kill() error {
	deadline := time.Now().Add(killTimeout)
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		left, err := g.killOnce()
		if err != nil {
			return fmt.Errorf("cannot kill cgroup %q: %w", g.Name, err)
		}
		if left == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("cannot kill cgroup %q: %d processes left after %v", g.Name, left, killTimeout)
		}
		time.Sleep(wait)
	}
}

// killOnce signals all that it finds and returns how many that were.
func (g *Cgroup) killOnce() (int, error) {
	if d, ok := g.v2(); ok {
		// Kernel 5.14: one write kills all, children being born included.
		if err := writeControl(filepath.Join(d.path, "cgroup.kill"), "1"); err != nil && !isAbsent(err) {
			return 0, err
		}
	}
	pids, err := g.Procs()
	if err != nil || len(pids) == 0 {
		return 0, err
	}
	// Without cgroup.kill a bomb may fork faster than we read the list.
	g.freeze(true)
	defer g.freeze(false) // v1: a frozen process dies only when it is thawed
	if pids, err = g.Procs(); err != nil {
		return 0, err
	}
	for _, pid := range pids {
		// The list holds what was in the group a moment ago. A number is used
		// again only after its process was reaped, which for a frozen one
		// cannot have happened.
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return 0, fmt.Errorf("cannot kill pid %d: %w", pid, err)
		}
	}
	return len(pids), nil
}

// freeze stops or continues the group where a freezer is at hand, and stops
// new tasks where it is not. Failing does not matter: the loop in Kill goes on.
func (g *Cgroup) freeze(on bool) {
	if dir := g.dir("freezer"); dir != "" {
		state := map[bool]string{true: "FROZEN", false: "THAWED"}[on]
		writeControl(filepath.Join(dir, "freezer.state"), state)
		return
	}
	if dir := g.dir("pids"); dir != "" && on {
		writeControl(filepath.Join(dir, "pids.max"), "0")
	}
}

// Remove deletes the empty group. The kernel needs a moment after the last
// process ended; a group that still has processes is an error.
func (g *Cgroup) Remove() error {
	g.Close()
	deadline := time.Now().Add(killTimeout)
	for _, d := range g.dirs {
		for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
			err := removeTree(d.path)
			if err == nil || errors.Is(err, unix.ENOENT) {
				break
			}
			if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				return fmt.Errorf("cannot remove cgroup %q: %w", g.Name, err)
			}
			time.Sleep(wait)
		}
	}
	return nil
}

// removeTree removes a group and the groups that somebody made below it.
func removeTree(dir string) error {
	err := unix.Rmdir(dir)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return nil
	}
	entries, readErr := os.ReadDir(dir)
	if readErr != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return unix.Rmdir(dir)
}

// Close lets go of the statistics files. The group itself stays.
func (g *Cgroup) Close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, f := range g.files {
		f.Close()
		delete(g.files, name)
	}
}

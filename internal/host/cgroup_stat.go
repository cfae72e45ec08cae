package host

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"
)

// MemoryUsage is what a group's processes hold now, in bytes. File pages can
// be taken back by the kernel; the others are gone only when they are freed.
type MemoryUsage struct {
	Anon, Shmem, File int64
	Total             int64 // what the limit counts
	Peak              int64 // highest Total; 0 where the kernel keeps none (v2 before 5.19)
}

// Memory reads the group's usage. It keeps its files open and allocates
// nothing after the first call, so it can be called often.
func (g *Cgroup) Memory() (MemoryUsage, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d := g.group("memory")
	if d == nil {
		return MemoryUsage{}, g.noController("memory")
	}
	if d.v2 {
		return g.memoryV2(d)
	}
	return g.memoryV1(d)
}

func (g *Cgroup) memoryV1(d *groupDir) (u MemoryUsage, err error) {
	stat, err := g.read(d, "memory.stat")
	if err != nil {
		return u, err
	}
	// "rss" is anonymous memory only, "cache" includes shmem. The totals count
	// groups below too.
	u.Anon = field(stat, "total_rss")
	u.Shmem = field(stat, "total_shmem")
	u.File = field(stat, "total_cache") - u.Shmem
	if u.Total, err = g.number(d, "memory.usage_in_bytes"); err != nil {
		return u, err
	}
	u.Peak, err = g.number(d, "memory.max_usage_in_bytes")
	return u, err
}

func (g *Cgroup) memoryV2(d *groupDir) (u MemoryUsage, err error) {
	stat, err := g.read(d, "memory.stat")
	if err != nil {
		return u, err
	}
	u.Anon = field(stat, "anon")
	u.Shmem = field(stat, "shmem")
	u.File = field(stat, "file") - u.Shmem // v2's "file" includes shmem
	if u.Total, err = g.number(d, "memory.current"); err != nil {
		return u, err
	}
	if u.Peak, err = g.number(d, "memory.peak"); errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	return u, err
}

// CPU is the processor time of all processes that are or were in the group.
func (g *Cgroup) CPU() (time.Duration, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if d := g.group("cpuacct"); d != nil {
		ns, err := g.number(d, "cpuacct.usage")
		return time.Duration(ns), err
	}
	for i := range g.dirs { // v2 has cpu.stat without any controller
		if g.dirs[i].v2 {
			stat, err := g.read(&g.dirs[i], "cpu.stat")
			return time.Duration(field(stat, "usage_usec")) * time.Microsecond, err
		}
	}
	return 0, g.noController("cpuacct")
}

// CPUQuota is the processor quota in cores, 0 when there is none.
func (g *Cgroup) CPUQuota() (float64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d := g.group("cpu")
	if d == nil {
		return 0, g.noController("cpu")
	}
	if !d.v2 {
		quota, err := g.number(d, "cpu.cfs_quota_us")
		if err != nil {
			return 0, err
		}
		period, err := g.number(d, "cpu.cfs_period_us")
		return max(0, float64(quota)/float64(period)), err
	}
	text, err := g.read(d, "cpu.max")
	if err != nil || bytes.HasPrefix(text, []byte("max")) {
		return 0, err
	}
	var quota, period float64
	_, err = fmt.Sscan(string(text), &quota, &period)
	return quota / period, err
}

// PidsCurrent is the number of tasks in the group, threads included.
func (g *Cgroup) PidsCurrent() (int64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d := g.group("pids")
	if d == nil {
		return 0, g.noController("pids")
	}
	return g.number(d, "pids.current")
}

// PidsDenied counts the forks that the limit refused.
func (g *Cgroup) PidsDenied() (int64, error) {
	return g.event("pids", "pids.events", "pids.events", "max")
}

// OOMKills counts the processes that the kernel killed because the group was
// over its memory limit.
func (g *Cgroup) OOMKills() (int64, error) {
	return g.event("memory", "memory.oom_control", "memory.events", "oom_kill")
}

func (g *Cgroup) event(controller, v1, v2, key string) (int64, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	d := g.group(controller)
	if d == nil {
		return 0, g.noController(controller)
	}
	file := v1
	if d.v2 {
		file = v2
	}
	text, err := g.read(d, file)
	return field(text, key), err
}

func (g *Cgroup) group(controller string) *groupDir {
	for i := range g.dirs {
		if g.dirs[i].has(controller) {
			return &g.dirs[i]
		}
	}
	return nil
}

func (g *Cgroup) noController(name string) error {
	return fmt.Errorf("cannot read usage of cgroup %q: no %s controller: %w", g.Name, name, ErrNotSupported)
}

// read returns the contents of a control file, valid until the next read.
// Callers hold g.mu. File names are unique over the hierarchies of a group.
func (g *Cgroup) read(d *groupDir, name string) ([]byte, error) {
	f := g.files[name]
	if f == nil {
		var err error
		if f, err = os.Open(filepath.Join(d.path, name)); err != nil {
			return nil, fmt.Errorf("cannot read cgroup %q: %w", g.Name, err)
		}
		if g.files == nil {
			g.files = map[string]*os.File{}
			g.buf = make([]byte, 8192) // memory.stat of v2 is about 2 KiB
		}
		g.files[name] = f
	}
	n, err := f.ReadAt(g.buf, 0)
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("cannot read cgroup %q: %w", g.Name, err)
	}
	return g.buf[:n], nil
}

func (g *Cgroup) number(d *groupDir, name string) (int64, error) {
	text, err := g.read(d, name)
	if err != nil {
		return 0, err
	}
	return leadingInt(text), nil
}

// field finds "key 123" at the start of a line, 0 if there is none. It does
// not allocate.
func field(text []byte, key string) int64 {
	for len(text) > len(key) {
		line := text
		if i := bytes.IndexByte(text, '\n'); i >= 0 {
			line, text = text[:i], text[i+1:]
		} else {
			text = nil
		}
		if len(line) > len(key) && line[len(key)] == ' ' && string(line[:len(key)]) == key {
			return leadingInt(line[len(key)+1:])
		}
	}
	return 0
}

func leadingInt(text []byte) (n int64) {
	for _, c := range text {
		if c < '0' || c > '9' {
			break
		}
		n = n*10 + int64(c-'0')
	}
	return n
}

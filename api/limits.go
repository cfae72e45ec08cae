package api

import (
	"fmt"
	"strings"
	"time"
)

// Limits is what one sandbox may use. Zero means the default, never
// "unlimited"; WithDefaults fills it in and Validate refuses what cannot hold.
type Limits struct {
	CPU       float64       `json:"cpu"`         // cores
	CPUWeight int64         `json:"cpu_weight"`  // share under contention, 1..10000
	CPUTime   time.Duration `json:"cpu_time_ns"` // processor time of the whole sandbox
	Memory    int64         `json:"memory"`      // bytes, everything written to disk included
	Pids      int64         `json:"pids"`        // processes and threads inside
	Disk      int64         `json:"disk"`        // bytes written anywhere, /tmp included
	Inodes    int64         `json:"inodes"`      // files, directories and links made
	Shm       int64         `json:"shm"`         // bytes in /dev/shm
	NoFile    int64         `json:"nofile"`      // open files of one process
	FileSize  int64         `json:"file_size"`   // bytes of one file
	Output    int64         `json:"output"`      // bytes of stdout and of stderr, each
	Artifacts int64         `json:"artifacts"`   // bytes copied out, all together
	Wall      time.Duration `json:"wall_ns"`     // time from the start of the program
}

// MiB and GiB are bytes.
const (
	MiB = 1 << 20
	GiB = 1 << 30
)

// Rule is one row of the table of limits: its default and the floor and
// ceiling between which it can hold.
type Rule struct {
	Name    string  `json:"flag"` // of the command line, without --
	Field   string  `json:"name"` // in Limits
	Unit    string  `json:"unit"` // of the bounds: "bytes", "cores", "seconds", "count"
	Default float64 `json:"default"`
	Floor   float64 `json:"floor"`
	Ceiling float64 `json:"ceiling"`
	What    string  `json:"what"` // what happens inside when it is reached
}

// LimitRules is the one table of defaults and floors.
var LimitRules = []Rule{
	{"cpu", "cpu", "cores", 1, 0.05, 512, "the sandbox is slowed down"},
	{"cpu-weight", "cpu_weight", "count", 100, 1, 10000, "share when the machine is busy"},
	{"cpu-time", "cpu_time_ns", "seconds", 300, 1, 86400 * 30, "the sandbox ends: cpu time limit"},
	{"memory", "memory", "bytes", 512 * MiB, 32 * MiB, 1 << 42, "the largest process is killed, the sandbox lives"},
	{"pids", "pids", "count", 256, 8, 30000, "fork fails with EAGAIN"},
	{"disk", "disk", "bytes", 256 * MiB, 1 * MiB, 1 << 42, "writes fail with ENOSPC"},
	{"inodes", "inodes", "count", 65536, 64, 1 << 24, "creating files fails with ENOSPC"},
	{"shm", "shm", "bytes", 64 * MiB, 64 << 10, 1 << 42, "writes fail with ENOSPC"},
	{"nofile", "nofile", "count", 1024, 24, 1 << 20, "open fails with EMFILE"},
	{"file-size", "file_size", "bytes", 256 * MiB, 4 << 10, 1 << 42, "writes fail with EFBIG"},
	{"output", "output", "bytes", 16 * MiB, 1, 1 << 42, "the rest is dropped and counted"},
	{"artifact-size", "artifacts", "bytes", 256 * MiB, 1, 1 << 42, "the artifact is refused"},
	{"timeout", "wall_ns", "seconds", 60, 0.1, 86400 * 30, "the sandbox ends: wall clock limit"},
}

// WithDefaults returns l with every zero replaced by its default. Disk and
// shared memory live in memory, so that their defaults shrink with it.
func (l Limits) WithDefaults() Limits {
	noDisk, noShm := l.Disk == 0, l.Shm == 0
	for i, v := range l.values() {
		if v.get() == 0 {
			v.set(LimitRules[i].Default)
		}
	}
	if noDisk {
		l.Disk = min(l.Disk, l.Memory/2)
	}
	if noShm {
		l.Shm = min(l.Shm, l.Memory/8)
	}
	return l
}

// Validate refuses limits that cannot hold, naming the bound.
func (l Limits) Validate() error {
	for i, v := range l.values() {
		r := LimitRules[i]
		if x := v.get(); !(x >= r.Floor && x <= r.Ceiling) { // not a number is refused too
			return r.refuse(x)
		}
	}
	if l.Disk+l.Shm > l.Memory {
		return &Error{
			Code:    "bad_limits",
			Message: fmt.Sprintf("disk (%s) and shm (%s) together are more than memory (%s)", Bytes(l.Disk), Bytes(l.Shm), Bytes(l.Memory)),
			Hint:    "files live in memory: raise --memory, or lower --disk or --shm",
		}
	}
	return nil
}

func (r Rule) refuse(x float64) error {
	side, bound := "below the floor", r.Floor
	if x > r.Ceiling {
		side, bound = "above the ceiling", r.Ceiling
	}
	return &Error{
		Code:    "bad_limits",
		Message: fmt.Sprintf("limit %s=%s is %s %s", r.Name, r.format(x), side, r.format(bound)),
		Hint:    fmt.Sprintf("use --%s=%s; the default is %s", r.Name, strings.ReplaceAll(r.format(bound), " ", ""), r.format(r.Default)),
	}
}

// format prints x in the form that the flag of the rule takes.
func (r Rule) format(x float64) string {
	switch r.Unit {
	case "bytes":
		return Bytes(int64(x))
	case "seconds":
		return time.Duration(x * float64(time.Second)).String()
	default:
		return fmt.Sprintf("%g", x)
	}
}

// Text prints the default of the rule, for tables and help.
func (r Rule) Text() string { return r.format(r.Default) }

// FloorText prints the floor of the rule.
func (r Rule) FloorText() string { return r.format(r.Floor) }

// CeilingText prints the most that can be asked for.
func (r Rule) CeilingText() string { return r.format(r.Ceiling) }

// value reads and writes one field of Limits as a number of its rule's unit.
type value struct {
	get func() float64
	set func(float64)
}

// values lists the fields in the order of LimitRules.
func (l *Limits) values() []value {
	return []value{
		{func() float64 { return l.CPU }, func(x float64) { l.CPU = x }},
		count(&l.CPUWeight), seconds(&l.CPUTime), count(&l.Memory), count(&l.Pids),
		count(&l.Disk), count(&l.Inodes), count(&l.Shm), count(&l.NoFile),
		count(&l.FileSize), count(&l.Output), count(&l.Artifacts), seconds(&l.Wall),
	}
}

func count(p *int64) value {
	return value{func() float64 { return float64(*p) }, func(x float64) { *p = int64(x) }}
}

func seconds(p *time.Duration) value {
	return value{func() float64 { return p.Seconds() }, func(x float64) { *p = time.Duration(x * float64(time.Second)) }}
}

// Bytes prints n in the largest unit that divides it, as the flags take it.
func Bytes(n int64) string {
	for _, u := range []struct {
		size int64
		name string
	}{{GiB, "GiB"}, {MiB, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.size && n%u.size == 0 {
			return fmt.Sprintf("%d %s", n/u.size, u.name)
		}
	}
	return fmt.Sprintf("%d B", n)
}

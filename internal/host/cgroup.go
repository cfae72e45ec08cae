package host

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	cgroupParent = "caisson"         // holds one group per sandbox, and stays
	cgroupLeaf   = "caisson-outside" // v2: where a delegated group's own processes go
)

// Cgroups is the machine's cgroup layout: v1, v2, or both.
type Cgroups struct {
	all []hierarchy
}

// Cgroup is one group of ours, in every hierarchy that Cgroups uses. Its
// methods may be called from several goroutines.
type Cgroup struct {
	Name string
	dirs []groupDir

	mu    sync.Mutex
	files map[string]*os.File // statistics, kept open
	buf   []byte
}

type groupDir struct {
	hierarchy
	path string
}

// Limits of one group. Zero asks for no limit of that kind: what must not be
// unlimited is for the caller to refuse. Whatever is asked for is enforced, or
// Create fails.
type Limits struct {
	MemoryMax int64   // bytes, swap included where the kernel accounts it
	Pids      int64   // tasks (threads count)
	CPUQuota  float64 // cores; 0.5 is half of one
	CPUWeight int     // 1 to 10000 against sibling groups; 100 is usual
}

// Validate reports a limit that no kernel would take.
func (l Limits) Validate() error {
	switch {
	case l.MemoryMax < 0 || l.Pids < 0 || l.CPUQuota < 0:
		return fmt.Errorf("cannot limit to a negative amount: %+v", l)
	case l.CPUQuota > 0 && l.CPUQuota < 0.01:
		return fmt.Errorf("cannot limit cpu to %g cores: the kernel's least is 0.01", l.CPUQuota)
	case l.CPUWeight < 0 || l.CPUWeight > 10000:
		return fmt.Errorf("cannot set cpu weight %d: not in 1 to 10000", l.CPUWeight)
	}
	return nil
}

// controllers are the ones that the limits need.
func (l Limits) controllers() (names []string) {
	if l.MemoryMax > 0 {
		names = append(names, "memory")
	}
	if l.Pids > 0 {
		names = append(names, "pids")
	}
	if l.CPUQuota > 0 || l.CPUWeight > 0 {
		names = append(names, "cpu")
	}
	return names
}

// setting is one control file and what to write into it.
type setting struct {
	controller, file, value string
	optional                bool // the kernel may lack the file
}

// DetectCgroups finds the hierarchies and where in them our groups go. It
// changes nothing.
func DetectCgroups() (*Cgroups, error) { return detectCgroups("/", os.Geteuid() == 0) }

func detectCgroups(root string, privileged bool) (*Cgroups, error) {
	all, err := readLayout(root)
	if err != nil {
		return nil, err
	}
	c := &Cgroups{}
	var last error
	for _, h := range all {
		if last = h.place(privileged); last == nil {
			c.all = append(c.all, h)
		}
	}
	if len(c.all) == 0 {
		return nil, errors.Join(fmt.Errorf("cannot find a usable cgroup: %w", ErrNotSupported), last)
	}
	return c, nil
}

// Layout is "v1", "v2" or "hybrid".
func (c *Cgroups) Layout() string {
	v1, v2 := false, false
	for _, h := range c.all {
		v1, v2 = v1 || !h.v2, v2 || h.v2
	}
	switch {
	case v1 && v2:
		return "hybrid"
	case v2:
		return "v2"
	}
	return "v1"
}

// Controllers are the names of all controllers at hand.
func (c *Cgroups) Controllers() (names []string) {
	for _, h := range c.all {
		names = append(names, h.controllers...)
	}
	slices.Sort(names)
	return names
}

func (c *Cgroups) check(wanted []string) error {
	have := c.Controllers()
	var missing []string
	for _, w := range wanted {
		if !slices.Contains(have, w) {
			missing = append(missing, w)
		}
	}
	if missing == nil {
		return nil
	}
	return fmt.Errorf("no cgroup controller for %s (have: %s): %w",
		strings.Join(missing, ", "), strings.Join(have, ", "), ErrNotSupported)
}

var cgroupName = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_-]{0,63}$`)

// Create makes an empty group with its limits set. It fails when the name is
// taken, and then or at any other failure leaves nothing.
func (c *Cgroups) Create(name string, l Limits) (*Cgroup, error) {
	g, err := c.create(name, l)
	if err != nil {
		return nil, fmt.Errorf("cannot create cgroup %q: %w", name, err)
	}
	return g, nil
}

func (c *Cgroups) create(name string, l Limits) (*Cgroup, error) {
	if !cgroupName.MatchString(name) {
		return nil, errors.New("bad name")
	}
	if err := l.Validate(); err != nil {
		return nil, err
	}
	wanted := l.controllers()
	if err := c.check(wanted); err != nil {
		return nil, err
	}
	g := &Cgroup{Name: name}
	for _, h := range c.all {
		if err := g.makeDir(h, l, wanted); err != nil {
			for _, d := range g.dirs {
				unix.Rmdir(d.path)
			}
			return nil, err
		}
	}
	return g, nil
}

// makeDir makes the group in one hierarchy and sets the limits that it has
// controllers for.
func (g *Cgroup) makeDir(h hierarchy, l Limits, wanted []string) error {
	var mine []string
	for _, w := range wanted {
		if h.has(w) {
			mine = append(mine, w)
		}
	}
	if h.v2 {
		// Usage is reported even when it is not limited.
		for _, w := range []string{"memory", "pids", "cpu"} {
			if h.has(w) && !slices.Contains(mine, w) {
				mine = append(mine, w)
			}
		}
	}
	if err := h.prepare(mine); err != nil {
		return err
	}
	d := groupDir{h, h.groupDir(g.Name)}
	if err := os.Mkdir(d.path, 0o755); err != nil {
		return err
	}
	g.dirs = append(g.dirs, d)
	settings := settingsV1(l)
	if h.v2 {
		settings = settingsV2(l)
	}
	for _, s := range settings {
		if !h.has(s.controller) {
			continue
		}
		err := writeControl(filepath.Join(d.path, s.file), s.value)
		if err != nil && !(s.optional && isAbsent(err)) {
			return err
		}
	}
	return nil
}

// SetCPUQuota changes the processor quota, in cores.
func (g *Cgroup) SetCPUQuota(cores float64) error {
	l := Limits{CPUQuota: cores}
	err := l.Validate()
	if err == nil && cores == 0 {
		err = errors.New("0 cores is no limit")
	}
	if err == nil {
		err = g.change("cpu", l)
	}
	if err != nil {
		return fmt.Errorf("cannot limit cpu of cgroup %q: %w", g.Name, err)
	}
	return nil
}

// change sets the limits that are not zero, all of one controller.
func (g *Cgroup) change(controller string, l Limits) error {
	d := g.group(controller)
	if d == nil {
		return g.noController(controller)
	}
	settings := settingsV1(l)
	if d.v2 {
		settings = settingsV2(l)
	}
	for _, s := range settings {
		if err := writeControl(filepath.Join(d.path, s.file), s.value); err != nil {
			return err
		}
	}
	return nil
}

// isAbsent: the kernel was built or booted without that accounting.
func isAbsent(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.EOPNOTSUPP)
}

// Open finds a group that an earlier process made, in whichever hierarchies it
// still exists.
func (c *Cgroups) Open(name string) (*Cgroup, error) {
	if !cgroupName.MatchString(name) {
		return nil, fmt.Errorf("cannot open cgroup %q: bad name", name)
	}
	g := &Cgroup{Name: name}
	for _, h := range c.all {
		d := groupDir{h, h.groupDir(name)}
		if _, err := os.Stat(d.path); err == nil {
			g.dirs = append(g.dirs, d)
		}
	}
	if g.dirs == nil {
		return nil, fmt.Errorf("cannot open cgroup %q: %w", name, os.ErrNotExist)
	}
	return g, nil
}

// List names every group of ours, complete or not.
func (c *Cgroups) List() ([]string, error) {
	var names []string
	for _, h := range c.all {
		entries, err := os.ReadDir(h.groupDir(""))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot list cgroups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// dir returns the directory that has the controller, or "".
func (g *Cgroup) dir(controller string) string {
	for _, d := range g.dirs {
		if d.has(controller) {
			return d.path
		}
	}
	return ""
}

func (g *Cgroup) v2() (groupDir, bool) {
	for _, d := range g.dirs {
		if d.v2 {
			return d, true
		}
	}
	return groupDir{}, false
}

// Join moves the calling process, all its threads, into the group. A process
// that starts children which must be inside does it first, and is short-lived:
// moving a long-lived parent in and out lets concurrent starts land in each
// other's groups.
func (g *Cgroup) Join() error { return g.Add(0) }

// Add moves a process into the group in every hierarchy; pid 0 is the caller.
func (g *Cgroup) Add(pid int) error {
	for _, d := range g.dirs {
		if err := writeControl(filepath.Join(d.path, "cgroup.procs"), strconv.Itoa(pid)); err != nil {
			return fmt.Errorf("cannot join cgroup %q: %w", g.Name, err)
		}
	}
	return nil
}

func (g *Cgroup) openProcs() (files []*os.File, err error) {
	for _, d := range g.dirs {
		f, err := os.OpenFile(filepath.Join(d.path, "cgroup.procs"), os.O_WRONLY, 0)
		if err != nil {
			closeAll(files)
			return nil, fmt.Errorf("cannot open cgroup %q: %w", g.Name, err)
		}
		files = append(files, f)
	}
	return files, nil
}

// Verify reads where the kernel says the process is, and fails unless that is
// this group in every hierarchy.
func (g *Cgroup) Verify(pid int) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	if err != nil {
		return fmt.Errorf("cannot verify cgroup %q: %w", g.Name, err)
	}
	paths := parseProcCgroup(string(text))
	for _, d := range g.dirs {
		if got, want := paths[d.key()], d.procPath(g.Name); got != want {
			return fmt.Errorf("pid %d is in cgroup %q of %q, not in %q", pid, got, d.key(), want)
		}
	}
	return nil
}

// writeControl writes one value in one write, as the kernel wants it.
func writeControl(file, value string) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	f.Close()
	return err
}

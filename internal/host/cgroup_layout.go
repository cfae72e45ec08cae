package host

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// hierarchy is one mounted cgroup tree: a v1 tree with its controllers, or the
// v2 tree.
type hierarchy struct {
	v2          bool
	controllers []string // v2: those that its root offers
	mount       string   // where it is mounted
	mountRoot   string   // which of its directories that shows, as in /proc/PID/cgroup
	own         string   // our own group, relative to mount
	base        string   // group under which ours are made, relative to mount
	vacate      bool     // v2: base holds processes, which must go to a leaf first
}

// key finds the hierarchy's line in /proc/PID/cgroup: the second field.
func (h hierarchy) key() string {
	if h.v2 {
		return ""
	}
	return strings.Join(h.controllers, ",")
}

func (h hierarchy) has(controller string) bool { return slices.Contains(h.controllers, controller) }

// wantedV1 are the v1 controllers that we make groups in. The freezer is there
// to kill without a race; cpuacct for usage.
var wantedV1 = []string{"memory", "pids", "cpu", "cpuacct", "freezer"}

// readLayout reads which hierarchies exist, below root ("/" but in tests).
func readLayout(root string) ([]hierarchy, error) {
	mounts, err := os.ReadFile(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("cannot read mounts: %w", err)
	}
	self, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return nil, fmt.Errorf("cannot read own cgroups: %w", err)
	}
	paths := parseProcCgroup(string(self))
	var all []hierarchy
	for _, h := range parseCgroupMounts(string(mounts)) {
		name, ok := h.key(), false
		if h.v2 {
			_, ok = paths[""]
		} else {
			h.controllers, name, ok = v1Line(paths, h.controllers)
		}
		if !ok {
			continue
		}
		if h.own, ok = relativeTo(h.mountRoot, paths[name]); !ok {
			continue // mounted from a part of the tree that does not hold us
		}
		h.mount = filepath.Join(root, h.mount)
		if h.v2 {
			h.controllers = v2Controllers(h.mount)
		}
		all = append(all, h)
	}
	return all, nil
}

// v1Line finds the line of /proc/self/cgroup that holds the mount's
// controllers, in the kernel's order.
func v1Line(paths map[string]string, mounted []string) (controllers []string, key string, ok bool) {
	for key := range paths {
		names := strings.Split(key, ",")
		if key == "" || !slices.Contains(mounted, names[0]) {
			continue
		}
		if slices.ContainsFunc(names, func(n string) bool { return slices.Contains(wantedV1, n) }) {
			return names, key, true
		}
	}
	return nil, "", false
}

// parseProcCgroup maps the controller field of each line to its path. The v2
// line has the empty field.
func parseProcCgroup(text string) map[string]string {
	paths := map[string]string{}
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) == 3 {
			paths[f[1]] = strings.TrimSuffix(f[2], " (deleted)")
		}
	}
	return paths
}

// parseCgroupMounts returns the cgroup mounts, the first of each hierarchy.
func parseCgroupMounts(text string) (all []hierarchy) {
	seen := map[string]bool{}
	s := bufio.NewScanner(strings.NewReader(text))
	for s.Scan() {
		before, after, ok := strings.Cut(s.Text(), " - ")
		f, t := strings.Fields(before), strings.Fields(after)
		if !ok || len(f) < 6 || len(t) < 3 || seen[f[2]] {
			continue
		}
		h := hierarchy{mountRoot: unescape(f[3]), mount: unescape(f[4]), v2: t[0] == "cgroup2"}
		if t[0] != "cgroup" && !h.v2 {
			continue
		}
		if !h.v2 {
			h.controllers = strings.Split(t[2], ",")
		}
		seen[f[2]] = true // major:minor names the file system
		all = append(all, h)
	}
	return all
}

// unescape undoes the kernel's \040 for a space.
func unescape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] == '\\' && i+4 <= len(s) {
			if v, err := strconv.ParseUint(s[i+1:i+4], 8, 8); err == nil {
				b.WriteByte(byte(v))
				i += 3
				continue
			}
		}
		b.WriteByte(s[i])
	}
	return b.String()
}

func relativeTo(root, p string) (string, bool) {
	if root == "/" {
		return p, !strings.HasPrefix(p, "/..")
	}
	if p == root {
		return "/", true
	}
	rest, ok := strings.CutPrefix(p, root+"/")
	return "/" + rest, ok
}

func v2Controllers(mount string) []string {
	text, err := os.ReadFile(filepath.Join(mount, "cgroup.controllers"))
	if err != nil {
		return nil
	}
	return strings.Fields(string(text))
}

// place chooses where our groups go. As root that is the top of what we see:
// a group outlives the session or service whose program made it. A group that
// somebody delegated to us is kept, because leaving it would escape from the
// limits set there; so is our own group when we are not root, where nothing
// else is ours to write.
func (h *hierarchy) place(root bool) error {
	h.base = "/"
	if !h.v2 {
		if !root {
			h.base = h.own
		}
		return nil
	}
	switch {
	case h.own != "/" && delegated(filepath.Join(h.mount, h.own)):
		h.base, h.vacate = h.own, true
	case root:
		// Only the real root has no type; a container's looks like it but may
		// not hold processes and give controllers to children at once.
		_, err := os.Stat(filepath.Join(h.mount, "cgroup.type"))
		h.vacate = err == nil
	case unix.Access(filepath.Join(h.mount, h.own, "cgroup.subtree_control"), unix.W_OK) == nil:
		h.base, h.vacate = h.own, true
	default:
		return fmt.Errorf("cannot use cgroup %q: not delegated to this user: %w", h.own, ErrNotSupported)
	}
	return nil
}

// delegated says whether systemd marked the group as its processes' own
// (Delegate=yes).
func delegated(dir string) bool {
	for _, name := range []string{"trusted.delegate", "user.delegate"} {
		var b [8]byte
		if n, err := unix.Getxattr(dir, name, b[:]); err == nil && string(b[:n]) == "1" {
			return true
		}
	}
	return false
}

// groupDir is the directory of one of our groups.
func (h hierarchy) groupDir(name string) string {
	return filepath.Join(h.mount, h.base, cgroupParent, name)
}

// procPath is what /proc/PID/cgroup says of a process in that group.
func (h hierarchy) procPath(name string) string {
	return path.Join(h.mountRoot, h.base, cgroupParent, name)
}

// prepare makes the parent of our groups and, on v2, hands the wanted
// controllers down to it.
func (h hierarchy) prepare(wanted []string) error {
	parent := h.groupDir("")
	if err := os.Mkdir(parent, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cannot make cgroup: %w", err)
	}
	if !h.v2 || len(wanted) == 0 {
		return nil
	}
	base := filepath.Dir(parent)
	err := enableControllers(base, wanted)
	if errors.Is(err, unix.EBUSY) && h.vacate {
		if err = vacate(base); err == nil {
			err = enableControllers(base, wanted)
		}
	}
	if err != nil {
		return err
	}
	return enableControllers(parent, wanted)
}

// enableControllers gives the children of dir the wanted controllers.
func enableControllers(dir string, wanted []string) error {
	text, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		return fmt.Errorf("cannot read cgroup controllers: %w", err)
	}
	have := strings.Fields(string(text))
	for _, c := range wanted {
		if slices.Contains(have, c) {
			continue
		}
		if err := writeControl(filepath.Join(dir, "cgroup.subtree_control"), "+"+c); err != nil {
			return fmt.Errorf("cannot enable cgroup controller %q: %w", c, err)
		}
	}
	return nil
}

// vacate moves the processes of a group that is ours into a leaf of it. On v2
// a group with processes cannot give controllers to its children.
func vacate(dir string) error {
	leaf := filepath.Join(dir, cgroupLeaf)
	if err := os.Mkdir(leaf, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("cannot make cgroup: %w", err)
	}
	for range 10 { // a process may fork while we move it
		pids, err := readProcs(dir)
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			err := writeControl(filepath.Join(leaf, "cgroup.procs"), strconv.Itoa(pid))
			if err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("cannot move pid %d to its leaf: %w", pid, err)
			}
		}
	}
	return fmt.Errorf("cannot empty cgroup %q: processes keep coming", dir)
}

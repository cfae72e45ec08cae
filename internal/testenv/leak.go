package testenv

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"testing"
	"time"

	"caisson.dev/caisson/internal/host"
)

// settle bounds how long things may take to end after the last test. Nothing
// waits that long unless something leaks.
const settle = 5 * time.Second

// Main runs the tests of a package and exits; see Run.
func Main(m *testing.M) { os.Exit(Run(m)) }

// Run runs the tests of a package and returns the exit status. When they pass
// but left something behind, it prints what and fails.
//
// Cgroups, mounts and network namespaces belong to the whole machine, so as
// root only one such package runs at a time. Temporary files go into a folder
// of this run, so that what is there at the end is ours.
func Run(m interface{ Run() int }) int {
	tmp, err := os.MkdirTemp("", "caisson-test-")
	if err != nil {
		fatal(err)
	}
	if os.Geteuid() == 0 {
		lock, err := host.LockExclusive(filepath.Join(os.TempDir(), "caisson-testenv.lock"))
		if err != nil {
			fatal(err)
		}
		defer lock.Unlock()
	}
	os.Setenv("TMPDIR", tmp)
	before := takeStock()
	code := m.Run()
	if left := leftovers(before); code == 0 && left != nil {
		fmt.Fprintf(os.Stderr, "testenv: the tests left behind:\n  %s\n", strings.Join(left, "\n  "))
		code = 1
	}
	if err := os.RemoveAll(tmp); err != nil {
		fatal(err)
	}
	return code
}

func fatal(err error) {
	fmt.Fprintln(os.Stderr, "testenv:", err)
	os.Exit(1)
}

// leftovers compares until nothing is left or the time is up.
func leftovers(before stock) (left []string) {
	for deadline := time.Now().Add(settle); ; time.Sleep(10 * time.Millisecond) {
		left = before.missingFrom(takeStock())
		if left == nil || time.Now().After(deadline) {
			return left
		}
	}
}

// stock is, for each kind of thing, what exists: a line for each, with how
// many look the same.
type stock map[string]map[string]int

func takeStock() stock {
	return stock{
		"goroutine":  goroutines(),
		"descriptor": descriptors(),
		"child":      children(),
		"cgroup":     cgroups(),
		"mount":      mounts(),
		"netns":      entries("/run/netns", "caisson"),
		"temp file":  entries(os.TempDir(), ""),
	}
}

// missingFrom lists what after has more of.
func (s stock) missingFrom(after stock) (left []string) {
	for kind, lines := range after {
		for line, n := range lines {
			if d := n - s[kind][line]; d > 0 {
				left = append(left, fmt.Sprintf("%s (%d): %s", kind, d, line))
			}
		}
	}
	slices.Sort(left)
	return left
}

// goroutines groups them by stack, as the profile does.
func goroutines() map[string]int {
	var b strings.Builder
	pprof.Lookup("goroutine").WriteTo(&b, 1)
	all := map[string]int{}
	for _, block := range strings.Split(b.String(), "\n\n") {
		var n int
		first, rest, ok := strings.Cut(strings.TrimSpace(block), "\n")
		if strings.HasPrefix(first, "goroutine profile") {
			first, rest, ok = strings.Cut(rest, "\n")
		}
		// Our own goroutine, and what os/signal and host keep for good.
		if _, err := fmt.Sscanf(first, "%d @", &n); err != nil || !ok ||
			strings.Contains(rest, "testenv.goroutines") || strings.Contains(rest, "os/signal.") ||
			strings.Contains(rest, "internal/host.starter") {
			continue
		}
		all[functions(rest)] += n
	}
	return all
}

// functions keeps the names of a stack, without addresses and lines.
func functions(stack string) string {
	var names []string
	s := bufio.NewScanner(strings.NewReader(stack))
	for s.Scan() {
		if f := strings.Fields(s.Text()); len(f) >= 3 && f[0] == "#" {
			name, _, _ := strings.Cut(f[2], "+0x")
			names = append(names, name)
		}
	}
	return strings.Join(names, " < ")
}

// descriptors leaves out the runtime's poller and cgroup files, which appear
// whenever it needs them.
func descriptors() map[string]int {
	all := map[string]int{}
	fds, err := host.ListFDs()
	if err != nil {
		return map[string]int{err.Error(): 1}
	}
	for _, fd := range fds {
		if fd.RuntimeOwned() || strings.HasPrefix(fd.Target, "/sys/fs/cgroup/") && fd.CloseOnExec {
			continue
		}
		target := fd.Target
		if kind, _, ok := strings.Cut(target, ":["); ok {
			target = kind // numbers of sockets and pipes tell nothing
		}
		all[target]++
	}
	return all
}

// children are the processes whose parent we are, zombies included, by name.
func children() map[string]int {
	all := map[string]int{}
	tasks, _ := filepath.Glob("/proc/self/task/*/children")
	for _, task := range tasks {
		text, _ := os.ReadFile(task)
		for _, pid := range strings.Fields(string(text)) {
			comm, _ := os.ReadFile("/proc/" + pid + "/comm")
			all["pid "+pid+" "+strings.TrimSpace(string(comm))]++
		}
	}
	return all
}

func cgroups() map[string]int {
	all := map[string]int{}
	c, err := host.DetectCgroups()
	if err != nil {
		return all
	}
	names, _ := c.List()
	for _, name := range names {
		all[name]++
	}
	return all
}

// mounts leaves out what other programs on the machine mount: ours have our
// name in their path, as the temporary folder of this run does.
func mounts() map[string]int {
	all := map[string]int{}
	text, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) > 4 && strings.Contains(f[4], "caisson") {
			all[f[4]]++
		}
	}
	return all
}

func entries(dir, part string) map[string]int {
	all := map[string]int{}
	list, _ := os.ReadDir(dir)
	for _, e := range list {
		if strings.Contains(e.Name(), part) {
			all[filepath.Join(dir, e.Name())]++
		}
	}
	return all
}

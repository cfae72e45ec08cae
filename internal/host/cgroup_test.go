package host_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"caisson.dev/caisson/internal/host"
	"caisson.dev/caisson/internal/reexec"
	"caisson.dev/caisson/internal/testenv"
)

func init() {
	reexec.Register("cg-join", cgJoin)
	reexec.Register("cg-bomb", cgBomb)
	reexec.Register("cg-eat", cgEat)
}

// newCgroup makes a group that is killed and removed when the test ends.
func newCgroup(t testing.TB, l host.Limits) *host.Cgroup {
	t.Helper()
	testenv.Need(t, "root", "cgroup")
	g, err := detect(t).Create(groupName(t), l)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dispose(t, g) })
	return g
}

func detect(t testing.TB) *host.Cgroups {
	t.Helper()
	c, err := host.DetectCgroups()
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func dispose(t testing.TB, g *host.Cgroup) {
	t.Helper()
	if err := errors.Join(g.Kill(), g.Remove()); err != nil {
		t.Error(err)
	}
}

func groupName(t testing.TB) string {
	return fmt.Sprintf("t-%d-%.40s", os.Getpid(), strings.NewReplacer("/", "-", "_", "-").Replace(t.Name()))
}

// inGroup starts a child of ours that joins the group and then does mode's
// work. The child writes a line when it is inside.
func inGroup(t *testing.T, g *host.Cgroup, mode string, args ...string) *child {
	t.Helper()
	cmd := reexec.Command(mode, append([]string{g.Name}, args...)...)
	c := &child{Cmd: cmd}
	var err error
	if c.in, err = cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.end)
	var line string
	if _, err := fmt.Fscanln(out, &line); err != nil || line != "joined" {
		t.Fatalf("child said %q, %v", line, err)
	}
	return c
}

type child struct {
	*exec.Cmd
	in   io.WriteCloser
	once sync.Once
	err  error
}

// end closes the child's stdin and waits for it.
func (c *child) end() {
	c.once.Do(func() {
		c.in.Close()
		c.err = c.Wait()
	})
}

func join() *host.Cgroup {
	c, err := host.DetectCgroups()
	if err == nil {
		var g *host.Cgroup
		if g, err = c.Open(os.Args[1]); err == nil {
			if err = g.Join(); err == nil {
				fmt.Println("joined")
				return g
			}
		}
	}
	fmt.Println(err)
	os.Exit(1)
	return nil
}

// cgJoin waits inside the group until its stdin ends.
func cgJoin() int {
	join()
	io.Copy(io.Discard, os.Stdin)
	return 0
}

// cgBomb forks shells that fork forever.
func cgBomb() int {
	join()
	err := syscall.Exec("/bin/sh", []string{"sh", "-c", "f() { f | f & }; trap '' TERM; while :; do f; done"}, []string{})
	fmt.Fprintln(os.Stderr, err)
	return 1
}

var eaten [][]byte

// cgEat touches as many MiB as each line of its stdin says.
func cgEat() int {
	join()
	for {
		var mib int
		if _, err := fmt.Fscanln(os.Stdin, &mib); err != nil {
			return 0
		}
		b, err := unix.Mmap(-1, 0, mib<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
		if err != nil {
			return 1
		}
		for i := 0; i < len(b); i += 4096 {
			b[i] = 1
		}
		eaten = append(eaten, b) // mapped for good: the process is killed or ends
	}
}

// Moving a common parent in and out of groups put 10 of 16 concurrent sandboxes
// into a wrong one; short-lived children that join for themselves must not.
func TestI5_FiftyConcurrentGroupsHoldTheirOwn(t *testing.T) {
	testenv.Need(t, "root", "cgroup")
	c := detect(t)
	before, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	const n = 50
	groups, children := make([]*host.Cgroup, n), make([]*child, n)
	t.Run("start", func(t *testing.T) {
		for i := range n {
			g, err := c.Create(fmt.Sprintf("t-%d-%d", os.Getpid(), i), host.Limits{MemoryMax: 64 << 20, Pids: 32, CPUQuota: 0.5, CPUWeight: 50})
			if err != nil {
				t.Fatal(err)
			}
			groups[i] = g
		}
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				cmd := reexec.Command("cg-join", groups[i].Name)
				k := &child{Cmd: cmd}
				k.in, _ = cmd.StdinPipe()
				out, _ := cmd.StdoutPipe()
				if err := cmd.Start(); err != nil {
					t.Error(err)
					return
				}
				var line string
				fmt.Fscanln(out, &line)
				children[i] = k
			})
		}
		wg.Wait()
	})
	for i, k := range children {
		if k == nil {
			continue
		}
		if err := groups[i].Verify(k.Process.Pid); err != nil {
			t.Error(err)
		}
		if got, err := groups[i].Procs(); err != nil || len(got) != 1 || got[0] != k.Process.Pid {
			t.Errorf("group %d holds %v (%v), want %d", i, got, err, k.Process.Pid)
		}
		if err := groups[(i+1)%n].Verify(k.Process.Pid); err == nil {
			t.Errorf("child %d verifies in the next one's group", i)
		}
	}
	var wg sync.WaitGroup
	for _, k := range children {
		if k != nil {
			wg.Go(k.end)
		}
	}
	wg.Wait()
	for _, g := range groups {
		if g != nil {
			dispose(t, g)
		}
	}
	if after, _ := os.ReadFile("/proc/self/cgroup"); string(after) != string(before) {
		t.Errorf("we moved:\n%s\nfrom\n%s", after, before)
	}
	names, err := c.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if strings.HasPrefix(name, fmt.Sprintf("t-%d-", os.Getpid())) {
			t.Errorf("group %q is left", name)
		}
	}
}

func TestI5_TheCPUQuotaCanBeNarrowed(t *testing.T) {
	g := newCgroup(t, host.Limits{MemoryMax: 64 << 20, Pids: 32, CPUQuota: 2})
	for _, cores := range []float64{2, 0.5, 0.05} {
		if err := g.SetCPUQuota(cores); err != nil {
			t.Fatal(err)
		}
		if got, err := g.CPUQuota(); err != nil || got != cores {
			t.Errorf("quota is %g, %v; want %g", got, err, cores)
		}
	}
	for _, cores := range []float64{0, -1, 0.001} {
		if err := g.SetCPUQuota(cores); err == nil {
			t.Errorf("%g cores were accepted", cores)
		}
	}
	if got, _ := g.CPUQuota(); got != 0.05 {
		t.Errorf("a refused change left %g cores", got)
	}
}

func TestI5_KillEndsAForkBomb(t *testing.T) {
	g := newCgroup(t, host.Limits{Pids: 200, CPUQuota: 1})
	inGroup(t, g, "cg-bomb")
	await(t, "the bomb to hit its limit", func() bool { n, err := g.PidsDenied(); return err == nil && n > 0 })
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	if pids, err := g.Procs(); err != nil || len(pids) != 0 {
		t.Errorf("left: %v %v", pids, err)
	}
	// The leader is our zombie; the others are for init to reap.
	await(t, "the dead to be reaped", func() bool { n, err := g.PidsCurrent(); return err == nil && n <= 1 })
}

func TestI5_MemoryIsMeasuredAndBounded(t *testing.T) {
	g := newCgroup(t, host.Limits{MemoryMax: 64 << 20, Pids: 32})
	c := inGroup(t, g, "cg-eat")
	fmt.Fprintln(c.in, 32)
	await(t, "32 MiB of anonymous memory", func() bool {
		u, err := g.Memory()
		return err == nil && u.Anon >= 32<<20 && u.Total >= u.Anon
	})
	fmt.Fprintln(c.in, 64)
	c.Wait()
	if ws := c.ProcessState.Sys().(syscall.WaitStatus); ws.Signal() != syscall.SIGKILL {
		t.Errorf("child over its limit ended with %v", c.ProcessState)
	}
	await(t, "the kernel to count the kill", func() bool { n, err := g.OOMKills(); return err == nil && n > 0 })
	u, err := g.Memory()
	if err != nil || u.Peak > 65<<20 || u.Peak < 32<<20 {
		t.Errorf("peak %d, %v", u.Peak, err)
	}
	if d, err := g.CPU(); err != nil || d <= 0 {
		t.Errorf("cpu %v, %v", d, err)
	}
	if n := testing.AllocsPerRun(100, func() { g.Memory() }); n != 0 {
		t.Errorf("Memory allocates %v times", n)
	}
}

// The owner sleeps in one read until the kernel writes: its thread's switches
// are counted by the kernel.
func TestI5_MemoryEventComesWithoutPolling(t *testing.T) {
	g := newCgroup(t, host.Limits{MemoryMax: 128 << 20})
	w, err := g.WatchMemory(32 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	c := inGroup(t, g, "cg-eat")
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := w.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("woke before anything happened: %v", err)
	}
	fmt.Fprintln(c.in, 48)
	ctx, cancel = context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if err := w.Wait(ctx); err != nil {
		t.Fatalf("no event at 48 MiB: %v", err)
	}
	if u, err := g.Memory(); err != nil || u.Total < 32<<20 {
		t.Errorf("woke at %+v, %v", u, err)
	}
	if err := w.Rearm(); err != nil {
		t.Error(err)
	}
}

func TestI5_LimitsThatNoKernelTakesAreRefused(t *testing.T) {
	testenv.Need(t, "root", "cgroup")
	for name, l := range map[string]host.Limits{
		"negative":  {MemoryMax: -1},
		"cpu crumb": {CPUQuota: 0.001},
		"weight":    {CPUWeight: 10001},
	} {
		if g, err := detect(t).Create(groupName(t), l); err == nil {
			t.Errorf("%s: created %v", name, g.Name)
		}
	}
	for _, name := range []string{"", "..", "a/b", "-a", "a b", strings.Repeat("a", 65)} {
		if _, err := detect(t).Create(name, host.Limits{}); err == nil {
			t.Errorf("created %q", name)
		}
	}
}

func TestCreateRefusesATakenNameAndOpenFindsIt(t *testing.T) {
	g := newCgroup(t, host.Limits{Pids: 10})
	if _, err := detect(t).Create(g.Name, host.Limits{Pids: 10}); !errors.Is(err, os.ErrExist) {
		t.Errorf("second create: %v", err)
	}
	if _, err := detect(t).Open(g.Name); err != nil {
		t.Errorf("the failed create took the group away: %v", err)
	}
	if _, err := detect(t).Open("t-none"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("open of nothing: %v", err)
	}
}

func TestKilledGroupIsRemoved(t *testing.T) {
	g := newCgroup(t, host.Limits{Pids: 10})
	c := inGroup(t, g, "cg-join")
	if err := g.Kill(); err != nil {
		t.Fatal(err)
	}
	c.end()
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
}

// await polls a condition of the kernel that has no event.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited 10 s for %s", what)
		}
	}
}

func BenchmarkCreateRemove(b *testing.B) {
	testenv.Need(b, "root", "cgroup")
	c, err := host.DetectCgroups()
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		g, err := c.Create("t-bench", host.Limits{MemoryMax: 64 << 20, Pids: 32, CPUQuota: 1})
		if err != nil {
			b.Fatal(err)
		}
		if err := g.Remove(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMemory(b *testing.B) {
	testenv.Need(b, "root", "cgroup")
	g := newCgroup(b, host.Limits{MemoryMax: 64 << 20})
	b.ReportAllocs()
	for b.Loop() {
		if _, err := g.Memory(); err != nil {
			b.Fatal(err)
		}
	}
}

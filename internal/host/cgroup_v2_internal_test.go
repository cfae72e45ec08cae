package host

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// onlyV2 is the machine's v2 tree alone, as on a machine without v1. On a
// hybrid one it has no memory, cpu or pids controller, but groups, joining,
// killing and handing down whatever controller there is are the real thing.
func onlyV2(t *testing.T) *Cgroups {
	t.Helper()
	need(t, "root", "cgroup")
	c, err := DetectCgroups()
	if err != nil {
		t.Fatal(err)
	}
	c.all = slices.DeleteFunc(c.all, func(h hierarchy) bool { return !h.v2 })
	if c.all == nil {
		t.Skip("needs a cgroup v2 tree")
	}
	return c
}

// need is testenv.Need, which this package cannot import from its own tests.
func need(t *testing.T, features ...string) {
	t.Helper()
	for _, name := range features {
		if p := Try(name); !p.OK && slices.Contains(strings.Split(os.Getenv("CAISSON_CI_FEATURES"), ","), name) {
			t.Fatalf("this lane promises %q, but: %s", name, p.Detail)
		} else if !p.OK {
			t.Skipf("needs %s: %s (%s)", name, p.Detail, p.Fix)
		}
	}
}

func TestV2GroupIsJoinedKilledAndRemoved(t *testing.T) {
	c := onlyV2(t)
	g, err := c.Create(fmt.Sprintf("t-v2-%d", os.Getpid()), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Remove()
	sleep := exec.Command("sleep", "60")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(g.Add(sleep.Process.Pid), g.Verify(sleep.Process.Pid)); err != nil {
		t.Error(err)
	}
	if err := g.Kill(); err != nil {
		t.Error(err)
	}
	if err := sleep.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("sleep ended with %v", err)
	}
	if err := g.Remove(); err != nil {
		t.Error(err)
	}
	if _, err := g.CPU(); err == nil {
		t.Error("a removed group still has usage")
	}
}

// A group that holds processes cannot give controllers to its children, so a
// delegated one is emptied into a leaf first.
func TestV2DelegatedGroupIsVacated(t *testing.T) {
	c := onlyV2(t)
	h := c.all[0]
	if len(h.controllers) == 0 {
		t.Skip("needs any v2 controller")
	}
	name := h.controllers[0]
	if err := enableControllers(h.mount, []string{name}); err != nil {
		t.Fatal(err)
	}
	base := filepath.Join(h.mount, fmt.Sprintf("caisson-test-%d", os.Getpid()))
	if err := os.Mkdir(base, 0o755); err != nil {
		t.Fatal(err)
	}
	defer removeTree(base)
	sleep := exec.Command("sleep", "60")
	if err := sleep.Start(); err != nil {
		t.Fatal(err)
	}
	defer sleep.Wait()
	defer sleep.Process.Kill()
	if err := writeControl(filepath.Join(base, "cgroup.procs"), fmt.Sprint(sleep.Process.Pid)); err != nil {
		t.Fatal(err)
	}
	h.base, h.vacate = "/"+filepath.Base(base), true
	if err := h.prepare([]string{name}); err != nil {
		t.Fatal(err)
	}
	text, _ := os.ReadFile(filepath.Join(base, cgroupParent, "cgroup.subtree_control"))
	if strings.TrimSpace(string(text)) != name {
		t.Errorf("children get %q, want %q", text, name)
	}
	pids, err := readProcs(filepath.Join(base, cgroupLeaf))
	if err != nil || !slices.Equal(pids, []int{sleep.Process.Pid}) {
		t.Errorf("leaf holds %v, %v", pids, err)
	}
	sleep.Process.Kill()
	sleep.Wait()
}

package testenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"caisson.dev/caisson/internal/host"
)

func TestMain(m *testing.M) { Main(m) }

// Each leaks one thing and returns how to undo it.
var leaks = map[string]func(t *testing.T) (undo func()){
	"goroutine": func(*testing.T) func() {
		stop, done := make(chan struct{}), make(chan struct{})
		go func() { <-stop; close(done) }()
		return func() { close(stop); <-done }
	},
	"descriptor": func(t *testing.T) func() {
		f, err := os.Open("/dev/null")
		if err != nil {
			t.Fatal(err)
		}
		return func() { f.Close() }
	},
	"child": func(t *testing.T) func() {
		cmd := exec.Command("sleep", "60")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		return func() { cmd.Process.Kill(); cmd.Wait() }
	},
	"temp file": func(t *testing.T) func() {
		dir, err := os.MkdirTemp("", "left-")
		if err != nil {
			t.Fatal(err)
		}
		return func() { os.Remove(dir) }
	},
	"cgroup": func(t *testing.T) func() {
		Need(t, "root", "cgroup")
		c, err := host.DetectCgroups()
		if err != nil {
			t.Fatal(err)
		}
		g, err := c.Create(fmt.Sprintf("t-leak-%d", os.Getpid()), host.Limits{})
		if err != nil {
			t.Fatal(err)
		}
		return func() { g.Remove() }
	},
	"mount": func(t *testing.T) func() {
		Need(t, "root")
		dir := t.TempDir()
		if out, err := exec.Command("mount", "-t", "tmpfs", "x", dir).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		return func() { exec.Command("umount", dir).Run() }
	},
	"netns": func(t *testing.T) func() {
		Need(t, "root", "netns")
		path := filepath.Join("/run/netns", fmt.Sprintf("caisson-leak-%d", os.Getpid()))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		return func() { os.Remove(path) }
	},
}

func TestStockSeesEachLeak(t *testing.T) {
	for kind, leak := range leaks {
		t.Run(kind, func(t *testing.T) {
			t.TempDir() // so that the folder is there before
			before := takeStock()
			undo := leak(t)
			left := strings.Join(before.missingFrom(takeStock()), "\n")
			undo()
			if !strings.Contains(left, kind+" (") {
				t.Errorf("not seen; what was seen: %q", left)
			}
			if left := leftovers(before); left != nil {
				t.Errorf("seen after it was undone: %q", left)
			}
		})
	}
}

func TestNeedFailsWherePromised(t *testing.T) {
	probed["impossible"] = host.Probe{Name: "impossible", Detail: "never"}
	defer delete(probed, "impossible")
	for name, test := range map[string]struct{ feature, promise, want string }{
		"promised":     {"impossible", "root,impossible", "fatal"},
		"unknown name": {"teleport", "", "fatal"},
		"there":        {"there", "there", ""},
		"not promised": {"kvm-not-here", "root", "skip"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv(PromiseEnv, test.promise)
			if test.feature == "there" {
				probed["there"] = host.Probe{Name: "there", OK: true}
				defer delete(probed, "there")
			}
			feature := test.feature
			if feature == "kvm-not-here" {
				old, had := probed["kvm"]
				probed["kvm"] = host.Probe{Name: "kvm", Detail: "no device"}
				defer func() {
					if delete(probed, "kvm"); had {
						probed["kvm"] = old
					}
				}()
				feature = "kvm"
			}
			r := &recorder{TB: t}
			r.run(func() { Need(r, feature) })
			if r.result != test.want {
				t.Errorf("got %q (%s), want %q", r.result, r.text, test.want)
			}
		})
	}
}

// recorder is a test that only notes how it would have ended.
type recorder struct {
	testing.TB
	result, text string
}

type ended struct{}

func (r *recorder) run(f func()) {
	defer func() {
		if v := recover(); v != nil && v != (ended{}) {
			panic(v)
		}
	}()
	f()
}

func (r *recorder) Helper() {}

func (r *recorder) Fatalf(format string, args ...any) { r.end("fatal", format, args) }
func (r *recorder) Skipf(format string, args ...any)  { r.end("skip", format, args) }

func (r *recorder) end(result, format string, args []any) {
	r.result, r.text = result, fmt.Sprintf(format, args...)
	panic(ended{})
}

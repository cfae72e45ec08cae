// Package testenv is what tests need from the machine: features that are
// probed and never skipped in silence, and a check that a package's tests
// leave nothing behind. It never starts or stops anything.
//
// A package whose tests make processes, mounts or cgroups has
//
//	func TestMain(m *testing.M) { reexec.Dispatch(); testenv.Main(m) }
package testenv

import (
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"caisson.dev/caisson/internal/host"
)

// PromiseEnv lists, separated by commas, the features that this lane of the
// CI has. A test that would skip for want of one fails instead.
const PromiseEnv = "CAISSON_CI_FEATURES"

var (
	mu     sync.Mutex
	probed = map[string]host.Probe{}
)

// Need skips the test when the machine lacks a feature (a name of
// host.ProbeNames, or "norace"), and fails it when the lane promises it or the
// name is unknown.
func Need(t testing.TB, features ...string) {
	t.Helper()
	promised := strings.Split(os.Getenv(PromiseEnv), ",")
	for _, name := range features {
		p := probe(name)
		switch {
		case p.OK:
		case slices.Contains(promised, name):
			t.Fatalf("%s promises %q, but: %s (%s)", PromiseEnv, name, p.Detail, p.Fix)
		case name != "norace" && !slices.Contains(host.ProbeNames(), name):
			t.Fatalf("no probe is called %q (have: %s)", name, strings.Join(host.ProbeNames(), ", "))
		default:
			t.Skipf("needs %s: %s (%s)", name, p.Detail, p.Fix)
		}
	}
}

// probe tries a feature once per process.
func probe(name string) host.Probe {
	mu.Lock()
	defer mu.Unlock()
	if p, ok := probed[name]; ok {
		return p
	}
	p := host.Try(name)
	if name == "norace" { // children that drop privileges on all threads, and sentries, cannot run with it
		p = host.Probe{Name: name, OK: !raceEnabled, Detail: "built with -race", Fix: "go test without -race"}
	}
	probed[name] = p
	return p
}

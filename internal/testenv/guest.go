package testenv

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// NeedGuest skips a test that starts sandboxes when this build has no guest
// program (err is what program.Binary said), and fails it where the lane
// promises "gvisor".
func NeedGuest(t testing.TB, err error) {
	t.Helper()
	Need(t, "root", "cgroup", "userns", "netns", "nocgo", "norace")
	if err == nil {
		return
	}
	if slices.Contains(strings.Split(os.Getenv(PromiseEnv), ","), "gvisor") {
		t.Fatalf("%s promises gvisor, but: %v", PromiseEnv, err)
	}
	t.Skipf("needs the guest program: %v; run `make guest` first", err)
}

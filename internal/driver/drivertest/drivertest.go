// Package drivertest is the suite that every isolation level must pass. It
// uses real sandboxes and looks at them from the host; what runs inside is
// only as much as the contract of package driver needs.
package drivertest

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"caisson.dev/caisson/internal/driver"
	"caisson.dev/caisson/internal/host"
)

// Subject is the level under test.
type Subject struct {
	Driver driver.Driver
	// Spec returns a valid spec of a sandbox whose PID 1 listens on Port.
	Spec func(id string) driver.Spec
	Port uint16
	// Hold runs in a child process: it creates an attached sandbox, prints a
	// line and sleeps. The suite kills it.
	Hold func(t *testing.T, id string) *os.Process
}

var counter atomic.Int64

func newID() string { return fmt.Sprintf("t%dx%d", os.Getpid(), counter.Add(1)) }

// Run runs the whole suite.
func Run(t *testing.T, s Subject) {
	for name, f := range map[string]func(*testing.T, Subject){
		"Lifecycle":                        lifecycle,
		"I3_ProbeIsHonest":                 probeIsHonest,
		"I5_EveryProcessIsInItsCgroups":    concurrentCreates,
		"I5_TheQuotaHoldsFromTheFirstDial": quotaFromDial,
		"I13_FailedCreateLeavesNothing":    failedCreate,
		"I13_CancelledCreateLeaves":        cancelledCreate,
		"I13_KillNeedsNoHelp":              killNeedsNoHelp,
		"I13_CleanFindsWhatADeadLeft":      cleanDetached,
		"I13_AttachedDiesWithItsMaker":     attachedDies,
		"I16_WaitSeesTheKernelEnd":         waitSeesEnd,
		"I16_UsageIsMeasuredOnTheHost":     usage,
		"BadIDsAreRefused":                 badIDs,
		"DialToAClosedPortFails":           dialClosed,
		"ManySandboxesAnswerAtOnce":        manyAnswer,
		"I7_SandboxesHaveTheirOwnStates":   ownNamespaces,
	} {
		t.Run(name, func(t *testing.T) { f(t, s) })
	}
}

func create(t *testing.T, s Subject) driver.Instance {
	t.Helper()
	in, err := s.Driver.Create(t.Context(), s.Spec(newID()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := in.Kill(); err != nil {
			t.Errorf("kill: %v", err)
		}
	})
	return in
}

// dial waits for PID 1 to listen.
func dial(t *testing.T, s Subject, in driver.Instance) *os.File {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		f, err := in.Dial(t.Context(), s.Port)
		if err == nil {
			return f
		}
		if time.Now().After(deadline) {
			t.Fatalf("PID 1 does not listen: %v", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func lifecycle(t *testing.T, s Subject) {
	in := create(t, s)
	dial(t, s, in).Close()
	procs, err := in.Processes()
	if err != nil || len(procs) == 0 {
		t.Fatalf("processes: %v, %v", procs, err)
	}
	if err := in.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := in.Wait(t.Context()); err != nil {
		t.Errorf("wait after kill: %v", err)
	}
	if err := in.Kill(); err != nil {
		t.Errorf("second kill: %v", err)
	}
	assertGone(t, in.ID(), procs)
}

// assertGone checks that no process and no cgroup of a sandbox is left.
func assertGone(t *testing.T, id string, procs []int) {
	t.Helper()
	for _, p := range procs {
		if unix.Kill(p, 0) == nil && !isZombie(p) {
			t.Errorf("process %d of %s still lives", p, id)
		}
	}
	cgs, err := host.DetectCgroups()
	if err != nil {
		t.Fatal(err)
	}
	if g, err := cgs.Open(id); err == nil {
		g.Close()
		t.Errorf("cgroup of %s is still there", id)
	}
}

func isZombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(b), ") Z ")
}

func probeIsHonest(t *testing.T, s Subject) {
	if missing := s.Driver.Probe(t.Context()); len(missing) != 0 {
		t.Errorf("the suite runs, yet the probe misses %+v", missing)
	}
	if s.Driver.Level() == "" {
		t.Error("the level has no name")
	}
}

// The trap of facts on cgroup v1: a library that moves the calling process
// between cgroups puts concurrent sandboxes into each other's.
func concurrentCreates(t *testing.T, s Subject) {
	const n = 50
	cgs, err := host.DetectCgroups()
	if err != nil {
		t.Fatal(err)
	}
	before := ownCgroups(t)
	var wg sync.WaitGroup
	sem := make(chan struct{}, 8)
	instances := make([]driver.Instance, n)
	for i := range n {
		wg.Go(func() {
			sem <- struct{}{}
			defer func() { <-sem }()
			in, err := s.Driver.Create(t.Context(), s.Spec(newID()))
			if err != nil {
				t.Errorf("create %d: %v", i, err)
				return
			}
			instances[i] = in
		})
	}
	wg.Wait()
	for _, in := range instances {
		if in != nil {
			verifyCgroups(t, cgs, in)
		}
	}
	if after := ownCgroups(t); after != before {
		t.Errorf("the caller was moved: from\n%sto\n%s", before, after)
	}
	for _, in := range instances {
		if in != nil {
			wg.Go(func() {
				if err := in.Kill(); err != nil {
					t.Errorf("kill: %v", err)
				}
			})
		}
	}
	wg.Wait()
}

func verifyCgroups(t *testing.T, cgs *host.Cgroups, in driver.Instance) {
	t.Helper()
	g, err := cgs.Open(in.ID())
	if err != nil {
		t.Error(err)
		return
	}
	defer g.Close()
	procs, err := in.Processes()
	if err != nil || len(procs) == 0 {
		t.Errorf("processes of %s: %v, %v", in.ID(), procs, err)
	}
	for _, p := range procs {
		if err := g.Verify(p); err != nil && unix.Kill(p, 0) == nil {
			t.Error(err)
		}
	}
}

// quotaFromDial: a boot may use more than the quota, but what a caller can
// start may not, and a second connection changes nothing.
func quotaFromDial(t *testing.T, s Subject) {
	cgs, err := host.DetectCgroups()
	if err != nil {
		t.Fatal(err)
	}
	spec := s.Spec(newID())
	spec.Limits.CPU = 0.25
	in, err := s.Driver.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Kill()
	g, err := cgs.Open(in.ID())
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for range 2 {
		dial(t, s, in).Close()
		if got, err := g.CPUQuota(); err != nil || got != spec.Limits.CPU {
			t.Errorf("the quota after Dial is %g cores, %v; want %g", got, err, spec.Limits.CPU)
		}
	}
}

func ownCgroups(t *testing.T) string {
	b, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func failedCreate(t *testing.T, s Subject) {
	spec := s.Spec(newID())
	spec.Skeleton = "/nonexistent.erofs"
	in, err := s.Driver.Create(t.Context(), spec)
	if err == nil {
		in.Kill()
		t.Fatal("a sandbox without a root was made")
	}
	assertGone(t, spec.ID, nil)
}

func cancelledCreate(t *testing.T, s Subject) {
	for _, after := range []time.Duration{0, time.Millisecond, 10 * time.Millisecond, 30 * time.Millisecond, 60 * time.Millisecond} {
		spec := s.Spec(newID())
		ctx, cancel := context.WithTimeout(t.Context(), after)
		in, err := s.Driver.Create(ctx, spec)
		cancel()
		if err == nil {
			if err := in.Kill(); err != nil {
				t.Error(err)
			}
		}
		assertGone(t, spec.ID, nil)
	}
}

func killNeedsNoHelp(t *testing.T, s Subject) {
	in := create(t, s)
	procs, err := in.Processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		_ = unix.Kill(p, unix.SIGSTOP)
	}
	if err := in.Kill(); err != nil {
		t.Fatal(err)
	}
	assertGone(t, in.ID(), procs)
}

func cleanDetached(t *testing.T, s Subject) {
	spec := s.Spec(newID())
	spec.Attached = false
	in, err := s.Driver.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	procs, err := in.Processes()
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Driver.Clean(spec.ID); err != nil {
		t.Fatal(err)
	}
	assertGone(t, spec.ID, procs)
	if err := in.Wait(t.Context()); err != nil {
		t.Error(err)
	}
	if err := s.Driver.Clean(spec.ID); err != nil {
		t.Errorf("cleaning what is clean: %v", err)
	}
	if err := in.Kill(); err != nil {
		t.Errorf("kill after clean: %v", err)
	}
}

// kill -9 of the maker: the kernel ends an attached sandbox at once, and the
// next start finds what is left.
func attachedDies(t *testing.T, s Subject) {
	if s.Hold == nil {
		t.Fatal("the subject has no Hold")
	}
	id := newID()
	p := s.Hold(t, id)
	cgs, err := host.DetectCgroups()
	if err != nil {
		t.Fatal(err)
	}
	g, err := cgs.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	if procs, err := g.Procs(); err != nil || len(procs) == 0 {
		t.Fatalf("before the kill: %v, %v", procs, err)
	}
	if err := p.Kill(); err != nil {
		t.Fatal(err)
	}
	_, _ = p.Wait()
	waitFor(t, "the sandbox to die with its maker", func() bool {
		procs, err := g.Procs()
		return err == nil && len(procs) == 0
	})
	if err := s.Driver.Clean(id); err != nil {
		t.Error(err)
	}
	assertGone(t, id, nil)
}

func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("gave up waiting for %s", what)
		}
	}
}

func waitSeesEnd(t *testing.T, s Subject) {
	in := create(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	if err := in.Wait(ctx); err == nil {
		t.Error("Wait returned for a live sandbox")
	}
	cancel()
	procs, err := in.Processes()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range procs {
		_ = unix.Kill(p, unix.SIGKILL)
	}
	ctx, cancel = context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if err := in.Wait(ctx); err != nil {
		t.Errorf("Wait did not see the end: %v", err)
	}
}

func usage(t *testing.T, s Subject) {
	in := create(t, s)
	dial(t, s, in).Close()
	u, err := in.Usage()
	if err != nil {
		t.Fatal(err)
	}
	if u.Memory <= 0 || u.MemoryPeak < u.Memory || u.CPU <= 0 || u.OOMKills != 0 {
		t.Errorf("usage %+v", u)
	}
}

func badIDs(t *testing.T, s Subject) {
	for _, id := range []string{"", ".", "..", "a/b", "../x", "A", "a b", "a\x00b", strings.Repeat("a", 200)} {
		in, err := s.Driver.Create(t.Context(), s.Spec(id))
		if err == nil {
			in.Kill()
			t.Errorf("id %q was taken", id)
		}
		if err := s.Driver.Clean(id); err == nil {
			t.Errorf("Clean took id %q", id)
		}
	}
	in := create(t, s)
	if again, err := s.Driver.Create(t.Context(), s.Spec(in.ID())); err == nil {
		again.Kill()
		t.Error("an id was given twice")
	}
	dial(t, s, in).Close() // and the first one still lives
}

func dialClosed(t *testing.T, s Subject) {
	in := create(t, s)
	dial(t, s, in).Close()
	if f, err := in.Dial(t.Context(), 1); err == nil {
		f.Close()
		t.Error("a port on which nobody listens was dialled")
	}
}

func manyAnswer(t *testing.T, s Subject) {
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			in, err := s.Driver.Create(t.Context(), s.Spec(newID()))
			if err != nil {
				t.Error(err)
				return
			}
			defer in.Kill()
			for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
				f, err := in.Dial(t.Context(), s.Port)
				if err == nil {
					f.Close()
					return
				}
				if time.Now().After(deadline) {
					t.Errorf("%s does not answer: %v", in.ID(), err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// ownNamespaces: no process of a sandbox shares a network, mount, PID or IPC
// namespace with us or with another sandbox's.
func ownNamespaces(t *testing.T, s Subject) {
	a, b := create(t, s), create(t, s)
	dial(t, s, a).Close()
	dial(t, s, b).Close()
	seen := map[string]string{}
	for _, kind := range []string{"net", "mnt", "ipc"} {
		link, err := os.Readlink("/proc/self/ns/" + kind)
		if err != nil {
			t.Fatal(err)
		}
		seen[link] = "the host"
	}
	for _, in := range []driver.Instance{a, b} {
		procs, err := in.Processes()
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range procs {
			for _, kind := range []string{"net", "mnt", "ipc"} {
				link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", p, kind))
				if err != nil {
					continue // it ended
				}
				if owner, ok := seen[link]; ok && owner != in.ID() {
					t.Errorf("process %d of %s is in %s of %s", p, in.ID(), link, owner)
				}
				seen[link] = in.ID()
			}
		}
	}
}

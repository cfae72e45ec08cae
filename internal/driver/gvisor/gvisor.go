// Package gvisor is the isolation level "gvisor": a kernel of its own in user
// space, linked into our binary and started as children of it. It holds what
// is specific to gVisor; limits, policy and what runs inside are decided
// elsewhere.
package gvisor

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"

	"gvisor.dev/gvisor/pkg/cleanup"

	"caisson.dev/caisson/internal/driver"
	"caisson.dev/caisson/internal/host"
)

// Level is the name of this isolation level.
const Level = "gvisor"

// Driver makes gVisor sandboxes. RunDir is a root-owned directory on a tmpfs,
// such as /run/caisson; all sandboxes of a machine share it.
type Driver struct {
	RunDir string
	LogDir string // for bug reports: everything that gVisor logs; empty for nothing
	Spare  *Spare // for the first Create, if there is one
}

var _ driver.Driver = (*Driver)(nil)

func (d *Driver) Level() string { return Level }

func (d *Driver) rootDir() string           { return filepath.Join(d.RunDir, "gvisor") }
func (d *Driver) stateDir(id string) string { return filepath.Join(d.RunDir, "sandbox", id) }

// cgroupName is below host's own parent group, which it adds.
func cgroupName(id string) string { return id }

// bootCPU is the processor quota while the sandbox boots: what runs until the
// first Dial is ours, and needs some 200 ms of processor time, most of which a
// quota of one core would have it wait for.
func bootCPU(cores float64) float64 { return max(cores, float64(runtime.NumCPU())) }

var idPattern = regexp.MustCompile(`^[a-z0-9]{1,40}$`)

// Create starts a sandbox. The order matters: the cgroup stands before the
// first process of the sandbox exists.
func (d *Driver) Create(ctx context.Context, spec driver.Spec) (driver.Instance, error) {
	if !idPattern.MatchString(spec.ID) {
		return nil, fmt.Errorf("cannot create sandbox: bad id %q", spec.ID)
	}
	cgs, err := host.DetectCgroups()
	if err != nil {
		return nil, err
	}
	g, err := cgs.Create(cgroupName(spec.ID), host.Limits{
		MemoryMax: spec.Limits.MemoryHard, Pids: spec.Limits.Pids,
		CPUQuota: bootCPU(spec.Limits.CPU), CPUWeight: int(spec.Limits.CPUWeight),
	})
	if err != nil {
		return nil, err
	}
	cu := cleanup.Make(func() { d.removeAll(spec.ID, g) })
	defer cu.Clean()
	for _, dir := range []string{d.rootDir(), d.stateDir(spec.ID)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fmt.Errorf("cannot make the state directory: %w", err)
		}
	}
	slot, held, err := d.takeSlot()
	if err != nil {
		return nil, err
	}
	cu.Add(func() { _ = held.UnlockRemove() })
	child, res, err := d.boot(ctx, createRequest{
		Spec: spec, StateDir: d.stateDir(spec.ID), RootDir: d.rootDir(), LogDir: d.LogDir,
		Cgroup: cgroupName(spec.ID), Slot: slot,
	})
	if err != nil {
		return nil, err
	}
	in, err := d.newInstance(spec, g, res, child)
	if err != nil {
		return nil, err
	}
	in.slot = held
	cu.Release()
	return in, nil
}

// Clean removes everything that a sandbox id may have left.
func (d *Driver) Clean(id string) error {
	if !idPattern.MatchString(id) {
		return fmt.Errorf("cannot clean sandbox: bad id %q", id)
	}
	cgs, err := host.DetectCgroups()
	if err != nil {
		return err
	}
	g, err := cgs.Open(cgroupName(id))
	if err != nil {
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		g = nil
	}
	return d.removeAll(id, g)
}

// removeAll kills every process of the sandbox and removes its cgroup and
// files. It needs nothing from the sandbox.
func (d *Driver) removeAll(id string, g *host.Cgroup) error {
	var errs []error
	if g != nil {
		errs = append(errs, g.Kill(), g.Remove())
		g.Close()
	}
	for _, name := range []string{
		"runsc-" + id + ".sock",
		id + "_sandbox:" + id + ".state",
		id + "_sandbox:" + id + ".lock",
	} {
		if err := os.Remove(filepath.Join(d.rootDir(), name)); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	errs = append(errs, os.RemoveAll(d.stateDir(id)))
	return errors.Join(errs...)
}

// takeSlot chooses a range of ids that no live sandbox of this machine has,
// and holds it by a lock that ends with this process.
func (d *Driver) takeSlot() (uint32, *host.Lock, error) {
	dir := filepath.Join(d.RunDir, "slot")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return 0, nil, fmt.Errorf("cannot choose a uid range: %w", err)
	}
	for range 64 {
		var b [4]byte
		if _, err := rand.Read(b[:]); err != nil {
			return 0, nil, fmt.Errorf("cannot choose a uid range: %w", err)
		}
		slot := binary.LittleEndian.Uint32(b[:]) % idSlots
		held, err := host.TryLockExclusive(filepath.Join(dir, strconv.Itoa(int(slot))))
		if err == nil {
			return slot, held, nil
		}
		if !errors.Is(err, host.ErrLocked) {
			return 0, nil, fmt.Errorf("cannot choose a uid range: %w", err)
		}
	}
	return 0, nil, errors.New("cannot choose a uid range: nearly all are taken")
}

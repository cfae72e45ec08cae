// Package driver is the contract of an isolation level: what the rest of
// Caisson asks of a sandbox kernel, and nothing about how one works. A level
// gives exactly what was asked or an error; it never falls back to another
// (I3). Package drivertest is the suite that every level must pass.
package driver

import (
	"context"
	"fmt"
	"net"
	"os"
	"time"
)

// Driver makes sandboxes of one isolation level.
type Driver interface {
	// Level is the name users ask for, such as "gvisor".
	Level() string
	// Probe says what this machine lacks for the level; empty means ready.
	Probe(ctx context.Context) []Missing
	// Create starts a sandbox whose PID 1 is the guest program, inside its
	// limits from the first instruction on. On error nothing is left behind.
	Create(ctx context.Context, spec Spec) (Instance, error)
	// Clean removes what a dead process of ours left of the sandbox id. It is
	// safe to call for an id that never existed.
	Clean(id string) error
}

// Instance is one running sandbox.
type Instance interface {
	ID() string
	// Dial connects to a TCP port on the sandbox's loopback. The file is a
	// connected stream socket, so that it can be handed to another process.
	Dial(ctx context.Context, port uint16) (*os.File, error)
	// Usage is measured on the host; it does not ask the guest (I16).
	Usage() (Usage, error)
	// MemoryEvents wakes when host memory of the sandbox passes Spec.Limits
	// thresholds. It costs nothing while the sandbox is idle.
	MemoryEvents() <-chan struct{}
	// Wait returns when the sandbox kernel has ended, by itself or killed.
	Wait(ctx context.Context) error
	// Kill ends the sandbox and removes every host object it had. It is
	// idempotent and does not need the guest's help.
	Kill() error
	// Processes lists the host processes of the sandbox, for tests of
	// posture and for the janitor.
	Processes() ([]int, error)
}

// Missing is one thing a level needs and does not find.
type Missing struct {
	What string // "cgroup controller pids"
	Fix  string // one line a person can act on
}

// Spec describes a sandbox to create. Paths are absolute host paths.
type Spec struct {
	ID string // [a-z0-9]+, unique on the machine

	// Skeleton is the EROFS file that holds the guest program and the mount
	// points; it is PID 1's root and never the user's.
	Skeleton string
	// Image is the EROFS file of the user's root. Empty with Host set means
	// the host's own /usr.
	Image string
	Host  *HostImage

	Mounts []Mount

	// GuestConfig is what PID 1 reads from descriptor guest.ConfigFD.
	GuestConfig string

	Limits Limits

	// MapUID and MapGID are the guest's ids that appear as the owner of each
	// mounted directory, and whose writes arrive as that owner.
	MapUID, MapGID uint32

	// Attached sandboxes die with the process that made them, by the kernel's
	// doing. Others outlive it and are found again by id.
	Attached bool
}

// HostImage is a root made of the host's package-owned, world-readable /usr.
type HostImage struct {
	Local bool // /usr/local too
	Opt   bool // /opt too
}

// Mount is a host directory or file inside the sandbox, at /mnt/<index> of
// PID 1's root; the guest program binds it where the user wants it.
type Mount struct {
	Source   string // resolved, no symlinks
	ReadOnly bool
	File     bool
}

// Limits are enforced by the host's cgroups around the whole sandbox, and are
// wider than what the guest is told, by the margins noted.
type Limits struct {
	Memory     int64   // bytes of guest memory; MemoryEvents fires near it
	MemoryHard int64   // bytes at which the host kernel kills; > Memory
	Pids       int64   // host tasks
	CPU        float64 // cores; holds from the first Dial on, the boot before may use more
	CPUWeight  int64   // 1..10000, 100 is normal
}

// Usage is what a sandbox uses, as the host sees it.
type Usage struct {
	Memory     int64 // bytes now: anonymous and shared memory, no page cache
	Charged    int64 // the same with the page cache, which is what MemoryEvents goes by
	MemoryPeak int64 // bytes, highest seen by the kernel
	CPU        time.Duration
	OOMKills   int64 // kills by the host kernel; the sandbox is lost then
}

// MountPoint is where Mounts[i] appears in PID 1's root; the skeleton has it.
func MountPoint(i int, file bool) string {
	if file {
		return fmt.Sprintf("/mnt/f%d", i)
	}
	return fmt.Sprintf("/mnt/%d", i)
}

// MaxMounts is the number of mount points in the skeleton.
const MaxMounts = 16

// FileConn turns the file of Dial into a net.Conn and closes the file.
func FileConn(f *os.File) (net.Conn, error) {
	defer f.Close()
	return net.FileConn(f)
}

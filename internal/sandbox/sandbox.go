// Package sandbox owns the life of a sandbox: it makes one through a driver,
// watches its limits from the host, and says why it ended. It trusts nothing
// that the guest says about itself (I16); the guest's word is used for names
// in messages and for the program's own exit status, and for nothing else.
package sandbox

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"time"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/driver"
	"caisson.dev/caisson/internal/guest"
	"caisson.dev/caisson/internal/guest/attach"
)

// Config is what a run needs beside the request.
type Config struct {
	Driver   driver.Driver
	RunDir   string // where live sandboxes are known by their locks
	Skeleton string // EROFS file with the guest program
	Image    Image
	Stdio    attach.Stdio
	Terminal Terminal  // with RunRequest.TTY
	Began    time.Time // when the command started, for the result

	// Destinations are the opened directories of the request's artifacts.
	Destinations []*os.Root
}

// Image is the resolved root of the user's processes.
type Image struct {
	Name    string
	Digest  string
	Path    string // EROFS file; empty with Host
	Host    *driver.HostImage
	Env     []string
	WorkDir string
}

// Terminal is the caller's terminal.
type Terminal struct {
	Cols, Rows uint32
	Resized    <-chan [2]uint32 // columns, rows
}

// kernelAllowance is the memory of the sandbox's own kernel, file server and
// guest program, which is not the guest's to use.
const kernelAllowance = 40 * api.MiB

// hardMargin is the room between the limit at which a process is killed and
// the limit at which the host kernel would kill the sandbox whole. A program
// can touch 1 MiB in a millisecond, and on a busy machine it takes some tens
// of them until the right process is dead.
func hardMargin(memory int64) int64 { return max(128*api.MiB, memory/4) }

// hostLimits are the limits of the cgroup around a sandbox with limits l.
func hostLimits(l api.Limits) driver.Limits {
	soft := l.Memory + kernelAllowance
	return driver.Limits{
		Memory:     soft,
		MemoryHard: soft + hardMargin(l.Memory),
		Pids:       l.Pids*5 + 64, // a guest task takes 2 host threads, and 3.7 were seen under forks that fail
		CPU:        l.CPU,
		CPUWeight:  l.CPUWeight,
	}
}

// newID returns a random id that fits in host names and file names.
func newID() (string, error) {
	var b [10]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("cannot make an id: %w", err)
	}
	return "r" + hex.EncodeToString(b[:]), nil
}

func newToken() (string, error) {
	var b [32]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", fmt.Errorf("cannot make a token: %w", err)
	}
	return hex.EncodeToString(b[:]), nil
}

// dialGuest waits until the guest program listens, and connects to it.
func dialGuest(ctx context.Context, in driver.Instance) (*os.File, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	ended := make(chan struct{})
	go func() {
		if in.Wait(ctx) == nil {
			close(ended)
		}
	}()
	// Each try costs the sandbox kernel work that its start needs; the guest
	// program listens 10 ms after it starts at best.
	wait := 8 * time.Millisecond
	for ; ; wait = 2 * time.Millisecond {
		select {
		case <-ended:
			return nil, errors.New("the guest program ended at once")
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(wait):
		}
		file, err := in.Dial(ctx, guest.Port)
		if err == nil {
			return file, nil
		}
		if ctx.Err() != nil {
			return nil, fmt.Errorf("the guest program does not answer: %w", err)
		}
	}
}

package sandbox

import (
	"os"
	"path/filepath"
	"strings"

	"caisson.dev/caisson/internal/driver"
	"caisson.dev/caisson/internal/host"
)

// Each live run holds a lock on its own file below the run directory, from
// before its first host object until after its last. A lock that nobody holds
// marks what a killed process left.
const lockSuffix = ".lock"

func lockPath(runDir, id string) string {
	return filepath.Join(runDir, "lock", id+lockSuffix)
}

// claim takes the lock of a new run.
func claim(runDir, id string) (*host.Lock, error) {
	if err := os.MkdirAll(filepath.Join(runDir, "lock"), 0o700); err != nil {
		return nil, err
	}
	// It waits: the sweep of another run may just be looking at the new file.
	return host.LockExclusive(lockPath(runDir, id))
}

// Sweep removes what runs left behind that no longer live (I13). It touches
// nothing of a run that does, and what it cannot remove now it tries again
// next time.
func Sweep(d driver.Driver, runDir string) (cleaned []string) {
	entries, err := os.ReadDir(filepath.Join(runDir, "lock"))
	if err != nil {
		return nil
	}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), lockSuffix)
		if !ok {
			continue
		}
		lock, err := host.TryLockExclusive(lockPath(runDir, id))
		if err != nil {
			continue // alive
		}
		if d.Clean(id) == nil {
			cleaned = append(cleaned, id)
			_ = lock.UnlockRemove()
			continue
		}
		_ = lock.Unlock()
	}
	return cleaned
}

package image

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"caisson.dev/caisson/internal/host"
)

// scratch is a directory for work in progress. Its lock, a file beside it, is
// made before it and removed after it, and ends with its process: whatever
// kills us, the next cleaning finds what nobody works on any more (I13).
type scratch struct {
	dir  string
	lock *host.Lock
}

func newScratch(tmp string) (*scratch, error) {
	for {
		dir := filepath.Join(tmp, strings.ToLower(rand.Text()))
		lock, err := host.TryLockExclusive(dir + ".lock")
		if errors.Is(err, host.ErrLocked) {
			continue // a cleaner saw the file before it was locked, and removes it
		}
		if err != nil {
			return nil, err
		}
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, errors.Join(err, lock.UnlockRemove())
		}
		return &scratch{dir, lock}, nil
	}
}

func (s *scratch) remove() error {
	return errors.Join(os.RemoveAll(s.dir), s.lock.UnlockRemove())
}

// unlinked makes a file that goes when it is closed.
func (s *scratch) unlinked(name string) (*os.File, error) {
	path := filepath.Join(s.dir, name)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if err := os.Remove(path); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// cleanScratch removes what dead processes left, and returns how much that
// was.
func cleanScratch(tmp string) (freed int64, err error) {
	locks, err := filepath.Glob(filepath.Join(tmp, "*.lock"))
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, path := range locks {
		lock, err := host.TryLockExclusive(path)
		if errors.Is(err, host.ErrLocked) {
			continue
		}
		if err != nil {
			errs = append(errs, err)
			continue
		}
		dir := strings.TrimSuffix(path, ".lock")
		freed += diskUsage(dir)
		errs = append(errs, os.RemoveAll(dir), lock.UnlockRemove())
	}
	return freed, errors.Join(errs...)
}

func diskUsage(dir string) (bytes int64) {
	filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
		if err != nil {
			return nil
		}
		if info, err := d.Info(); err == nil {
			if st, ok := info.Sys().(*syscall.Stat_t); ok {
				bytes += st.Blocks * 512
			}
		}
		return nil
	})
	return bytes
}

// freeSpace returns the bytes that an ordinary process may still write there.
func freeSpace(dir string) (int64, error) {
	var st syscall.Statfs_t
	if err := syscall.Statfs(dir, &st); err != nil {
		return 0, fmt.Errorf("cannot look for space in %q: %w", dir, err)
	}
	return int64(st.Bavail) * st.Bsize, nil
}

package host_test

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"caisson.dev/caisson/internal/host"
)

func TestLocksExclude(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	a, err := host.LockShared(path)
	if err != nil {
		t.Fatal(err)
	}
	b, err := host.TryLockShared(path)
	if err != nil {
		t.Fatalf("second reader: %v", err)
	}
	if _, err := host.TryLockExclusive(path); !errors.Is(err, host.ErrLocked) {
		t.Errorf("writer beside readers: %v", err)
	}
	a.Unlock()
	b.Unlock()
	c, err := host.TryLockExclusive(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := host.TryLockShared(path); !errors.Is(err, host.ErrLocked) {
		t.Errorf("reader beside writer: %v", err)
	}
	c.Unlock()
}

// Whoever waited on a file that the holder removed must not believe to hold
// the lock of the new file.
func TestRemovedLockIsNotHeldTwice(t *testing.T) {
	path := filepath.Join(t.TempDir(), "lock")
	var inside, total atomic.Int32
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				l, err := host.LockExclusive(path)
				if err != nil {
					t.Error(err)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two hold the lock")
				}
				total.Add(1)
				inside.Add(-1)
				if err := l.UnlockRemove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if total.Load() != 400 {
		t.Errorf("held %d times", total.Load())
	}
}

func TestLockFollowsNoSymlink(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(filepath.Join(dir, "elsewhere"), filepath.Join(dir, "lock")); err != nil {
		t.Fatal(err)
	}
	if _, err := host.LockExclusive(filepath.Join(dir, "lock")); err == nil {
		t.Error("locked through a symlink")
	}
}

func TestWriteFileAtomicReplacesOrLeaves(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "f")
	for _, text := range []string{"one", "two"} {
		if err := host.WriteFileAtomic(path, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(path); string(got) != text {
			t.Errorf("read %q, want %q", got, text)
		}
	}
	if fi, _ := os.Stat(path); fi.Mode() != 0o640 {
		t.Errorf("mode %v", fi.Mode())
	}
	if err := host.WriteFileAtomic(filepath.Join(dir, "none/f"), nil, 0o600); err == nil {
		t.Error("wrote into a directory that is not there")
	}
	if err := os.Mkdir(filepath.Join(dir, "d"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := host.WriteFileAtomic(filepath.Join(dir, "d"), nil, 0o600); err == nil {
		t.Error("replaced a directory")
	}
	if list, _ := os.ReadDir(dir); len(list) != 2 {
		t.Errorf("left behind: %v", list)
	}
}

package image

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"caisson.dev/caisson/internal/host"
)

// Skeleton returns the path of the small image that is PID 1's root in every
// sandbox: the guest program and the mount points, nothing else. It is made
// once for each guest program, known by its digest, and kept below dir, which only root can write.
// The program lies inside an image because a sandbox whose PID 1 came from a
// host descriptor cannot be checkpointed.
func Skeleton(dir string, guest []byte, digest string, mounts int) (string, error) {
	name := fmt.Sprintf("%s-%d.erofs", digest, mounts)
	path := filepath.Join(dir, name)
	if f, err := os.Open(path); err == nil {
		defer f.Close()
		if fi, err := f.Stat(); err == nil && checkSuper(f, fi.Size()) == nil {
			now := time.Now()
			os.Chtimes(path, now, now) // only CleanSkeletons reads it
			return path, nil
		}
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("cannot make %q: %w", dir, err)
	}
	if err := writeSkeleton(path, guest, mounts); err != nil {
		return "", fmt.Errorf("cannot write the guest image: %w", err)
	}
	return path, nil
}

// skeletonAge is how long the image of another version of Caisson stays after
// its last use: a run that starts has found its file and not yet opened it.
const skeletonAge = 24 * time.Hour

// CleanSkeletons removes the guest images of other versions that were not used
// for a day, and what killed writers left. Sandboxes that run hold theirs open.
func CleanSkeletons(dir string) (freed int64, err error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	var errs []error
	for _, e := range entries {
		fi, err := e.Info()
		if err != nil || !fi.Mode().IsRegular() || time.Since(fi.ModTime()) < skeletonAge {
			continue
		}
		if err := os.Remove(filepath.Join(dir, e.Name())); err != nil {
			errs = append(errs, err)
			continue
		}
		freed += fi.Size()
	}
	return freed, errors.Join(errs...)
}

// writeSkeleton writes beside path and renames, so that several first runs at
// once do not see each other's half.
func writeSkeleton(path string, guest []byte, mounts int) error {
	f, err := os.CreateTemp(filepath.Dir(path), ".tmp-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	defer f.Close()
	t, err := skeletonTree(int64(len(guest)), mounts)
	if err != nil {
		return err
	}
	if _, err := writeEROFS(f, t, bytes.NewReader(guest), func(int64, int64) {}); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return host.SyncDir(filepath.Dir(path))
}

func skeletonTree(guestSize int64, mounts int) (*tree, error) {
	t := newTree(Limits{}.withDefaults())
	mnt := newDir(0o755)
	nodes := map[string]*node{
		"caisson-guest": {mode: syscall.S_IFREG | 0o755, size: guestSize},
		"mnt":           mnt,
	}
	for _, d := range []string{"image", "upper", "root-new", "proc", "dev", "sys", "tmp", "etc"} {
		nodes[d] = newDir(0o755)
	}
	for name, n := range nodes {
		if err := t.put(t.root, name, n); err != nil {
			return nil, err
		}
	}
	// A host directory is mounted at mnt/<index>, a host file at mnt/f<index>.
	for i := range mounts {
		if err := t.put(mnt, strconv.Itoa(i), newDir(0o755)); err != nil {
			return nil, err
		}
		if err := t.put(mnt, "f"+strconv.Itoa(i), &node{mode: syscall.S_IFREG | 0o644}); err != nil {
			return nil, err
		}
	}
	return t, nil
}

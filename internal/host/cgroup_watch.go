package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// MemoryWatch wakes its owner when a group's memory crosses a threshold. While
// nothing happens nothing runs: the kernel writes to a descriptor.
type MemoryWatch struct {
	file      *os.File // eventfd (v1) or inotify (v2)
	high      string   // v2: the memory.high file
	threshold string
}

// WatchMemory arms a watch. On v1 the kernel tells every crossing, up or down.
// On v2 the only such event is going over memory.high, which also slows the
// group down; so Wait takes that limit away again when it wakes, and the owner
// calls Rearm when usage is back below.
func (g *Cgroup) WatchMemory(threshold int64) (*MemoryWatch, error) {
	d := g.group("memory")
	if d == nil {
		return nil, fmt.Errorf("cannot watch memory of cgroup %q: no memory controller: %w", g.Name, ErrNotSupported)
	}
	watch, value := watchV1, strconv.FormatInt(threshold, 10)
	if d.v2 {
		watch = watchV2
	}
	w, err := watch(d.path, value)
	if err != nil {
		return nil, fmt.Errorf("cannot watch memory of cgroup %q: %w", g.Name, err)
	}
	return w, nil
}

func watchV1(dir, threshold string) (*MemoryWatch, error) {
	usage, err := os.Open(filepath.Join(dir, "memory.usage_in_bytes"))
	if err != nil {
		return nil, err
	}
	defer usage.Close() // the kernel keeps its own reference
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	line := fmt.Sprintf("%d %d %s", fd, usage.Fd(), threshold)
	if err := writeControl(filepath.Join(dir, "cgroup.event_control"), line); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &MemoryWatch{file: os.NewFile(uintptr(fd), "memory-threshold")}, nil
}

func watchV2(dir, threshold string) (*MemoryWatch, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	w := &MemoryWatch{
		file: os.NewFile(uintptr(fd), "memory-events"),
		high: filepath.Join(dir, "memory.high"), threshold: threshold,
	}
	_, err = unix.InotifyAddWatch(fd, filepath.Join(dir, "memory.events"), unix.IN_MODIFY)
	if err == nil {
		err = w.Rearm()
	}
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// Wait blocks until an event. It may also return nil for other reasons (the
// group went away, the kernel counted an event of another kind): read the
// usage to know. One Wait at a time.
func (w *MemoryWatch) Wait(ctx context.Context) error {
	w.file.SetReadDeadline(time.Time{}) // of an earlier Wait that was cut short
	woken := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		w.file.SetReadDeadline(time.Unix(1, 0))
		close(woken)
	})
	defer func() {
		if !stop() {
			<-woken
		}
	}()
	var buf [512]byte
	_, err := w.file.Read(buf[:])
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("cannot wait for memory event: %w", err)
	}
	if w.high == "" {
		return nil
	}
	if err := writeControl(w.high, "max"); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("cannot lift memory.high: %w", err)
	}
	return nil
}

// Rearm sets the threshold again after Wait returned. On v1 it does nothing.
func (w *MemoryWatch) Rearm() error {
	if w.high == "" {
		return nil
	}
	if err := writeControl(w.high, w.threshold); err != nil {
		return fmt.Errorf("cannot set memory.high: %w", err)
	}
	return nil
}

// Close ends the watch; a Wait in progress returns an error.
func (w *MemoryWatch) Close() error { return w.file.Close() }

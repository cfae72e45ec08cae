package main

import (
	"encoding/binary"
	"errors"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"caisson.dev/caisson/internal/guest/filesystem"
)

// maxWatched bounds the directories of one recursive watch.
const maxWatched = 8192

// watchMask is what a change of a directory's content can look like.
const watchMask = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MOVED_FROM | unix.IN_DELETE | unix.IN_MODIFY |
	unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

var (
	errTooMany   = errors.New("too many directories to watch")
	errLost      = errors.New("changes came faster than they were read; some are lost")
	errNetworkFS = &refusedError{"the directory is on a network file system, whose changes may not be seen"}
)

// watch follows the changes of a directory. It is used by one goroutine.
type watch struct {
	files     *pool
	user      account
	root      string
	recursive bool

	inotify *os.File
	dirs    map[int32]string // by watch descriptor: the path relative to root
	buf     []byte
}

// change is one event, by its name relative to the watched directory.
type change struct {
	name string
	kind filesystem.EventType
}

func newWatch(files *pool, user account, root string, recursive, network bool) (*watch, error) {
	w := &watch{files: files, user: user, root: root, recursive: recursive}
	err := files.as(user, func() error {
		st, err := os.Stat(root)
		if err != nil {
			return err
		}
		if !st.IsDir() {
			return refuse("path is not a directory: %s", root)
		}
		if !network && onNetwork(root) {
			return errNetworkFS
		}
		fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
		if err != nil {
			return err
		}
		w.inotify, w.dirs, w.buf = os.NewFile(uintptr(fd), "inotify"), map[int32]string{}, make([]byte, 16<<10)
		if err := w.addTree(""); err != nil {
			w.Close()
			return err
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return w, nil
}

func (w *watch) Close() error { return w.inotify.Close() }

func onNetwork(name string) bool {
	var st unix.Statfs_t
	if unix.Statfs(name, &st) != nil {
		return false
	}
	switch uint32(st.Type) {
	case unix.NFS_SUPER_MAGIC, unix.SMB_SUPER_MAGIC, unix.CIFS_SUPER_MAGIC, unix.SMB2_SUPER_MAGIC, unix.FUSE_SUPER_MAGIC:
		return true
	}
	return false
}

// addTree watches rel and, if recursive, what is below it. It runs on a thread
// in the users' root. A directory that goes away meanwhile is not an error.
func (w *watch) addTree(rel string) error {
	full := path.Join(w.root, rel)
	mask := uint32(watchMask)
	if rel != "" {
		mask |= unix.IN_DONT_FOLLOW // a link in its place is not followed
	}
	if len(w.dirs) >= maxWatched {
		return errTooMany
	}
	fd, err := w.fd()
	if err != nil {
		return err
	}
	wd, err := unix.InotifyAddWatch(fd, full, mask)
	if err != nil {
		if rel == "" || errors.Is(err, unix.ENOSPC) {
			return os.NewSyscallError("inotify_add_watch", err)
		}
		return nil
	}
	w.dirs[int32(wd)] = rel
	if !w.recursive {
		return nil
	}
	list, err := os.ReadDir(full)
	if err != nil {
		return nil
	}
	for _, d := range list {
		if d.IsDir() {
			if err := w.addTree(path.Join(rel, d.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

// fd returns the descriptor without making it block, as File.Fd would.
func (w *watch) fd() (fd int, err error) {
	raw, err := w.inotify.SyscallConn()
	if err != nil {
		return -1, err
	}
	err = raw.Control(func(v uintptr) { fd = int(v) })
	return fd, err
}

// next waits for changes. It ends with an error when the watch is closed, the
// directory is gone (os.ErrNotExist), or changes were lost (errLost).
func (w *watch) next() ([]change, error) {
	n, err := w.inotify.Read(w.buf)
	if err != nil {
		return nil, err
	}
	var out []change
	for _, e := range parseInotify(w.buf[:n]) {
		if e.mask&unix.IN_Q_OVERFLOW != 0 {
			return out, errLost
		}
		dir, ok := w.dirs[e.wd]
		if !ok {
			continue
		}
		if e.mask&unix.IN_IGNORED != 0 {
			delete(w.dirs, e.wd)
			if dir == "" {
				return out, os.ErrNotExist
			}
			continue
		}
		if e.name == "" && dir != "" {
			continue // a directory below says of itself what its parent said
		}
		rel := path.Join(dir, e.name)
		for _, k := range kinds(e.mask) {
			out = append(out, change{rel, k})
		}
		if w.recursive && e.mask&unix.IN_ISDIR != 0 && e.mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0 {
			if err := w.files.as(w.user, func() error { return w.addTree(rel) }); err != nil {
				return out, err
			}
		}
	}
	return out, nil
}

// kinds returns the kinds of change in a mask, in the order of E2B's server.
func kinds(mask uint32) []filesystem.EventType {
	var out []filesystem.EventType
	for _, k := range []struct {
		mask uint32
		kind filesystem.EventType
	}{
		{unix.IN_CREATE | unix.IN_MOVED_TO, filesystem.EventType_EVENT_TYPE_CREATE},
		{unix.IN_MOVED_FROM | unix.IN_MOVE_SELF, filesystem.EventType_EVENT_TYPE_RENAME},
		{unix.IN_ATTRIB, filesystem.EventType_EVENT_TYPE_CHMOD},
		{unix.IN_MODIFY, filesystem.EventType_EVENT_TYPE_WRITE},
		{unix.IN_DELETE | unix.IN_DELETE_SELF, filesystem.EventType_EVENT_TYPE_REMOVE},
	} {
		if mask&k.mask != 0 {
			out = append(out, k.kind)
		}
	}
	return out
}

type inotifyEvent struct {
	wd   int32
	mask uint32
	name string
}

// parseInotify reads the kernel's records; it stops at one that is cut.
func parseInotify(b []byte) []inotifyEvent {
	var out []inotifyEvent
	for len(b) >= unix.SizeofInotifyEvent {
		n := uint64(binary.NativeEndian.Uint32(b[12:]))
		if uint64(len(b)-unix.SizeofInotifyEvent) < n {
			break
		}
		name, _, _ := strings.Cut(string(b[16:16+n]), "\x00")
		out = append(out, inotifyEvent{
			wd:   int32(binary.NativeEndian.Uint32(b)),
			mask: binary.NativeEndian.Uint32(b[4:]),
			name: name,
		})
		b = b[16+n:]
	}
	return out
}

package main

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"caisson.dev/caisson/internal/guest"
)

// Mount points of the skeleton, which is our own root and read-only.
const (
	upperDir = "/upper"        // the tmpfs that every write of a user goes to
	newRoot  = "/root-new"     // the users' root, until the namespace is made
	cgroups  = "/upper/cgroup" // ours alone: the users' root does not contain it
	userDirs = "dev proc sys tmp etc"
)

const (
	plain    = unix.MS_NOSUID | unix.MS_NODEV
	noExec   = plain | unix.MS_NOEXEC
	readOnly = unix.MS_RDONLY | noExec
)

// buildRoot mounts the users' root below newRoot. Nothing of a user runs yet,
// but the image is hostile: every path in it is resolved inside it. The files
// of /etc take as long as all else together, so that they are written
// meanwhile; wait returns when they are, and is called before a user runs.
func buildRoot(c guest.Config) (wait func() error, err error) {
	if err := mountUpper(c); err != nil {
		return nil, err
	}
	root, err := openRoot(newRoot)
	if err != nil {
		return nil, err
	}
	for _, d := range strings.Fields(userDirs) {
		if err := root.ensureDir(d); err != nil {
			return nil, err
		}
	}
	written := startEtc(root, c)
	if len(c.Mounts) > 0 {
		// First: a mount at /etc must not become what is written to, and a
		// mount below the home directory must not be what makes it.
		if err := written(); err != nil {
			return nil, err
		}
		if err := bindMounts(root, c.Mounts); err != nil {
			return nil, err
		}
	}
	return func() error {
		defer root.Close()
		return written()
	}, mountDevices(c)
}

func startEtc(root *rootDir, c guest.Config) (wait func() error) {
	done := make(chan error, 1)
	go func() { done <- writeEtc(root, c) }()
	return sync.OnceValue(func() error { return <-done })
}

func mount(source, target, fstype string, flags uintptr, data string) error {
	if err := unix.Mount(source, target, fstype, flags, data); err != nil {
		return fmt.Errorf("cannot mount %s on %q: %w", fstype, target, err)
	}
	return nil
}

// mountUpper makes the writable layer. The tmpfs is what holds the disk limit:
// bytes and inodes, copied-up files and /tmp included.
func mountUpper(c guest.Config) error {
	if _, err := os.Stat("/proc/self"); err != nil {
		if err := mount("proc", "/proc", "proc", noExec, ""); err != nil {
			return err
		}
	}
	opts := fmt.Sprintf("size=%d,nr_inodes=%d,mode=0755", c.DiskBytes, c.DiskInodes)
	if err := mount("tmpfs", upperDir, "tmpfs", plain&^unix.MS_NOSUID, opts); err != nil {
		return err
	}
	for _, d := range []string{"/upper/data", "/upper/work", cgroups} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return fmt.Errorf("cannot prepare the writable layer: %w", err)
		}
	}
	// Set-user-id programs work (sudo), device nodes of an image do not.
	opts = "lowerdir=" + c.Image + ",upperdir=/upper/data,workdir=/upper/work"
	return mount("overlay", newRoot, "overlay", unix.MS_NODEV, opts)
}

// bindMounts puts the host's directories into the users' root. They are
// mounted before /dev and /proc, so that no target can cover those.
func bindMounts(root *rootDir, mounts []guest.Mount) error {
	for _, m := range mounts {
		if err := bindMount(root, m); err != nil {
			return fmt.Errorf("cannot mount %q: %w", m.Target, err)
		}
	}
	return nil
}

func bindMount(root *rootDir, m guest.Mount) error {
	target := path.Clean("/" + m.Target)
	if target == "/" {
		return errors.New("the root itself cannot be covered")
	}
	if err := root.mkdirAll(path.Dir(target), 0o755); err != nil {
		return err
	}
	fd, err := root.mountPoint(target, m.File)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	// The descriptor is the only name of the target that no symlink can turn.
	at := fmt.Sprintf("/proc/self/fd/%d", fd)
	if err := unix.Mount(m.Source, at, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	flags := uintptr(unix.MS_BIND | unix.MS_REMOUNT | plain)
	if m.ReadOnly {
		flags |= unix.MS_RDONLY
	}
	// at names what is below the new mount: the mount itself is found by its
	// path, which cannot change while nothing of a user runs.
	top, err := root.open(target, unix.O_PATH, 0)
	if err != nil {
		return err
	}
	defer unix.Close(top)
	return unix.Mount("", fmt.Sprintf("/proc/self/fd/%d", top), "", flags, "")
}

// devices are the nodes of /dev; a program that needs others is not expected
// in a sandbox, and nobody inside has CAP_MKNOD.
var devices = []struct {
	name         string
	major, minor uint32
}{
	{"null", 1, 3}, {"zero", 1, 5}, {"full", 1, 7}, {"random", 1, 8}, {"urandom", 1, 9}, {"tty", 5, 0},
}

var deviceLinks = [][2]string{
	{"pts/ptmx", "ptmx"}, {"/proc/self/fd", "fd"}, {"/proc/self/fd/0", "stdin"},
	{"/proc/self/fd/1", "stdout"}, {"/proc/self/fd/2", "stderr"},
}

func mountDevices(c guest.Config) error {
	dev := newRoot + "/dev"
	if err := mount("tmpfs", dev, "tmpfs", unix.MS_NOSUID|unix.MS_NOEXEC, "size=64k,nr_inodes=128,mode=0755"); err != nil {
		return err
	}
	for _, d := range devices {
		name := path.Join(dev, d.name)
		if err := unix.Mknod(name, unix.S_IFCHR|0o666, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("cannot make device %q: %w", name, err)
		}
		if err := os.Chmod(name, 0o666); err != nil {
			return fmt.Errorf("cannot make device %q: %w", name, err)
		}
	}
	for _, l := range deviceLinks {
		if err := os.Symlink(l[0], path.Join(dev, l[1])); err != nil {
			return fmt.Errorf("cannot make device link: %w", err)
		}
	}
	for _, d := range []string{"pts", "shm"} {
		if err := os.Mkdir(path.Join(dev, d), 0o755); err != nil {
			return fmt.Errorf("cannot make device directory: %w", err)
		}
	}
	if err := mount("devpts", dev+"/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666"); err != nil {
		return err
	}
	shm := fmt.Sprintf("size=%d,nr_inodes=%d,mode=1777", c.ShmBytes, max(c.DiskInodes/8, 16))
	if err := mount("tmpfs", dev+"/shm", "tmpfs", noExec, shm); err != nil {
		return err
	}
	return mount("sysfs", newRoot+"/sys", "sysfs", readOnly, "")
}

// limitTasks makes the control group that every user process is born into and
// returns the file through which a thread of ours joins it. The one thread
// that starts processes is in it too, hence the one more.
func limitTasks(pids int64) (*os.File, error) {
	if err := mount("cgroup", cgroups, "cgroup", noExec, "pids"); err != nil {
		return nil, err
	}
	dir := cgroups + "/user"
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, fmt.Errorf("cannot limit tasks: %w", err)
	}
	if err := os.WriteFile(dir+"/pids.max", fmt.Appendf(nil, "%d", pids+1), 0); err != nil {
		return nil, fmt.Errorf("cannot limit tasks: %w", err)
	}
	f, err := os.OpenFile(dir+"/tasks", os.O_WRONLY, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot limit tasks: %w", err)
	}
	return f, nil
}

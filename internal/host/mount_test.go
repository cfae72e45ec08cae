package host_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"caisson.dev/caisson/internal/host"
	"caisson.dev/caisson/internal/reexec"
	"caisson.dev/caisson/internal/testenv"
)

func init() {
	reexec.Register("in-mount-ns", func() int {
		if err := mountActs[os.Args[1]](os.Args[2]); err != nil {
			fmt.Println(err)
			return 1
		}
		return 0
	})
}

// inMountNS runs one of mountActs in a mount namespace of its own, with a
// folder that has src (owned by 1000), dst, and link to src.
func inMountNS(t *testing.T, act string) (dir string) {
	t.Helper()
	testenv.Need(t, "root")
	dir = t.TempDir()
	for _, err := range []error{
		os.Mkdir(filepath.Join(dir, "src"), 0o755), os.Mkdir(filepath.Join(dir, "dst"), 0o755),
		os.WriteFile(filepath.Join(dir, "src/file"), []byte("x"), 0o600),
		os.Chown(filepath.Join(dir, "src"), 1000, 1000), os.Chown(filepath.Join(dir, "src/file"), 1000, 1000),
		os.Symlink("src", filepath.Join(dir, "link")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := reexec.Command("in-mount-ns", act, dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS} // makes / private too
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%s: %v: %s", act, err, out)
	}
	return dir
}

var mountActs = map[string]func(dir string) error{
	"idmap": func(dir string) error {
		ns, err := host.NewIDMap(host.IDMap{DiskUID: 1000, DiskGID: 1000, UID: 0, GID: 0})
		if err != nil {
			return err
		}
		defer ns.Close()
		dst := filepath.Join(dir, "dst")
		if err := host.BindMount(filepath.Join(dir, "src"), dst, host.BindOptions{IDMap: int(ns.Fd())}); err != nil {
			return err
		}
		if err := wantOwner(filepath.Join(dst, "file"), 0); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(dst, "new"), []byte("y"), 0o644)
	},
	"read-only": func(dir string) error {
		dst := filepath.Join(dir, "dst")
		if err := host.BindMount(filepath.Join(dir, "src"), dst, host.BindOptions{ReadOnly: true}); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dst, "new"), nil, 0o644); !errors.Is(err, unix.EROFS) {
			return fmt.Errorf("write gives %v", err)
		}
		var st unix.Statfs_t
		if err := unix.Statfs(dst, &st); err != nil {
			return err
		}
		if st.Flags&unix.ST_NOSUID == 0 || st.Flags&unix.ST_NODEV == 0 || st.Flags&unix.ST_RDONLY == 0 {
			return fmt.Errorf("flags %#x", st.Flags)
		}
		return nil
	},
	"symlink source": func(dir string) error {
		return wantError(host.BindMount(filepath.Join(dir, "link"), filepath.Join(dir, "dst"), host.BindOptions{}), "symlink")
	},
	"symlink target": func(dir string) error {
		err := host.BindMount(filepath.Join(dir, "dst"), filepath.Join(dir, "link"), host.BindOptions{})
		return wantError(err, "cannot mount")
	},
	"not recursive": func(dir string) error {
		if err := unix.Mount("x", filepath.Join(dir, "src"), "tmpfs", 0, ""); err != nil {
			return err
		}
		if err := os.MkdirAll(filepath.Join(dir, "top/inner"), 0o755); err != nil {
			return err
		}
		if err := unix.Mount("x", filepath.Join(dir, "top/inner"), "tmpfs", 0, ""); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, "top/inner/secret"), nil, 0o644); err != nil {
			return err
		}
		if err := host.BindMount(filepath.Join(dir, "top"), filepath.Join(dir, "dst"), host.BindOptions{}); err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(dir, "dst/inner/secret")); err == nil {
			return errors.New("a mount below the source came along")
		}
		return nil
	},
}

func wantError(err error, part string) error {
	if err == nil || !strings.Contains(err.Error(), part) {
		return fmt.Errorf("got %v, want an error with %q", err, part)
	}
	return nil
}

func wantOwner(path string, uid uint32) error {
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err
	}
	if st.Uid != uid || st.Gid != uid {
		return fmt.Errorf("%s belongs to %d:%d, want %d", path, st.Uid, st.Gid, uid)
	}
	return nil
}

func TestI6_IDMapWritesAsTheDirectorysOwner(t *testing.T) {
	testenv.Need(t, "root", "idmap")
	dir := inMountNS(t, "idmap")
	if err := wantOwner(filepath.Join(dir, "src/new"), 1000); err != nil {
		t.Error(err)
	}
}

func TestI6_BindMounts(t *testing.T) {
	for _, act := range []string{"read-only", "symlink source", "symlink target", "not recursive"} {
		t.Run(act, func(t *testing.T) { inMountNS(t, act) })
	}
}

func TestLoopbackIsRaised(t *testing.T) {
	testenv.Need(t, "root", "netns")
	cmd := reexec.Command("lo-up")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

func init() {
	reexec.Register("lo-up", func() int {
		if err := host.LoopbackUp(); err != nil {
			fmt.Println(err)
			return 1
		}
		flags, err := loFlags()
		if err != nil || flags&unix.IFF_UP == 0 {
			fmt.Println("lo is", flags, err)
			return 1
		}
		return 0
	})
	reexec.Register("sealed", func() int {
		if err := host.SealDescriptors(); err != nil {
			fmt.Println(err)
			return 1
		}
		out, err := exec.Command("/bin/ls", "/proc/self/fd").CombinedOutput()
		fmt.Print(string(out))
		if err != nil {
			return 1
		}
		return 0
	})
}

func loFlags() (uint16, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	req, err := unix.NewIfreq("lo")
	if err != nil {
		return 0, err
	}
	err = unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req)
	return req.Uint16(), err
}

// Attack 92: descriptors that our caller left open.
func TestI15_SealedDescriptorsReachNoChild(t *testing.T) {
	f, err := os.Open("/etc/hostname")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	cmd := reexec.Command("sealed")
	cmd.ExtraFiles = []*os.File{f, f, f}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	// ls has stdio and the folder it lists.
	if got := strings.Fields(string(out)); len(got) != 4 {
		t.Errorf("a grandchild has descriptors %v", got)
	}
}

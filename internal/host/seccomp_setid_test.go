package host_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"caisson.dev/caisson/internal/host"
	"caisson.dev/caisson/internal/reexec"
	"caisson.dev/caisson/internal/testenv"
)

func init() {
	reexec.Register("mode-filter", func() int {
		if err := host.InstallModeFilter(); err != nil {
			fmt.Println(err)
			return 1
		}
		dir := os.Args[1]
		if len(os.Args) > 2 { // what a program that we become may do
			err := unix.Exec("/bin/sh", []string{"sh", "-c", os.Args[2]}, []string{"PATH=/usr/bin:/bin", "D=" + dir})
			fmt.Println(err)
			return 1
		}
		for _, a := range modeActs {
			fmt.Printf("%s: %v\n", a.name, a.try(filepath.Join(dir, a.name)))
		}
		return 0
	})
}

const ok = "<nil>"

// modeActs are tried on a path of their own. The high halves of registers hold
// garbage in some, which the kernel ignores and a filter must too.
var modeActs = []struct {
	name string
	try  func(path string) error
	want string
}{
	{"plain-create", func(p string) error { return create(p, unix.O_CREAT, 0o644) }, ok},
	{"plain-mkdir", func(p string) error { return unix.Mkdir(p, 0o755) }, ok},
	{"sticky-mkdir", func(p string) error { return unix.Mkdir(p, 0o1777) }, ok},
	{"fifo", func(p string) error { return unix.Mknod(p, unix.S_IFIFO|0o600, 0) }, ok},
	{"socket", func(p string) error { return unix.Mknod(p, unix.S_IFSOCK|0o600, 0) }, ok},
	{"regular-mknod", func(p string) error { return unix.Mknod(p, unix.S_IFREG|0o600, 0) }, ok},
	{"plain-chmod", func(p string) error { must(create(p, unix.O_CREAT, 0o600)); return unix.Chmod(p, 0o777) }, ok},
	{"open-garbage-mode", func(p string) error { return rawPath(unix.SYS_OPENAT, p, unix.O_RDONLY, 0o7777, "/dev/null") }, ok},

	{"chmod-suid", func(p string) error { must(create(p, unix.O_CREAT, 0o600)); return unix.Chmod(p, 0o4755) }, "operation not permitted"},
	{"chmod-sgid", func(p string) error { must(create(p, unix.O_CREAT, 0o600)); return unix.Chmod(p, 0o2755) }, "operation not permitted"},
	{"fchmod-suid", func(p string) error { return withFile(p, func(fd int) error { return unix.Fchmod(fd, 0o4755) }) }, "operation not permitted"},
	{"fchmod-high-bits", func(p string) error {
		return withFile(p, func(fd int) error { return rawCall(unix.SYS_FCHMOD, uintptr(fd), 1<<40|0o4755) })
	}, "operation not permitted"},
	{"fchmodat2-suid", func(p string) error {
		return withFile(p, func(fd int) error { return unix.Fchmodat(fd, "", 0o4755, unix.AT_EMPTY_PATH) })
	}, "operation not permitted"},
	{"open-suid", func(p string) error { return create(p, unix.O_CREAT, 0o4755) }, "operation not permitted"},
	{"tmpfile-suid", func(p string) error { return create(filepath.Dir(p), unix.O_TMPFILE, 0o4755) }, "operation not permitted"},
	{"mkdir-sgid", func(p string) error { return unix.Mkdir(p, 0o2755) }, "operation not permitted"},
	{"mknod-suid", func(p string) error { return unix.Mknod(p, unix.S_IFREG|0o4755, 0) }, "operation not permitted"},
	{"char-device", func(p string) error { return unix.Mknod(p, unix.S_IFCHR|0o600, 0x103) }, "operation not permitted"},
	{"block-device", func(p string) error { return unix.Mknod(p, unix.S_IFBLK|0o600, 0xfe00) }, "operation not permitted"},
	{"openat2", func(p string) error {
		_, err := unix.Openat2(unix.AT_FDCWD, p, &unix.OpenHow{Flags: unix.O_CREAT | unix.O_WRONLY, Mode: 0o4755})
		return err
	}, "function not implemented"},
	{"io-uring", func(string) error { return rawCall(unix.SYS_IO_URING_SETUP, 1, 0) }, "function not implemented"},
}

func create(path string, flags int, mode uint32) error {
	fd, err := unix.Open(path, flags|unix.O_WRONLY, mode)
	if err == nil {
		unix.Close(fd)
	}
	return err
}

func withFile(path string, f func(fd int) error) error {
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return f(fd)
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func TestI6_ModeFilterStopsSetuidAndDevices(t *testing.T) {
	testenv.Need(t, "root", "seccomp")
	dir := t.TempDir()
	out, err := reexec.Command("mode-filter", dir).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want, got := map[string]string{}, map[string]string{}
	for _, a := range modeActs {
		want[a.name] = a.want
	}
	for s := bufio.NewScanner(strings.NewReader(string(out))); s.Scan(); {
		name, result, _ := strings.Cut(s.Text(), ": ")
		got[name] = result
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	assertNoSpecialFiles(t, dir)
}

func TestI6_ModeFilterHoldsAfterExec(t *testing.T) {
	testenv.Need(t, "root", "seccomp")
	dir := t.TempDir()
	cmd := reexec.Command("mode-filter", dir,
		`cp /bin/true $D/t; chmod 4755 $D/t; install -m 2755 /bin/true $D/u; mknod $D/n c 1 3; mkdir -m 2755 $D/d; ls $D; true`)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if !strings.Contains(string(out), "t") {
		t.Errorf("nothing was written: %s", out)
	}
	assertNoSpecialFiles(t, dir)
}

func assertNoSpecialFiles(t *testing.T, dir string) {
	t.Helper()
	out, err := exec.Command("find", dir, "-perm", "/6000", "-o", "-type", "c", "-o", "-type", "b").CombinedOutput()
	if err != nil || len(out) != 0 {
		t.Errorf("left on the host: %s %v", out, err)
	}
}

package host_test

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"caisson.dev/caisson/internal/host"
	"caisson.dev/caisson/internal/reexec"
	"caisson.dev/caisson/internal/testenv"
)

// jailActs are what a jailed child tries, by name.
var jailActs = map[string]func() error{
	"nothing": func() error { return nil },
	"wait":    wait,

	"goroutines": func() error {
		done := make(chan int)
		for i := range 20 {
			go func() { time.Sleep(time.Millisecond); done <- i }()
		}
		for range 20 {
			<-done
		}
		return nil
	},
	"heap":       func() error { b := make([]byte, 64<<20); b[len(b)-1] = 1; return nil },
	"given file": func() error { return readAll(os.NewFile(3, "given")) },
	"timezone":   func() error { _ = time.Now().Local().String(); return nil },
	"raise": func() error { // signals to itself, as the runtime's preemption does
		return unix.Tgkill(unix.Getpid(), unix.Gettid(), unix.SIGURG)
	},

	"exec":     func() error { return syscall.Exec("/x", []string{"x"}, nil) },
	"fork":     func() error { return rawCall(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0) },
	"vfork":    func() error { return rawCall(unix.SYS_CLONE, uintptr(unix.CLONE_VFORK|unix.CLONE_VM|unix.SIGCHLD), 0) },
	"userns":   func() error { return unix.Unshare(unix.CLONE_NEWUSER) },
	"ptrace":   func() error { return unix.PtraceAttach(1) },
	"mount":    func() error { return unix.Mount("x", "/tmp", "tmpfs", 0, "") },
	"bpf":      func() error { return rawCall(unix.SYS_BPF, 0, 0, 0) },
	"keyctl":   func() error { return rawCall(unix.SYS_KEYCTL, 0) },
	"io_uring": func() error { return rawCall(unix.SYS_IO_URING_SETUP, 1, 0) },
	"mmap exec": func() error {
		_, err := unix.Mmap(-1, 0, 4096, unix.PROT_EXEC|unix.PROT_READ, unix.MAP_ANON|unix.MAP_PRIVATE)
		return err
	},
	"memfd":     func() error { _, err := unix.MemfdCreate("x", 0); return err },
	"kill":      func() error { return unix.Kill(-1, 0) },
	"setuid":    func() error { return rawCall(unix.SYS_SETUID, 0) },
	"pdeathsig": func() error { return unix.Prctl(unix.PR_SET_PDEATHSIG, 0, 0, 0, 0) },
	"dumpable":  func() error { return unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0) },
	"ioctl":     func() error { _, err := unix.IoctlGetInt(1, unix.TIOCGPGRP); return err },
	"rlimit":    func() error { return unix.Prlimit(0, unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 9, Max: 9}, nil) },
	"netfilter": func() error {
		return unix.SetsockoptString(3, unix.SOL_IP, 64 /* IPT_SO_SET_REPLACE */, "x")
	},

	"read root":  func() error { _, err := os.ReadFile("/etc/resolv.conf"); return err },
	"host file":  func() error { _, err := os.ReadFile("/etc/passwd"); return err },
	"write tmp":  func() error { return os.WriteFile("/tmp/x", []byte("x"), 0o600) },
	"fill tmp":   func() error { return os.WriteFile("/tmp/x", make([]byte, 2<<20), 0o600) },
	"write root": func() error { return os.WriteFile("/etc/x", []byte("x"), 0o600) },
	"tree": func() error {
		return errors.Join(os.Mkdir("/tmp/d", 0o700), os.Symlink("d", "/tmp/l"), os.Rename("/tmp/d", "/tmp/e"),
			os.Chmod("/tmp/e", 0o755), os.RemoveAll("/tmp/e"), os.Remove("/tmp/l"))
	},
	"list":        func() error { _, err := os.ReadDir("/"); return err },
	"setuid file": func() error { return unix.Chmod("/tmp", 0o4755) },
	"setuid new":  func() error { _, err := unix.Open("/tmp/s", unix.O_CREAT|unix.O_WRONLY, 0o4755); return err },
	"mknod":       func() error { return unix.Mknod("/tmp/n", unix.S_IFCHR|0o600, 0x103) },
	"chown":       func() error { return unix.Fchown(1, 0, 0) },
	"write dir":   func() error { return os.WriteFile("/out/x", []byte("x"), 0o600) },
	"climb":       func() error { _, err := os.ReadFile("/out/../../../etc/passwd"); return err },

	"tcp": func() error {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			return err
		}
		return errors.Join(c.Close(), l.Close())
	},
	"udp": func() error {
		c, err := net.Dial("udp", "127.0.0.1:9")
		if err != nil {
			return err
		}
		return c.Close()
	},
	"unix socket":    socket(unix.AF_UNIX, unix.SOCK_STREAM, 0),
	"netlink socket": socket(unix.AF_NETLINK, unix.SOCK_RAW, 0),
	"raw socket":     socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP),
	"ping socket":    socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP),
	"packet socket":  socket(unix.AF_PACKET, unix.SOCK_RAW, 0),
	"vsock socket":   socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0),
}

func socket(domain, kind, proto int) func() error {
	return func() error { _, err := unix.Socket(domain, kind, proto); return err }
}

func readAll(f *os.File) error {
	var b [64]byte
	_, err := f.Read(b[:])
	return err
}

func rawCall(trap uintptr, args ...uintptr) error {
	var a [6]uintptr
	copy(a[:], args)
	r, _, e := unix.RawSyscall6(trap, a[0], a[1], a[2], a[3], a[4], a[5])
	if e != 0 {
		return e
	}
	if trap == unix.SYS_CLONE {
		if r == 0 {
			unix.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	return nil
}

const (
	works  = "works"
	killed = "killed" // SIGSYS
)

func TestI15_ProfilesBothWays(t *testing.T) {
	testenv.Need(t, "root", "seccomp", "nocgo")
	for name, want := range map[string]map[string]string{
		"pure": {
			"read root": "no such file", "host file": "no such file", "list": "no such file", "write tmp": "no such file",
			"tcp": killed, "udp": killed, "unix socket": killed, "raw socket": killed, "netlink socket": killed,
			"mknod": killed, "chown": killed, "memfd": killed, "setuid file": killed, "netfilter": killed,
		},
		"net": {
			"read root": works, "host file": "no such file", "list": works, "write tmp": "permission denied",
			"tcp": "network is unreachable|cannot assign|connect: ", "udp": "unreachable|works",
			"unix socket": "not supported", "netlink socket": "not supported", "raw socket": "not supported",
			"ping socket": "not supported", "packet socket": "not supported", "vsock socket": "not supported",
			"mknod": killed, "chown": killed, "memfd": killed, "setuid file": killed, "netfilter": killed,
		},
		"files": {
			"read root": works, "host file": "no such file", "list": works, "write tmp": works, "tree": works,
			"fill tmp": "no space", "write root": "read-only", "write dir": "read-only", "climb": "no such file",
			"setuid file": "not permitted", "setuid new": "not permitted", "chown": "not permitted",
			"tcp": killed, "unix socket": killed, "mknod": killed, "memfd": killed,
		},
	} {
		for act, result := range map[string]string{
			"goroutines": works, "heap": works, "given file": works, "timezone": works, "raise": works,
			"exec": killed, "fork": killed, "vfork": killed, "userns": killed, "ptrace": killed, "mount": killed,
			"bpf": killed, "keyctl": killed, "mmap exec": killed, "kill": killed, "setuid": killed, "rlimit": killed,
			"io_uring": "not permitted", "pdeathsig": "not permitted", "dumpable": "not permitted", "ioctl": "not permitted",
		} {
			want[act] = result
		}
		for act, result := range want {
			t.Run(name+"/"+act, func(t *testing.T) {
				t.Parallel()
				tryAct(t, name, act, result)
			})
		}
	}
}

func tryAct(t *testing.T, profile, act, want string) {
	given, err := os.Open("/etc/hostname")
	if err != nil {
		t.Fatal(err)
	}
	defer given.Close()
	out, err := run(t, host.Jail{
		Argv0: reexec.Argv0("jail-" + profile), Args: []string{act}, Files: []*os.File{given}, TmpBytes: 1 << 20,
		Root: map[string][]byte{"/etc/resolv.conf": []byte("nameserver 192.0.2.1\n")},
		Dirs: []host.JailDir{{Source: t.TempDir(), Target: "/out"}},
	})
	got := out
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGSYS {
		got = killed
	} else if err == nil {
		got = works
	}
	for _, w := range strings.Split(want, "|") {
		if got == w || w != works && w != killed && strings.Contains(got, w) {
			return
		}
	}
	t.Errorf("%s under %s: %s (%v), want %s", act, profile, got, err, want)
}

package run

import (
	"strings"
	"testing"

	"caisson.dev/caisson/api"
)

// attempts is a shell script that reports each attempt as "NAME ok" or
// "NAME no", so that a test sees what worked and that it was tried at all.
func attempts(list ...string) string {
	var b strings.Builder
	b.WriteString("try() { n=$1; shift; if \"$@\" >/dev/null 2>&1; then echo \"$n ok\"; else echo \"$n no\"; fi; }\n")
	for i := 0; i < len(list); i += 2 {
		b.WriteString("try " + list[i] + " " + list[i+1] + "\n")
	}
	return b.String()
}

func TestI1_ThereIsNoNetwork(t *testing.T) {
	for _, user := range []string{"user", "root"} {
		req := sh(attempts(
			"control", `perl -e 'use Socket; socket(my $s, PF_INET, SOCK_STREAM, 0) or exit 1; setsockopt($s, SOL_SOCKET, SO_REUSEADDR, 1); bind($s, sockaddr_in(8080, inet_aton("127.0.0.1"))) or exit 1'`,
			"internet", `perl -e 'use Socket; socket(my $s, PF_INET, SOCK_STREAM, 0); connect($s, sockaddr_in(443, inet_aton("1.1.1.1"))) or exit 1'`,
			"metadata", `perl -e 'use Socket; socket(my $s, PF_INET, SOCK_STREAM, 0); connect($s, sockaddr_in(80, inet_aton("169.254.169.254"))) or exit 1'`,
			"udp", `perl -e 'use Socket; socket(my $s, PF_INET, SOCK_DGRAM, 0); send($s, "x", 0, sockaddr_in(53, inet_aton("8.8.8.8"))) or exit 1'`,
			"name", `perl -e 'exit !defined gethostbyname("example.com")'`,
			"ipv6", `perl -e 'use Socket qw(:all); socket(my $s, PF_INET6, SOCK_STREAM, 0); connect($s, pack_sockaddr_in6(443, inet_pton(AF_INET6, "2606:4700:4700::1111"))) or exit 1'`,
			"raw", `perl -e 'use Socket; socket(my $s, PF_INET, SOCK_RAW, 1) or exit 1'`,
			"packet", `perl -e 'socket(my $s, 17, 3, 768) or exit 1'`,
			"vsock", `perl -e 'socket(my $s, 40, 1, 0) or exit 1'`,
		) + "ls /sys/class/net 2>/dev/null; cat /proc/net/dev | tail -n +3 | cut -d: -f1 | tr -d ' '")
		req.User = user
		o := run(t, req)
		if !strings.Contains(o.out, "control ok") {
			t.Errorf("%s: the probe itself does not work:\n%s%s", user, o.out, o.err)
		}
		if strings.Count(o.out, " ok") != 1 {
			t.Errorf("%s: something got out:\n%s", user, o.out)
		}
		if strings.Contains(o.out, "eth") {
			t.Errorf("%s: there is an interface:\n%s", user, o.out)
		}
	}
}

// Attack row 83, and the trap of guest root's `kill -9 1`.
func TestI16_PID1IsOutOfReach(t *testing.T) {
	o := run(t, asRoot(sh(`ps() { ls /proc | grep -E '^[0-9]+$' | tr '\n' ' '; }
		for p in $(ps); do grep -l caisson-guest /proc/$p/comm /proc/$p/cmdline; tr '\0' '\n' < /proc/$p/environ | grep -i token; done 2>/dev/null
		grep -E '^(CapEff|CapBnd|Seccomp)' /proc/self/status
		kill -STOP 1; kill -9 1; sleep 0.2; echo alive`)))
	if strings.Contains(o.out, "token") {
		t.Errorf("the configuration of PID 1 is readable:\n%s", o.out)
	}
	// Killing pid 1 of the inner namespace may end the user's own processes,
	// as on Linux it would not; it never gains anything.
	if o.Code == api.EndExited && !strings.Contains(o.out, "alive") {
		t.Errorf("ended oddly: %s\n%s", o.Reason, o.out)
	}
}

// The sandbox kernel shows the environment that PID 1 was started with to
// everybody: the token was there once.
func TestI12_TheTokenIsNowhereInside(t *testing.T) {
	for _, user := range []string{"user", "root"} {
		req := sh(`echo control-word > /tmp/c; grep -rsl control-word /tmp; cat /proc/gvisor/spec_environ /proc/gvisor/* /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\0' '\n' | grep -iE 'token|disk_bytes|hostname":'; ls /proc/1/fd /proc/1/fdinfo 2>/dev/null; true`)
		req.User = user
		o := run(t, req)
		if !strings.Contains(o.out, "/tmp/c") {
			t.Fatalf("%s: the probe is broken: %q %q", user, o.out, o.err)
		}
		if strings.Contains(strings.ToLower(o.out), "token") || strings.Contains(o.out, "disk_bytes") {
			t.Errorf("%s reads PID 1's configuration:\n%s", user, o.out)
		}
	}
}

func TestI12_TheGuestAPINeedsItsToken(t *testing.T) {
	o := run(t, asRoot(sh(`perl -e 'use IO::Socket::INET;
		for my $r ("GET /health", "GET /files?path=/etc/passwd", "GET /envs", "GET /metrics", "POST /init", "POST /caisson/oom", "GET /caisson/usage", "GET /caisson/tar?path=/etc", "POST /process.Process/List", "POST /process.Process/Start", "POST /filesystem.Filesystem/ListDir") {
			my $s = IO::Socket::INET->new(PeerAddr => "127.0.0.1:49983", Timeout => 5) or do { print "$r: no connection\n"; next };
			print $s "$r HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}";
			my $line = <$s>; $line =~ s/\r?\n//; print "$r: $line\n";
		}'`)))
	lines := strings.Split(strings.TrimSpace(o.out), "\n")
	if len(lines) != 11 || !strings.Contains(lines[0], "204") {
		t.Fatalf("the probe does not work:\n%s%s", o.out, o.err)
	}
	for _, l := range lines[1:] {
		if !strings.Contains(l, " 401 ") {
			t.Errorf("answered without a token: %s", l)
		}
	}
}

// Rows 22, 49, 50, 51: privileges inside are none, whatever the uid.
func TestI12_NoPrivilegesInside(t *testing.T) {
	for _, user := range []string{"user", "root"} {
		req := sh(attempts(
			"control", "true",
			"mount-tmpfs", "mount -t tmpfs none /mnt",
			"mount-proc", "mount -t proc none /mnt",
			"mount-cgroup", "mount -t cgroup -o pids none /mnt",
			"remount", "mount -o remount,rw /",
			"umount", "umount /proc",
			"userns", "unshare -Ur true",
			"userns-mount", "unshare -Urm mount -t tmpfs none /mnt",
			"userns-cgroup", "unshare -Urm sh -c 'mount -t cgroup -o pids none /mnt && echo max > /mnt/user/pids.max'",
			"netns", "unshare -n true",
			"pidns", "unshare -pf true",
			"mountns", "unshare -m true",
			"chroot-mknod", "mknod /tmp/sda b 8 0",
			"mknod-mem", "mknod /tmp/mem c 1 1",
			"hostname", "hostname owned",
			"clock", "date -s 2001-01-01",
			"module", "perl -e 'exit(syscall(313, 0, \"\", 0) != 0)'",
			"io_uring", "perl -e 'exit(syscall(425, 8, \"\\0\" x 120) < 0)'",
			"bpf", "perl -e 'exit(syscall(321, 0, \"\\0\" x 64, 64) < 0)'",
			"perf", "perl -e 'exit(syscall(298, \"\\0\" x 128, 0, -1, -1, 0) < 0)'",
			"keyctl", "perl -e 'exit(syscall(250, 0, -3, 1) < 0)'",
			"kexec", "perl -e 'exit(syscall(246, 0, 0, 0, 0) != 0)'",
			"reboot", "perl -e 'exit(syscall(169, 0xfee1dead, 672274793, 0x1234567) != 0)'",
			"swapon", "perl -e 'exit(syscall(167, \"/tmp/x\", 0) != 0)'",
			"open_by_handle", "perl -e 'exit(syscall(304, -100, \"\\0\" x 128, 0) < 0)'",
			"ptrace-1", "perl -e 'exit(syscall(101, 16, 1, 0, 0) < 0)'",
			"mem-1", "cat /proc/1/mem",
			"root-1", "ls /proc/1/root/caisson-guest",
			"kmem", "cat /dev/kmem /dev/mem",
			"kmsg", "cat /dev/kmsg",
			"kcore", "head -c 1 /proc/kcore",
			"sysrq", "sh -c 'echo b > /proc/sysrq-trigger'",
			"core-pattern", "sh -c 'echo x > /proc/sys/kernel/core_pattern'",
		) + "umask 0; id -u")
		req.User = user
		o := run(t, req)
		if !strings.Contains(o.out, "control ok") {
			t.Fatalf("%s: the probe itself does not work:\n%s%s", user, o.out, o.err)
		}
		for _, line := range strings.Split(o.out, "\n") {
			if strings.HasSuffix(line, " ok") && line != "control ok" {
				t.Errorf("%s may %s", user, line)
			}
		}
	}
}

// Rows 32 and 58: odd working directories and ways to name a program lead
// nowhere else.
func TestI6_NoWayOutByPath(t *testing.T) {
	for _, dir := range []string{"/proc/self/fd/0", "/proc/self/fd/3", "/proc/self/fd/7", "/proc/1/root", "/proc/1/cwd"} {
		req := sh("pwd; ls ..; cat ../../../../../../etc/shadow")
		req.WorkDir = dir
		o, err := tryRun(t, t.Context(), req, "")
		if err == nil && strings.Contains(o.out, "root:") {
			t.Errorf("cwd %s: %s", dir, o.out)
		}
	}
	o := run(t, asRoot(sh("for p in /proc/*/root /proc/self/cwd /proc/self/fd/*; do ls $p/work $p/var/lib/caisson $p/caisson-guest $p/upper; done 2>/dev/null; cat /proc/mounts; cat /proc/self/mountinfo")))
	for _, word := range []string{"caisson-guest", "/var/lib/caisson", "/upper", "stage"} {
		if strings.Contains(o.out, word) {
			t.Errorf("%q shows up inside:\n%s", word, o.out)
		}
	}
}

func TestErrorsHaveOneLineAndOneHint(t *testing.T) {
	paths(t)
	for name, tc := range map[string]struct {
		req  api.RunRequest
		says string
	}{
		"unknown level":  {api.RunRequest{Level: "firecracker", Image: "host", Argv: []string{"true"}}, `"firecracker"`},
		"planned level":  {api.RunRequest{Level: "microvm", Image: "host", Argv: []string{"true"}}, `"microvm"`},
		"no level":       {api.RunRequest{Image: "host", Argv: []string{"true"}}, "isolation level"},
		"unknown image":  {api.RunRequest{Level: "gvisor", Image: "nonsense", Argv: []string{"true"}}, "nonsense"},
		"missing dir":    {api.RunRequest{Level: "gvisor", Image: "/nonexistent", Argv: []string{"true"}}, "/nonexistent"},
		"no program":     {api.RunRequest{Level: "gvisor", Image: "host"}, "nothing to run"},
		"missing binary": {sh2("/no/such/program"), "/no/such/program"},
		"no interpreter": {api.RunRequest{Level: "gvisor", Image: emptyImage(t), Script: &api.Script{Lang: "python", Code: []byte("1")}}, "python3"},
		"unknown user":   {api.RunRequest{Level: "gvisor", Image: "host", Argv: []string{"true"}, User: "admin"}, "admin"},
		"missing cwd":    {api.RunRequest{Level: "gvisor", Image: "host", Argv: []string{"true"}, WorkDir: "/no/dir"}, "/no/dir"},
	} {
		_, err := tryRun(t, t.Context(), tc.req, "")
		if err == nil {
			t.Errorf("%s: no error", name)
			continue
		}
		if !strings.Contains(err.Error(), tc.says) || api.Hint(err) == "" || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %q (hint %q), want one line with %q and a hint", name, err, api.Hint(err), tc.says)
		}
	}
}

func sh2(argv ...string) api.RunRequest {
	return api.RunRequest{Level: "gvisor", Image: "host", Argv: argv}
}

// emptyImage is a directory image with a file and no interpreter.
func emptyImage(t *testing.T) string {
	dir := t.TempDir()
	write(t, dir+"/readme", "nothing here", 0o644, 0)
	return dir
}

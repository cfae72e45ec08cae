package host

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Probe is one feature of the machine, tried and not guessed.
type Probe struct {
	Name   string
	OK     bool
	Detail string // what was found
	Fix    string // when not OK: what to do about it
}

// probes are tried by name; each returns what it found, and an error when the
// feature is not there.
var probes = []struct {
	name string
	try  func() (string, error)
	fix  string
}{
	{"root", probeRoot, "run as root"},
	{"cgroup", probeCgroup, "on cgroup v2 without root: systemd-run --user --scope -p Delegate=yes …; " +
		"in a container: mount /sys/fs/cgroup writable"},
	{"userns", probeUserNS, "sysctl user.max_user_namespaces and kernel.unprivileged_userns_clone above 0; on Ubuntu " +
		"kernel.apparmor_restrict_unprivileged_userns=0 or an AppArmor profile that grants userns"},
	{"netns", probeNetNS, "a kernel with CONFIG_NET_NS, and root"},
	{"seccomp", probeSeccomp, "a kernel with CONFIG_SECCOMP_FILTER"},
	{"nocgo", func() (string, error) { return "all threads can drop privileges", CheckNoCgo() },
		"build with CGO_ENABLED=0"},
	{"idmap", probeIDMap, "Linux 5.12 or newer and a file system with idmapped mounts (ext4, xfs, btrfs; tmpfs from 6.3)"},
	{"mmdebstrap", probeCommand("mmdebstrap"), "apt-get install mmdebstrap"},
	{"node", probeCommand("node"), "install Node.js"},
	{"kvm", probeKVM, "load kvm_intel or kvm_amd, and access to /dev/kvm"},
}

// ProbeNames lists what Try knows.
func ProbeNames() (names []string) {
	for _, p := range probes {
		names = append(names, p.name)
	}
	return names
}

// Try probes one feature. An unknown name is not OK.
func Try(name string) Probe {
	for _, p := range probes {
		if p.name != name {
			continue
		}
		detail, err := p.try()
		if err != nil {
			return Probe{Name: name, Detail: err.Error(), Fix: p.fix}
		}
		return Probe{Name: name, OK: true, Detail: detail}
	}
	return Probe{Name: name, Detail: "no such probe", Fix: "one of: " + strings.Join(ProbeNames(), ", ")}
}

// TryAll probes everything, in a fixed order.
func TryAll() (all []Probe) {
	for _, p := range probes {
		all = append(all, Try(p.name))
	}
	return all
}

func probeRoot() (string, error) {
	if uid := os.Geteuid(); uid != 0 {
		return "", fmt.Errorf("running as uid %d", uid)
	}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}, &caps[0]); err != nil {
		return "", fmt.Errorf("cannot read capabilities: %w", err)
	}
	for name, c := range map[string]uint{"CAP_SYS_ADMIN": unix.CAP_SYS_ADMIN, "CAP_NET_ADMIN": unix.CAP_NET_ADMIN,
		"CAP_SETPCAP": unix.CAP_SETPCAP, "CAP_SETUID": unix.CAP_SETUID} {
		if caps[c/32].Effective&(1<<(c%32)) == 0 {
			return "", fmt.Errorf("uid 0 without %s, as in a container", name)
		}
	}
	return "uid 0 with the capabilities needed", nil
}

func probeCgroup() (string, error) {
	c, err := DetectCgroups()
	if err != nil {
		return "", err
	}
	if err := c.check([]string{"memory", "pids", "cpu"}); err != nil {
		return "", err
	}
	name := fmt.Sprintf("probe-%d", os.Getpid())
	g, err := c.Create(name, Limits{MemoryMax: 64 << 20, Pids: 16, CPUQuota: 1})
	if err != nil {
		return "", err
	}
	if err := g.Remove(); err != nil {
		return "", err
	}
	return c.Layout() + ": " + strings.Join(c.Controllers(), " "), nil
}

// probeUserNS makes one with an ordinary user's id inside. Ubuntu lets an
// unconfined program make the namespace and then denies it the capabilities
// there, so that only the sysctl tells.
func probeUserNS() (string, error) {
	uid, gid := os.Geteuid(), os.Getegid()
	if uid == 0 {
		uid, gid = JailUID, JailGID
	}
	err := stillborn(&syscall.SysProcAttr{
		Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: uid, Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: gid, Size: 1}},
	}, nothing)
	if err != nil {
		return "", fmt.Errorf("cannot make a user namespace: %w", err)
	}
	v, _ := os.ReadFile("/proc/sys/kernel/apparmor_restrict_unprivileged_userns")
	if strings.TrimSpace(string(v)) != "1" {
		return "made one", nil
	}
	profile, _ := os.ReadFile("/proc/self/attr/current")
	if os.Geteuid() != 0 && strings.HasPrefix(string(profile), "unconfined") {
		return "", errors.New("AppArmor restricts unprivileged user namespaces")
	}
	return "made one; AppArmor restricts other users", nil
}

func probeNetNS() (string, error) {
	if err := stillborn(&syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWNET}, nothing); err != nil {
		return "", fmt.Errorf("cannot make a network namespace: %w", err)
	}
	return "made one", nil
}

func nothing(int) error { return nil }

func probeSeccomp() (string, error) {
	actions, err := os.ReadFile("/proc/sys/kernel/seccomp/actions_avail")
	if err != nil {
		return "", fmt.Errorf("cannot read seccomp actions: %w", err)
	}
	if !slices.Contains(strings.Fields(string(actions)), "kill_process") {
		return "", errors.New("kernel cannot kill the whole process")
	}
	return strings.TrimSpace(string(actions)), nil
}

func probeIDMap() (string, error) {
	dir, err := os.MkdirTemp("", "caisson-probe-")
	if err != nil {
		return "", err
	}
	defer os.Remove(dir)
	ns, err := NewIDMap(IDMap{DiskUID: 0, DiskGID: 0, UID: JailUID, GID: JailGID})
	if err != nil {
		return "", err
	}
	defer ns.Close()
	fd, err := CloneMount(dir, BindOptions{IDMap: int(ns.Fd())})
	if err != nil {
		return "", err
	}
	unix.Close(fd)
	return "on " + os.TempDir(), nil
}

func probeCommand(name string) func() (string, error) {
	return func() (string, error) { return exec.LookPath(name) }
}

// probeKVM says that the device opens, not that it runs a guest.
func probeKVM() (string, error) {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	f.Close()
	return "/dev/kvm opens", nil
}

package gvisor

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"caisson.dev/caisson/internal/driver"
)

// bundleName encodes what the sandbox kernel should believe about the size of
// its machine: "bundle-<bytes>-<processors>".
func bundleName(l driver.Limits) string {
	return fmt.Sprintf("bundle-%d-%d", l.Memory, cpuCount(l.CPU))
}

func parseBundleName(path string) (memory, cpus string, ok bool) {
	parts := strings.Split(filepath.Base(path), "-")
	if len(parts) != 3 || parts[0] != "bundle" {
		return "", "", false
	}
	for _, p := range parts[1:] {
		if _, err := strconv.ParseUint(p, 10, 63); err != nil {
			return "", "", false
		}
	}
	return parts[1], parts[2], true
}

// cpuCount is how many processors the guest sees. With fewer than two, some
// programs turn their locks off and then misbehave under preemption.
func cpuCount(cores float64) int {
	n := max(int(math.Ceil(cores)), 2)
	return min(n, max(runtime.NumCPU(), 1))
}

// The uid range of gofers: free of human accounts and of the ranges that
// systemd and Docker hand out. Each sandbox gets a slot of its own, so that
// two gofers are strangers to each other.
const (
	idBase  = 0x70000000
	idSlots = 0x0fff
	idSize  = 65536
)

// buildSpec returns the OCI spec of a sandbox whose host directories are
// staged under stage. PID 1 has every capability inside, none of it
// inheritable, which root would keep over an exec: it makes mounts and
// namespaces there, and capabilities of a gVisor guest mean nothing outside.
func buildSpec(s driver.Spec, stage string, slot uint32) *specs.Spec {
	caps := allCapabilities()
	id := []specs.LinuxIDMapping{{ContainerID: 0, HostID: idBase + slot*idSize, Size: idSize}}
	return &specs.Spec{
		Version:  specs.Version,
		Hostname: "caisson",
		Root:     &specs.Root{Path: stage, Readonly: true},
		Process: &specs.Process{
			Args: []string{"/caisson-guest"},
			// Nothing secret: every process inside can read this list, in
			// /proc/gvisor/spec_environ.
			Env:          []string{guestConfigEnv},
			Cwd:          "/",
			Capabilities: &specs.LinuxCapabilities{Bounding: caps, Effective: caps, Permitted: caps},
			Rlimits:      []specs.POSIXRlimit{{Type: "RLIMIT_NOFILE", Hard: 1 << 20, Soft: 1 << 20}},
		},
		Mounts: buildMounts(s, stage),
		Linux: &specs.Linux{
			UIDMappings: id,
			GIDMappings: id,
			Namespaces: []specs.LinuxNamespace{
				{Type: specs.PIDNamespace},
				{Type: specs.IPCNamespace},
				{Type: specs.UTSNamespace},
				{Type: specs.MountNamespace},
				{Type: specs.UserNamespace},
				{Type: specs.NetworkNamespace, Path: "/proc/self/ns/net"},
			},
		},
		Annotations: map[string]string{
			"dev.gvisor.spec.rootfs.type":   "erofs",
			"dev.gvisor.spec.rootfs.source": s.Skeleton,
		},
	}
}

func buildMounts(s driver.Spec, stage string) []specs.Mount {
	mounts := []specs.Mount{{Destination: "/proc", Type: "proc", Source: "proc"}}
	if s.Host == nil {
		mounts = append(mounts, specs.Mount{
			Destination: "/image", Type: "erofs", Source: s.Image, Options: []string{"ro"},
		})
	} else {
		mounts = append(mounts, specs.Mount{
			Destination: "/image", Type: "bind", Source: filepath.Join(stage, "image"), Options: []string{"rbind", "ro"},
		})
	}
	for i, m := range s.Mounts {
		mode := "rw"
		if m.ReadOnly {
			mode = "ro"
		}
		mounts = append(mounts, specs.Mount{
			Destination: driver.MountPoint(i, m.File), Type: "bind", Source: filepath.Join(stage, "mnt", strconv.Itoa(i)),
			Options: []string{"rbind", mode, "nosuid"},
		})
	}
	return mounts
}

// PID 1 reads its configuration, which holds the token, from a pipe.
const (
	guestConfigFD  = 3
	guestConfigEnv = "CAISSON_GUEST_FD=3"
)

// pipeSize is what a new pipe holds without a reader.
const pipeSize = 64 << 10

// configPipe returns the read end of a pipe that holds the configuration.
func configPipe(config string) (*os.File, error) {
	if len(config) > pipeSize {
		return nil, fmt.Errorf("%d bytes are more than a pipe holds", len(config))
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer w.Close()
	if _, err := w.WriteString(config); err != nil {
		r.Close()
		return nil, err
	}
	return r, nil
}

func writeBundle(dir string, spec *specs.Spec) error {
	b, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("cannot encode the OCI spec: %w", err)
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("cannot make the bundle: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "config.json"), b, 0o600); err != nil {
		return fmt.Errorf("cannot write the OCI spec: %w", err)
	}
	return nil
}

func allCapabilities() []string {
	return strings.Fields(`CAP_AUDIT_CONTROL CAP_AUDIT_READ CAP_AUDIT_WRITE CAP_BLOCK_SUSPEND
		CAP_CHOWN CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH CAP_FOWNER CAP_FSETID CAP_IPC_LOCK
		CAP_IPC_OWNER CAP_KILL CAP_LEASE CAP_LINUX_IMMUTABLE CAP_MAC_ADMIN CAP_MAC_OVERRIDE
		CAP_MKNOD CAP_NET_ADMIN CAP_NET_BIND_SERVICE CAP_NET_BROADCAST CAP_NET_RAW CAP_SETFCAP
		CAP_SETGID CAP_SETPCAP CAP_SETUID CAP_SYSLOG CAP_SYS_ADMIN CAP_SYS_BOOT CAP_SYS_CHROOT
		CAP_SYS_MODULE CAP_SYS_NICE CAP_SYS_PACCT CAP_SYS_PTRACE CAP_SYS_RAWIO CAP_SYS_RESOURCE
		CAP_SYS_TIME CAP_SYS_TTY_CONFIG CAP_WAKE_ALARM`)
}

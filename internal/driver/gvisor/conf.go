package gvisor

import (
	"fmt"

	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/flag"
)

// flags is every gVisor setting that we decide on purpose, with the reason.
// What is not named keeps gVisor's default; the posture test reads the result.
var flags = []struct{ name, value, why string }{
	{"network", "sandbox", "own netstack inside the sandbox, on a namespace that holds only loopback"},
	{"ignore-cgroups", "true", "gVisor moves the calling process between cgroups; ours are joined by the create child"},
	{"directfs", "true", "the kernel process runs as a uid of this sandbox alone and opens mounts itself; see docs/rationale.md"},
	{"host-uds", "none", "no host socket is reachable through a mount"},
	{"host-fifo", "none", "nor any host pipe"},
	{"gofer-network-namespace", "host", "'host' is the create child's namespace, which is the sandbox's own"},
	{"file-access-mounts", "shared", "host directories may change under a live sandbox"},
	{"allow-suid", "false", "no way up inside; the first process already is who it should be"},
	{"oci-seccomp", "false", "the guest program installs the guest's filter"},
	{"net-raw", "false", "no raw sockets"},
	{"overlay2", "none", "the guest program makes the overlay, with a byte and an inode limit"},
	{"watchdog-action", "log", "a stuck task is the guest's own problem; the wall clock ends it"},
	{"sidecar-usage-policy", "LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK", "the kernel is linked in; see docs/rationale.md for the way out"},
	{"host-settings", "ignore", "no advice about host tuning on a user's terminal"},
	{"cpu-num-from-quota", "true", "the guest sees as many processors as it may use"},
	{"gvisor-marker-file", "false", "no marker that programs could depend on"},
}

// newConfig returns gVisor's configuration with its state under rootDir, and
// with logs of everything in logDir unless that is empty.
func newConfig(rootDir, logDir string) (*config.Config, error) {
	fs := flag.NewFlagSet("gvisor", flag.ContinueOnError)
	config.RegisterFlags(fs)
	if err := fs.Set("root", rootDir); err != nil {
		return nil, fmt.Errorf("cannot set gVisor flag root: %w", err)
	}
	for _, f := range flags {
		if err := fs.Set(f.name, f.value); err != nil {
			return nil, fmt.Errorf("cannot set gVisor flag %s=%s: %w", f.name, f.value, err)
		}
	}
	if logDir != "" {
		for name, value := range map[string]string{"debug": "true", "debug-log": logDir + "/", "panic-log": logDir + "/"} {
			if err := fs.Set(name, value); err != nil {
				return nil, fmt.Errorf("cannot set gVisor flag %s: %w", name, err)
			}
		}
	}
	conf, err := config.NewFromFlags(fs)
	if err != nil {
		return nil, fmt.Errorf("cannot read gVisor flags: %w", err)
	}
	return conf, nil
}

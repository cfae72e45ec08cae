package gvisor

import (
	"context"
	"os"
	"path/filepath"
	"runtime"

	"caisson.dev/caisson/internal/driver"
	"caisson.dev/caisson/internal/host"
)

// needed are the host features without which no sandbox of this level starts.
// Missing id-mapped mounts only concern --mount and are told there.
var needed = []string{"root", "cgroup", "userns", "netns", "seccomp"}

// Probe tries what Create needs and says what is missing, with the fix.
func (d *Driver) Probe(context.Context) []driver.Missing {
	var missing []driver.Missing
	if runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64" {
		missing = append(missing, driver.Missing{What: "a processor that gVisor runs on", Fix: "use an amd64 or arm64 machine"})
	}
	for _, name := range needed {
		if p := host.Try(name); !p.OK {
			missing = append(missing, driver.Missing{What: name + ": " + p.Detail, Fix: p.Fix})
		}
	}
	if err := tryRunDir(d.RunDir); err != nil {
		missing = append(missing, driver.Missing{What: "a writable " + d.RunDir + ": " + err.Error(), Fix: "make it writable for root, or free space there"})
	}
	return missing
}

func tryRunDir(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	f, err := os.CreateTemp(dir, "probe-")
	if err != nil {
		return err
	}
	f.Close()
	return os.Remove(filepath.Clean(f.Name()))
}

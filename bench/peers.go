package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// prepare makes one root file system in two forms: the EROFS file that caisson
// built, and the directory that is in it.
func (b *bench) prepare() error {
	for _, d := range []string{b.path("data"), b.path("erofs"), b.path("state"), b.path("filestore"), b.path("mount")} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if err := os.Chmod(b.path("data"), 0o700); err != nil {
		return err
	}
	build := b.caisson("image", "build", b.image())
	build.Stderr = os.Stderr
	if out, err := build.Output(); err != nil {
		return fmt.Errorf("cannot build the image: %w\n%s", err, out)
	}
	blob, err := b.blob()
	if err != nil {
		return err
	}
	if _, err := os.Stat(b.path("rootfs") + "/bin/true"); err == nil {
		return nil
	}
	mount := exec.Command("mount", "-t", "erofs", "-o", "ro,loop", blob, b.path("erofs"))
	if out, err := mount.CombinedOutput(); err != nil {
		b.skip("tools that need a directory: the kernel mounts no EROFS here: %s", strings.TrimSpace(string(out)))
		return nil
	}
	defer b.unmount()
	if out, err := exec.Command("cp", "-a", b.path("erofs"), b.path("rootfs")).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot copy the root file system: %w\n%s", err, out)
	}
	return nil
}

// unmount takes away what would keep the work directory from being removed:
// our own mount, and the namespace that runsc pins in its state directory.
func (b *bench) unmount() {
	_ = syscall.Unmount(b.path("erofs"), syscall.MNT_DETACH)
	_ = syscall.Unmount(b.path("state")+"/null-netns", syscall.MNT_DETACH)
}

func (b *bench) image() string { return "debian:" + b.suite }

// blob finds the one image of our own store.
func (b *bench) blob() (string, error) {
	files, err := filepath.Glob(b.path("data") + "/images/blobs/sha256/*.erofs")
	if err != nil || len(files) != 1 {
		return "", fmt.Errorf("cannot find the image: %d files in the store", len(files))
	}
	return files[0], nil
}

func (b *bench) caisson(args ...string) *exec.Cmd {
	return exec.Command("bin/caisson", append([]string{"--data", b.path("data")}, args...)...)
}

// peer is one way to run a program, in one of the two forms.
type peer struct {
	name string
	// command prepares one run; id is unique.
	command func(id string, argv ...string) (*exec.Cmd, error)
}

// peers lists what is installed, caisson first, and names what is not.
func (b *bench) peers() []peer {
	all := []peer{
		{"caisson, EROFS image", func(_ string, argv ...string) (*exec.Cmd, error) {
			return b.caisson(append([]string{"run", "-q", "--image", b.image(), "--"}, argv...)...), nil
		}},
		{"caisson, host image", func(_ string, argv ...string) (*exec.Cmd, error) {
			return b.caisson(append([]string{"run", "-q", "--"}, argv...)...), nil
		}},
	}
	runsc := b.dir + "/runsc"
	_, noDir := os.Stat(b.path("rootfs"))
	add := func(name, program string, needsDir bool, f func(program string) peer) {
		found, err := exec.LookPath(program)
		switch {
		case err != nil:
			b.skip("%s: not installed", name)
		case needsDir && noDir != nil:
			b.skip("%s: no directory", name)
		default:
			p := f(found)
			p.name = name
			all = append(all, p)
		}
	}
	add("runsc, EROFS image", runsc, false, func(string) peer { return peer{command: b.runsc(true)} })
	add("runsc, directory", runsc, true, func(string) peer { return peer{command: b.runsc(false)} })
	add("runc, directory", "runc", true, func(program string) peer { return peer{command: b.runc(program)} })
	add("bwrap, directory", "bwrap", true, func(program string) peer {
		return peer{command: func(_ string, argv ...string) (*exec.Cmd, error) {
			return exec.Command(program, append([]string{
				"--unshare-all", "--die-with-parent", "--ro-bind", b.path("rootfs"), "/",
				"--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp",
			}, argv...)...), nil
		}}
	})
	return all
}

func (b *bench) runsc(erofs bool, flags ...string) func(string, ...string) (*exec.Cmd, error) {
	return func(id string, argv ...string) (*exec.Cmd, error) {
		bundle, err := b.bundle(id, erofs, argv)
		if err != nil {
			return nil, err
		}
		args := append([]string{"--root", b.path("state"), "--sidecar-usage-policy=LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK"}, flags...)
		return exec.Command(b.dir+"/runsc", append(args, "run", "--bundle", bundle, id)...), nil
	}
}

func (b *bench) runc(program string) func(string, ...string) (*exec.Cmd, error) {
	return func(id string, argv ...string) (*exec.Cmd, error) {
		bundle, err := b.bundle(id, false, argv)
		if err != nil {
			return nil, err
		}
		return exec.Command(program, "--root", b.path("state")+"/runc", "run", "--bundle", bundle, id), nil
	}
}

// bundle writes an OCI bundle with the limits that `caisson run` has by
// default, the same namespaces, and no network.
func (b *bench) bundle(id string, erofs bool, argv []string) (string, error) {
	type m = map[string]any
	spec := m{
		"ociVersion": "1.1.0", "hostname": "bench",
		"process": m{
			"args": argv, "cwd": "/", "env": []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}, "user": m{"uid": 1000, "gid": 1000},
			"noNewPrivileges": true, "rlimits": []m{{"type": "RLIMIT_NOFILE", "hard": 1024, "soft": 1024}},
		},
		"root": m{"path": b.path("rootfs"), "readonly": !strings.HasPrefix(id, "write")},
		"mounts": []m{
			{"destination": "/proc", "type": "proc", "source": "proc"},
			{"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "mode=755"}},
			{"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": []string{"nosuid", "nodev"}},
		},
		"linux": m{
			"cgroupsPath": "/caisson-bench/" + id,
			"namespaces":  []m{{"type": "pid"}, {"type": "network"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}},
			"resources": m{
				"memory": m{"limit": 616 << 20}, "pids": m{"limit": 704},
				"cpu": m{"quota": 100000, "period": 100000},
			},
		},
	}
	if strings.HasPrefix(id, "write") {
		spec["process"].(m)["user"] = m{"uid": 0, "gid": 0}
	}
	if erofs {
		blob, err := b.blob()
		if err != nil {
			return "", err
		}
		spec["annotations"] = m{
			"dev.gvisor.spec.rootfs.type": "erofs", "dev.gvisor.spec.rootfs.source": blob,
			"dev.gvisor.spec.rootfs.overlay": "memory",
		}
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(b.path("state"), "bundle-"+id)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600)
}

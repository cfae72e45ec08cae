package daemon

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/driver"
	"caisson.dev/caisson/internal/host"
	"caisson.dev/caisson/internal/image"
	"caisson.dev/caisson/internal/policy"
)

// resolveMounts asks the policy about each source. The driver opens it without
// following a symlink, so that what is mounted is what was decided on.
func resolveMounts(in []api.Mount, p Paths) ([]api.Mount, error) {
	if len(in) > driver.MaxMounts {
		return nil, &api.Error{Code: "mount_refused", Message: fmt.Sprintf("%d mounts; the most is %d", len(in), driver.MaxMounts), Hint: "mount a parent directory instead"}
	}
	if len(in) == 0 {
		return nil, nil
	}
	ceiling, err := policy.Load(policy.SystemFile)
	if err != nil {
		return nil, err
	}
	hostFacts := factsOf(p)
	out := make([]api.Mount, 0, len(in))
	for _, m := range in {
		f, err := factsOfPath(m.Source)
		var ae *api.Error
		if errors.As(err, &ae) {
			return nil, err
		}
		if err != nil {
			return nil, &api.Error{Code: "mount_unreadable", Message: fmt.Sprintf("cannot mount %q: %v", m.Source, errText(err)), Hint: "the source must exist and be readable", Err: err}
		}
		f.Target, f.ReadOnly = m.Target, m.ReadOnly
		if err := ceiling.Mount(f, hostFacts); err != nil {
			return nil, err
		}
		m.Source, m.File = f.Source, f.File
		out = append(out, m)
	}
	return out, refuseNested(out)
}

// refuseNested refuses a mount inside another: its mount point would be made
// in the outer one, on the host.
func refuseNested(mounts []api.Mount) error {
	for i, a := range mounts {
		for j, b := range mounts {
			if i != j && a.Target == b.Target {
				return &api.Error{Code: "mount_refused", Message: fmt.Sprintf("mount target %q is given twice", a.Target), Hint: "choose a target for each source"}
			}
			if i != j && policy.Within(a.Target, b.Target) {
				return &api.Error{Code: "mount_refused", Message: fmt.Sprintf("mount target %q lies in mount target %q", a.Target, b.Target), Hint: "choose targets side by side, such as /data and /out"}
			}
		}
	}
	return nil
}

func factsOf(p Paths) policy.HostFacts {
	return policy.HostFacts{Homes: homes(), State: []string{p.Data, p.Run, DefaultPaths.Data, DefaultPaths.Run}}
}

// factsOfPath looks at what a path names. A path that goes through a symlink
// is refused: a sandbox that could once write there may have planted it, and
// it is not what the caller sees in the name. The working directory is the
// caller's own choice and may be reached through one.
func factsOfPath(path string) (policy.MountFacts, error) {
	abs := path
	if !filepath.IsAbs(path) {
		wd, err := os.Getwd()
		if err == nil {
			wd, err = filepath.EvalSymlinks(wd)
		}
		if err != nil {
			return policy.MountFacts{}, err
		}
		abs = filepath.Join(wd, path)
	}
	abs = filepath.Clean(abs)
	real, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return policy.MountFacts{}, err
	}
	if real != abs {
		return policy.MountFacts{}, &api.Error{Code: "symlink", Message: fmt.Sprintf("%q goes through a symlink", path), Hint: fmt.Sprintf("if that is what you mean, name %q", real)}
	}
	fi, err := os.Lstat(abs)
	if err != nil {
		return policy.MountFacts{}, err
	}
	return policy.MountFacts{
		Source: abs, File: !fi.IsDir(),
		Socket: fi.Mode()&os.ModeSocket != 0,
		Device: !fi.IsDir() && !fi.Mode().IsRegular(),
	}, nil
}

// ParseImage reads a reference as users write it. One that names a directory
// or a file of the host obeys the same policy as a mount of it: otherwise
// packing /root would be the way to mount it.
func ParseImage(s string, p Paths) (ImageRef, error) {
	ref, err := image.ParseRef(s)
	if err != nil || ref.Path == "" {
		return ref, err
	}
	f, err := factsOfPath(ref.Path)
	if errors.Is(err, os.ErrNotExist) {
		return ref, nil // the store says that it is not there
	}
	if err != nil {
		return ImageRef{}, err
	}
	ceiling, err := policy.Load(policy.SystemFile)
	if err != nil {
		return ImageRef{}, err
	}
	if err := ceiling.Image(f, factsOf(p)); err != nil {
		return ImageRef{}, err
	}
	ref.Path = f.Source
	return ref, nil
}

// maxScript is far above any script, and below what a mistake may read.
const maxScript = 16 * api.MiB

// ReadScript reads a script that is to be run, if the policy has nothing
// against showing its text to a sandbox.
func ReadScript(name string, p Paths) ([]byte, error) {
	f, err := factsOfPath(name)
	if err != nil {
		return nil, err
	}
	ceiling, err := policy.Load(policy.SystemFile)
	if err != nil {
		return nil, err
	}
	if err := ceiling.Script(f, factsOf(p)); err != nil {
		return nil, err
	}
	place, err := host.OpenPath(f.Source)
	if err != nil {
		return nil, err
	}
	defer place.Close()
	file, err := os.Open(fmt.Sprintf("/proc/self/fd/%d", place.Fd()))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	b, err := io.ReadAll(io.LimitReader(file, maxScript+1))
	if err == nil && len(b) > maxScript {
		err = errors.New("larger than 16 MiB")
	}
	return b, err
}

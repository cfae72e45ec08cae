package daemon

import (
	"fmt"
	"os"
	"path/filepath"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/driver"
	"caisson.dev/caisson/internal/image"
	"caisson.dev/caisson/internal/policy"
)

// resolveMounts follows the links of each source once, asks the policy about
// where they lead, and passes that on: what is mounted is what was decided on.
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
		f, err := sourceFacts(m.Source)
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
	return out, nil
}

func factsOf(p Paths) policy.HostFacts {
	return policy.HostFacts{Homes: homes(), State: []string{p.Data, p.Run}}
}

// sourceFacts resolves a path and looks at what is there.
func sourceFacts(path string) (policy.MountFacts, error) {
	abs, err := filepath.Abs(path)
	if err != nil {
		return policy.MountFacts{}, err
	}
	src, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return policy.MountFacts{}, err
	}
	fi, err := os.Lstat(src)
	if err != nil {
		return policy.MountFacts{}, err
	}
	return policy.MountFacts{
		Source: src, File: !fi.IsDir(),
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
	f, err := sourceFacts(ref.Path)
	if err != nil {
		return ref, nil // the store says that it is not there
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

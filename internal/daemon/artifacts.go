package daemon

import (
	"fmt"
	"os"
	"path/filepath"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/host"
	"caisson.dev/caisson/internal/policy"
)

// openDestinations opens the directory of each artifact before anything runs,
// and makes req's destinations absolute. What the sandbox does to names later,
// through a mount, does not change where the writer writes (I6).
func openDestinations(req api.RunRequest, p Paths) (dirs []*os.Root, err error) {
	defer func() {
		if err != nil {
			closeAll(dirs)
			dirs = nil
		}
	}()
	if len(req.Artifacts) == 0 {
		return nil, nil
	}
	ceiling, err := policy.Load(policy.SystemFile)
	if err != nil {
		return nil, err
	}
	for i := range req.Artifacts {
		a := &req.Artifacts[i]
		f, err := factsOfPath(filepath.Dir(a.Dest))
		if err != nil {
			return dirs, badArtifact(a.Dest, err)
		}
		if err := ceiling.Destination(f, factsOf(p)); err != nil {
			return dirs, err
		}
		for _, m := range req.Mounts {
			if !m.ReadOnly && policy.Within(f.Source, m.Source) {
				return dirs, &api.Error{Code: "mount_refused", Message: fmt.Sprintf("artifact destination %q lies in the writable mount of %q", a.Dest, m.Source), Hint: "the program can write there itself; choose a destination outside"}
			}
		}
		place, err := host.OpenPath(f.Source)
		if err != nil {
			return dirs, badArtifact(a.Dest, err)
		}
		dir, err := os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", place.Fd()))
		place.Close()
		if err != nil {
			return dirs, badArtifact(a.Dest, err)
		}
		dirs = append(dirs, dir)
		a.Dest = filepath.Join(f.Source, filepath.Base(a.Dest))
	}
	return dirs, nil
}

func badArtifact(dest string, err error) error {
	hint := "make the directory first"
	if h := api.Hint(err); h != "" {
		hint = h
	}
	return &api.Error{Code: "bad_artifact", Message: fmt.Sprintf("cannot copy an artifact to %q: %v", dest, errText(err)), Hint: hint, Err: err}
}

func closeAll(dirs []*os.Root) {
	for _, d := range dirs {
		d.Close()
	}
}

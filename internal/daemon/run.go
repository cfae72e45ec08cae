package daemon

import (
	"context"
	"errors"
	"path/filepath"
	"time"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/driver"
	"caisson.dev/caisson/internal/guest/attach"
	"caisson.dev/caisson/internal/guest/program"
	"caisson.dev/caisson/internal/host"
	"caisson.dev/caisson/internal/image"
	"caisson.dev/caisson/internal/sandbox"
)

// RunOptions is what `caisson run` says beside the request.
type RunOptions struct {
	Paths    Paths
	Began    time.Time
	Stdio    attach.Stdio
	Terminal sandbox.Terminal
	Progress image.Progress
	Spare    *Spare // may be nil; the caller closes it
}

// Run runs one program in a fresh sandbox, without any daemon.
func Run(ctx context.Context, o RunOptions, req api.RunRequest) (*api.RunResult, error) {
	drv, err := newDriver(req.Level, o.Paths, o.Spare)
	if err != nil {
		return nil, err
	}
	if p := host.Try("root"); !p.OK {
		return nil, notReady(req.Level, []driver.Missing{{What: "root: " + p.Detail, Fix: p.Fix}})
	}
	if err := o.Paths.prepare(); err != nil {
		return nil, err
	}
	if req.Mounts, err = resolveMounts(req.Mounts, o.Paths); err != nil {
		return nil, err
	}
	dests, err := openDestinations(req, o.Paths)
	if err != nil {
		return nil, err
	}
	defer closeAll(dests)
	sandbox.Sweep(drv, o.Paths.Run)
	img, closeImage, err := resolveImage(ctx, o, req)
	if err != nil {
		if ctx.Err() != nil {
			return interrupted(req), nil
		}
		return nil, err
	}
	defer closeImage()
	skeleton, err := skeletonFile(o.Paths)
	if err != nil {
		return nil, err
	}
	res, err := sandbox.Run(ctx, sandbox.Config{
		Driver: drv, RunDir: o.Paths.Run, Skeleton: skeleton, Image: img,
		Stdio: o.Stdio, Terminal: o.Terminal, Began: o.Began, Destinations: dests,
	}, req)
	if err != nil && ctx.Err() != nil {
		return interrupted(req), nil
	}
	var ae *api.Error
	if err != nil && !errors.As(err, &ae) {
		// A failure without a reason of its own often is a missing feature.
		if nr := notReady(req.Level, drv.Probe(ctx)); nr != nil {
			return nil, nr
		}
	}
	return res, err
}

// interrupted is the result of a run that was ended while it was being made.
func interrupted(req api.RunRequest) *api.RunResult {
	return &api.RunResult{
		Level: req.Level, Image: req.Image, Limits: req.Limits, ExitCode: api.ExitInterrupt,
		Code: api.EndInterrupt, Reason: "interrupted before the program started",
		Stdout: &api.Output{}, Stderr: &api.Output{},
	}
}

// Probe says what the level lacks on this machine, as an error, or nil.
func Probe(ctx context.Context, level string, p Paths) error {
	drv, err := newDriver(level, p, nil)
	if err != nil {
		return err
	}
	return notReady(level, drv.Probe(ctx))
}

func skeletonFile(p Paths) (string, error) {
	b, digest, err := program.Binary()
	if err != nil {
		return "", err
	}
	return image.Skeleton(filepath.Join(p.Data, "skeleton"), b, digest, driver.MaxMounts)
}

func resolveImage(ctx context.Context, o RunOptions, req api.RunRequest) (sandbox.Image, func(), error) {
	ref, err := ParseImage(req.Image, o.Paths)
	if err != nil {
		return sandbox.Image{}, nil, err
	}
	if ref.Kind == image.KindHost {
		h := &driver.HostImage{Local: req.HostLocal, Opt: req.HostOpt}
		return sandbox.Image{Name: "host", Host: h}, func() {}, nil
	}
	store, err := image.Open(filepath.Join(o.Paths.Data, "images"))
	if err != nil {
		return sandbox.Image{}, nil, err
	}
	img, err := store.Resolve(ctx, ref, image.Options{Progress: o.Progress})
	if err != nil {
		return sandbox.Image{}, nil, err
	}
	return sandbox.Image{
		Name: req.Image, Digest: img.Digest, Path: img.Path, Env: img.Config.Env, WorkDir: img.Config.WorkDir,
	}, func() { img.Close() }, nil
}

// Names of types below this package, so that the command line imports none.
type (
	Stdio    = attach.Stdio
	Terminal = sandbox.Terminal
	Progress = image.Progress
	Update   = image.Update
)

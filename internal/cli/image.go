package cli

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/daemon"
)

// ImageCmd is `caisson image`.
type ImageCmd struct {
	Ls     imageLsCmd     `cmd:"" help:"List the images in the store."`
	Pull   imagePullCmd   `cmd:"" help:"Fetch an OCI image: from a registry, a layout directory or a docker archive."`
	Build  imageBuildCmd  `cmd:"" help:"Build an image of Debian packages, or of a directory."`
	Rm     imageRmCmd     `cmd:"" help:"Remove images."`
	Gc     imageGcCmd     `cmd:"" help:"Remove what nothing uses."`
	Verify imageVerifyCmd `cmd:"" help:"Compare an image with its digest."`
}

type imageLsCmd struct{}

func (imageLsCmd) Help() string { return "Example:\n  caisson image ls" }

func (imageLsCmd) Run(g *Globals) error {
	s, err := daemon.OpenImages(g.Paths())
	if err != nil {
		return err
	}
	list, damaged := s.List() // what can be read is shown in every case
	if g.JSON && damaged == nil {
		writeJSON(g.Stdout, append([]daemon.ImageEntry{}, list...))
	}
	if g.JSON {
		return damaged
	}
	w := tabwriter.NewWriter(g.Stdout, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "IMAGE\tDIGEST\tON DISK\tUSED")
	for _, e := range list {
		used := span(time.Since(e.Used).Round(time.Second)) + " ago"
		if e.InUse {
			used = "now"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", e.Ref, e.Digest[:19], size(e.Size), used)
	}
	return errors.Join(w.Flush(), damaged)
}

// makeFlags are common to pull and build.
type makeFlags struct {
	Image      string   `arg:"" help:"What to make the image from."`
	Name       string   `help:"Also keep it under this name." placeholder:"NAME"`
	MaxSize    byteSize `help:"Most bytes of its files (default 8GiB)." placeholder:"SIZE"`
	MaxEntries int64    `help:"Most files, directories and links (default 1000000)." placeholder:"N"`
	Quiet      bool     `short:"q" help:"Show no progress."`
}

type imagePullCmd struct {
	makeFlags `embed:""`
	AuthFile  string `help:"File with registry credentials, in Docker's format (default ~/.docker/config.json)." placeholder:"FILE" type:"existingfile"`
	CAFile    string `name:"ca-file" help:"Certificates to trust registries by, instead of the system's." placeholder:"FILE" type:"existingfile"`
}

func (imagePullCmd) Help() string {
	return `The registry is always named; there is no default one. A second use of an image
asks nobody; pull looks whether a tag has moved. Examples:
  caisson image pull registry.example/team/app:v1
  caisson image pull registry.example/team/app@sha256:…
  caisson image pull --name app oci:./layout:v1
  caisson image pull docker-archive:app.tar`
}

func (c *imagePullCmd) Run(g *Globals) error {
	return c.make(g, "pull", daemon.ImageOptions{Refresh: true, AuthFile: c.AuthFile, CAFile: c.CAFile})
}

type imageBuildCmd struct {
	makeFlags `embed:""`
	Refresh   bool   `help:"Build again even if the store has it."`
	Mirror    string `help:"Debian mirror to download from, instead of mmdebstrap's choice." placeholder:"URL"`
}

func (imageBuildCmd) Help() string {
	return `Debian packages come from where this machine's apt gets them, through its proxy;
their scripts run in a user namespace, never as root of this machine. Examples:
  caisson image build debian:bookworm,python3-pandas,python3-matplotlib
  caisson image build --name base ./rootfs`
}

func (c *imageBuildCmd) Run(g *Globals) error {
	return c.make(g, "build", daemon.ImageOptions{Refresh: c.Refresh, Mirror: c.Mirror})
}

// makeKinds says which command makes which kind of image.
var makeKinds = map[string][]string{
	"pull":  {"docker", "oci", "docker-archive"},
	"build": {"debian", "dir"},
}

func (c *makeFlags) make(g *Globals, verb string, o daemon.ImageOptions) error {
	ref, err := daemon.ParseImage(c.Image, g.Paths())
	if err != nil {
		return err
	}
	if err := checkVerb(ref, verb); err != nil {
		return err
	}
	s, err := daemon.OpenImages(g.Paths())
	if err != nil {
		return err
	}
	ctx, stop := interruptible()
	defer stop()
	o.Name, o.Progress = c.Name, newProgress(g.Stderr, c.Quiet || g.JSON)
	o.Limits = daemon.ImageLimits{MaxBytes: int64(c.MaxSize), MaxEntries: c.MaxEntries}
	img, err := s.Resolve(ctx, ref, o)
	if err != nil {
		return interrupted(ctx, err)
	}
	defer img.Close()
	if g.JSON {
		writeJSON(g.Stdout, map[string]any{
			"ref": img.Ref.String(), "digest": img.Digest, "size": img.Size, "path": img.Path,
			"config": img.Config, "dropped": img.Dropped,
		})
		return nil
	}
	fmt.Fprintf(g.Stdout, "%s\n%s  %s%s\n", img.Ref, img.Digest, size(img.Size), left(img.Dropped))
	return nil
}

func checkVerb(ref daemon.ImageRef, verb string) error {
	for v, schemes := range makeKinds {
		for _, s := range schemes {
			if ref.Scheme() != s || v == verb {
				continue
			}
			return &api.Error{
				Code: "usage", Message: fmt.Sprintf("cannot %s %q", verb, ref), Hint: fmt.Sprintf("use: caisson image %s %s", v, ref),
			}
		}
	}
	return nil
}

func left(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf("  (%d devices, FIFOs or sockets left out)", n)
}

// interrupted says in words what Ctrl-C did.
func interrupted(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	return &api.Error{Code: "interrupted", Message: "interrupted", Hint: "nothing was changed; the same command starts again", Err: err}
}

type imageRmCmd struct {
	Images []string `arg:"" help:"References, names or digests, as image ls shows them."`
}

func (imageRmCmd) Help() string {
	return "An image that a sandbox uses stays. Example:\n  caisson image rm debian:bookworm sha256:0123456789ab"
}

func (c *imageRmCmd) Run(g *Globals) error {
	s, err := daemon.OpenImages(g.Paths())
	if err != nil {
		return err
	}
	var freed int64
	for _, name := range c.Images {
		ref, err := daemon.ParseImage(name, g.Paths())
		if err != nil {
			return err
		}
		n, err := s.Remove(context.Background(), ref)
		if freed += n; err != nil {
			return err
		}
	}
	if g.JSON {
		writeJSON(g.Stdout, map[string]any{"freed": freed})
		return nil
	}
	fmt.Fprintf(g.Stdout, "freed %s\n", size(freed))
	return nil
}

type imageGcCmd struct {
	UnusedFor time.Duration `help:"Also remove images that were not used for this long, such as 720h." placeholder:"TIME"`
}

func (imageGcCmd) Help() string {
	return "Removes what killed processes left and images without a reference. Example:\n  caisson image gc --unused-for 720h"
}

func (c *imageGcCmd) Run(g *Globals) error {
	if c.UnusedFor < 0 {
		return &api.Error{Code: "usage", Message: "bad --unused-for: negative", Hint: "write it like 720h"}
	}
	s, err := daemon.OpenImages(g.Paths())
	if err != nil {
		return err
	}
	res, err := daemon.CollectImages(context.Background(), s, g.Paths(), c.UnusedFor)
	if err != nil {
		return err
	}
	if g.JSON {
		writeJSON(g.Stdout, res)
		return nil
	}
	for _, ref := range res.Refs {
		fmt.Fprintf(g.Stdout, "removed %s\n", ref)
	}
	fmt.Fprintf(g.Stdout, "freed %s\n", size(res.Freed))
	return nil
}

type imageVerifyCmd struct {
	Image string `arg:"" help:"Reference, name or digest."`
	Quiet bool   `short:"q" help:"Show no progress."`
}

func (imageVerifyCmd) Help() string { return "Example:\n  caisson image verify debian:bookworm" }

func (c *imageVerifyCmd) Run(g *Globals) error {
	ref, err := daemon.ParseImage(c.Image, g.Paths())
	if err != nil {
		return err
	}
	s, err := daemon.OpenImages(g.Paths())
	if err != nil {
		return err
	}
	if err := s.Verify(context.Background(), ref, newProgress(g.Stderr, c.Quiet || g.JSON)); err != nil {
		return err
	}
	if g.JSON {
		writeJSON(g.Stdout, map[string]any{"ok": true})
		return nil
	}
	fmt.Fprintln(g.Stdout, "the image is what its digest says")
	return nil
}

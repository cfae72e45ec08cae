package image

import (
	"archive/tar"
	"encoding/json"
	"io"
	"os"
	"path"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// dockerArchive reads what "docker save" writes, old and new form, in the
// unpack child. The file is indexed once and then read at offsets.
type dockerArchive struct {
	f      *os.File
	tag    string
	arch   string
	report func(Stage, int64, int64)
	parts  map[string]section
}

type section struct {
	off, size int64
	link      string // of a symlink, which old archives use for repeated layers
}

// maxArchiveParts bounds the index; an image has a few files for each layer.
const maxArchiveParts = 20_000

type archiveManifest struct {
	Config   string
	RepoTags []string
	Layers   []string
}

func (a *dockerArchive) unpack(u *unpacker) (childConfig, error) {
	if err := a.index(); err != nil {
		return childConfig{}, err
	}
	m, err := a.find()
	if err != nil {
		return childConfig{}, err
	}
	raw, err := a.document(m.Config)
	if err != nil {
		return childConfig{}, err
	}
	// The same checks as for every other image; the configuration has no
	// descriptor here, so it gets the one that fits it.
	o := ociImage{src: oneBlob(raw), arch: a.arch, report: a.report}
	digest := v1.Hash{Algorithm: "sha256", Hex: hexSum(raw)}
	cf, err := o.config(v1.Descriptor{Size: int64(len(raw)), Digest: digest})
	if err != nil {
		return childConfig{}, err
	}
	if err := a.layers(u, m.Layers, cf.RootFS.DiffIDs); err != nil {
		return childConfig{}, err
	}
	c := cf.Config
	return childConfig{
		Config: Config{Env: c.Env, User: c.User, WorkDir: c.WorkingDir, Entrypoint: c.Entrypoint, Cmd: c.Cmd},
		Source: digest.String(),
	}, nil
}

func (a *dockerArchive) layers(u *unpacker, names []string, diffs []v1.Hash) error {
	switch {
	case len(names) == 0:
		return failf(failEmpty, "the image has no layers")
	case len(names) > maxLayers:
		return failf(failLimit, "%d layers are over %d", len(names), maxLayers)
	case len(names) != len(diffs):
		return failf(failFormat, "%d layers and %d digests of their contents", len(names), len(diffs))
	}
	var total, before int64
	found := make([]section, len(names))
	for i, name := range names {
		var err error
		if found[i], err = a.section(name); err != nil {
			return err
		}
		total += found[i].size
	}
	for i, s := range found {
		progress := func(n int64) { a.report(StageUnpack, before+n, total) }
		if err := applyLayer(u, io.NewSectionReader(a.f, s.off, s.size), s.size, "", diffs[i], progress); err != nil {
			return err
		}
		before += s.size
	}
	return nil
}

func (a *dockerArchive) index() error {
	a.parts = map[string]section{}
	tr := tar.NewReader(a.f) // it seeks over what is not read
	for n := 0; ; n++ {
		h, err := tr.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return failf(failFormat, "not a docker archive (compressed ones must be unpacked first): %w", err)
		}
		if n == maxArchiveParts {
			return failf(failLimit, "a docker archive of more than %d files", maxArchiveParts)
		}
		off, err := a.f.Seek(0, io.SeekCurrent)
		if err != nil {
			return err
		}
		name := path.Clean("/" + h.Name)
		switch h.Typeflag {
		case tar.TypeReg:
			a.parts[name] = section{off: off, size: h.Size}
		case tar.TypeSymlink:
			a.parts[name] = section{link: path.Join(path.Dir(name), h.Linkname)}
		}
	}
}

func (a *dockerArchive) section(name string) (section, error) {
	s, ok := a.parts[path.Clean("/"+name)]
	if ok && s.link != "" {
		s, ok = a.parts[s.link]
	}
	if !ok || s.link != "" {
		return section{}, failf(failFormat, "the docker archive has no file %.80q", name)
	}
	return s, nil
}

// document reads a small file whole.
func (a *dockerArchive) document(name string) ([]byte, error) {
	s, err := a.section(name)
	if err != nil {
		return nil, err
	}
	if s.size > maxManifest {
		return nil, failf(failLimit, "a document of %d bytes is over %d", s.size, maxManifest)
	}
	raw := make([]byte, s.size)
	if _, err := a.f.ReadAt(raw, s.off); err != nil {
		return nil, failf(failArchive, "the archive is cut off")
	}
	return raw, nil
}

func (a *dockerArchive) find() (archiveManifest, error) {
	raw, err := a.document("manifest.json")
	if err != nil {
		return archiveManifest{}, err
	}
	var all []archiveManifest
	if err := json.Unmarshal(raw, &all); err != nil {
		return archiveManifest{}, failf(failFormat, "cannot parse manifest.json: %w", err)
	}
	var names []string
	for _, m := range all {
		for _, name := range m.RepoTags {
			if a.tag != "" && strings.HasSuffix(name, ":"+a.tag) {
				return m, nil
			}
		}
		names = append(names, m.RepoTags...)
	}
	switch {
	case len(all) == 0:
		return archiveManifest{}, failf(failEmpty, "the docker archive has no image")
	case len(all) == 1 && a.tag == "":
		return all[0], nil
	}
	return archiveManifest{}, failf(failNotFound, "the docker archive needs the tag of one of its images: %.300q", names)
}

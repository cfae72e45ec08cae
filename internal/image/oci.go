package image

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"io"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// ociImage reads an OCI image in the unpack child, from the root that the
// source names down to the layers, checking each digest on the way.
type ociImage struct {
	src    blobSource
	tag    string // of a layout
	digest string // that the root must have, or "" for any
	layout bool   // the root is a layout's index.json, which no digest covers
	arch   string
	known  string // manifest digest that the caller has already
	report func(Stage, int64, int64)
}

// manifestLike is an index or a manifest; the fields tell which.
type manifestLike struct {
	SchemaVersion int             `json:"schemaVersion"`
	Config        *v1.Descriptor  `json:"config"`
	Layers        []v1.Descriptor `json:"layers"`
	Manifests     []v1.Descriptor `json:"manifests"`
}

// maxIndexDepth bounds indexes that name indexes.
const maxIndexDepth = 4

const refNameAnnotation = "org.opencontainers.image.ref.name"

// unpack applies all layers to u.
func (o *ociImage) unpack(u *unpacker) (childConfig, error) {
	m, digest, err := o.find()
	if err != nil {
		return childConfig{}, err
	}
	if digest == o.known {
		return childConfig{}, failf(failUnchanged, "image is unchanged")
	}
	switch {
	case len(m.Layers) == 0:
		return childConfig{}, failf(failEmpty, "the image has no layers")
	case len(m.Layers) > maxLayers:
		return childConfig{}, failf(failLimit, "%d layers are over %d", len(m.Layers), maxLayers)
	}
	cf, err := o.config(*m.Config)
	if err != nil {
		return childConfig{}, err
	}
	if len(cf.RootFS.DiffIDs) != len(m.Layers) {
		return childConfig{}, failf(failFormat, "%d layers and %d digests of their contents", len(m.Layers), len(cf.RootFS.DiffIDs))
	}
	if err := o.layers(u, m.Layers, cf.RootFS.DiffIDs); err != nil {
		return childConfig{}, err
	}
	c := cf.Config
	return childConfig{
		Config: Config{Env: c.Env, User: c.User, WorkDir: c.WorkingDir, Entrypoint: c.Entrypoint, Cmd: c.Cmd},
		Source: digest,
	}, nil
}

// find descends from the root to the manifest for this machine.
func (o *ociImage) find() (manifestLike, string, error) {
	raw, err := o.read(blobRequest{Kind: blobRoot, Size: maxManifest})
	if err != nil {
		return manifestLike{}, "", err
	}
	digest := "sha256:" + hexSum(raw)
	if o.digest != "" && !o.layout && digest != o.digest {
		return manifestLike{}, "", failf(failDigest, "the registry sent %s instead of %s", digest, o.digest)
	}
	for depth := 0; ; depth++ {
		m, err := parseManifest(raw)
		if err != nil {
			return m, "", err
		}
		if m.Manifests == nil {
			return m, digest, nil
		}
		if depth == maxIndexDepth {
			return m, "", failf(failFormat, "indexes are nested over %d deep", maxIndexDepth)
		}
		choose := o.forPlatform
		if o.layout && depth == 0 {
			choose = o.forName
		}
		d, err := choose(m.Manifests)
		if err != nil {
			return m, "", err
		}
		if raw, err = o.verified(blobManifest, d, maxManifest); err != nil {
			return m, "", err
		}
		digest = d.Digest.String()
	}
}

func parseManifest(raw []byte) (m manifestLike, err error) {
	if err := json.Unmarshal(raw, &m); err != nil {
		return m, failf(failFormat, "cannot parse manifest: %w", err)
	}
	if m.SchemaVersion != 2 || (m.Config == nil) == (m.Manifests == nil) {
		return m, failf(failFormat, "not an image manifest of schema 2")
	}
	return m, nil
}

// forName picks a layout's image by digest or tag, or its only one.
func (o *ociImage) forName(all []v1.Descriptor) (v1.Descriptor, error) {
	var names []string
	for _, d := range all {
		name := d.Annotations[refNameAnnotation]
		if o.digest != "" && d.Digest.String() == o.digest || o.tag != "" && (name == o.tag || strings.HasSuffix(name, ":"+o.tag)) {
			return d, nil
		}
		names = append(names, name)
	}
	switch {
	case o.digest != "" || o.tag != "":
		return v1.Descriptor{}, failf(failNotFound, "the layout has no image %q; it has %.300q", o.tag+o.digest, names)
	case len(all) == 1:
		return all[0], nil
	case len(all) == 0:
		return v1.Descriptor{}, failf(failEmpty, "the layout has no image")
	case slices.ContainsFunc(all, func(d v1.Descriptor) bool { return d.Platform == nil }):
		return v1.Descriptor{}, failf(failNotFound, "the layout has several images, name one of %.300q", names)
	}
	return o.forPlatform(all)
}

// forPlatform picks the image for this machine out of an index. An index of
// one unlabelled image is that image; its configuration is checked later.
func (o *ociImage) forPlatform(all []v1.Descriptor) (v1.Descriptor, error) {
	var have []string
	for _, d := range all {
		if p := d.Platform; p != nil {
			if p.OS == "linux" && p.Architecture == o.arch {
				return d, nil
			}
			have = append(have, p.OS+"/"+p.Architecture)
		}
	}
	if len(all) == 1 && all[0].Platform == nil {
		return all[0], nil
	}
	return v1.Descriptor{}, failf(failPlatform, "no image for linux/%s; there is %.300q", o.arch, have)
}

func (o *ociImage) config(d v1.Descriptor) (*v1.ConfigFile, error) {
	raw, err := o.verified(blobBlob, d, maxManifest)
	if err != nil {
		return nil, err
	}
	cf, err := v1.ParseConfigFile(bytes.NewReader(raw))
	if err != nil {
		return nil, failf(failFormat, "cannot parse image configuration: %w", err)
	}
	if cf.OS != "linux" || cf.Architecture != o.arch {
		return nil, failf(failPlatform, "the image is for %.40q, this machine is linux/%s", cf.OS+"/"+cf.Architecture, o.arch)
	}
	return cf, nil
}

func (o *ociImage) layers(u *unpacker, layers []v1.Descriptor, diffs []v1.Hash) error {
	var total, before int64
	for _, d := range layers {
		if d.Size < 0 || d.Size > u.t.lim.MaxBytes-total {
			return failf(failLimit, "layers of more than %d bytes", u.t.lim.MaxBytes)
		}
		if !d.MediaType.IsLayer() {
			return failf(failFormat, "%.80q is no file system layer", string(d.MediaType))
		}
		total += d.Size
	}
	for i, d := range layers {
		sum, err := digestBytes(d.Digest)
		if err != nil {
			return err
		}
		r, err := o.src.open(context.Background(), blobRequest{Kind: blobBlob, Size: d.Size, Digest: sum})
		if err != nil {
			return err
		}
		progress := func(n int64) { o.report(StageUnpack, before+n, total) }
		if err := applyLayer(u, r, d.Size, d.Digest.Hex, diffs[i], progress); err != nil {
			return err
		}
		before += d.Size
	}
	return nil
}

// verified reads a small piece whole and checks its digest and size.
func (o *ociImage) verified(kind uint8, d v1.Descriptor, most int64) ([]byte, error) {
	sum, err := digestBytes(d.Digest)
	if err != nil {
		return nil, err
	}
	if d.Size < 0 || d.Size > most {
		return nil, failf(failLimit, "a document of %d bytes is over %d", d.Size, most)
	}
	raw, err := o.read(blobRequest{Kind: kind, Size: d.Size, Digest: sum})
	if err != nil {
		return nil, err
	}
	if sha256.Sum256(raw) != sum || int64(len(raw)) != d.Size {
		return nil, failf(failDigest, "content is not what %s stands for", d.Digest)
	}
	return raw, nil
}

func (o *ociImage) read(req blobRequest) ([]byte, error) {
	r, err := o.src.open(context.Background(), req)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(r)
}

func hexSum(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

// oneBlob is a source that has one piece.
type oneBlob []byte

func (b oneBlob) open(context.Context, blobRequest) (io.ReadCloser, error) {
	return io.NopCloser(bytes.NewReader(b)), nil
}

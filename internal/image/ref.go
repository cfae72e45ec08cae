package image

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"caisson.dev/caisson/api"
)

// Kind says where an image comes from. The zero value names no image.
type Kind int

const (
	KindNone          Kind = iota
	KindHost               // the machine's own /usr; no store involved
	KindDir                // a directory that is a root file system
	KindOCI                // an OCI image layout directory
	KindDockerArchive      // a file written by "docker save"
	KindRegistry           // an image in a registry
	KindDebian             // a Debian suite with packages
	KindDigest             // an image already in the store, by digest
	KindName               // an image already in the store, by its name
)

// Ref is a parsed image reference. Only the fields of its kind are set.
type Ref struct {
	Kind     Kind
	Path     string   // dir, oci, docker-archive: cleaned, may be relative
	Registry string   // host[:port], lower case
	Repo     string   // path within the registry
	Tag      string   // oci, docker-archive, registry
	Digest   string   // "sha256:" and hex; for KindDigest maybe only a prefix
	Suite    string   // debian
	Packages []string // debian: sorted, each once
	Name     string   // name
}

const (
	maxRef      = 8 << 10 // bytes of a reference, long package lists included
	maxPackages = 500
	minPrefix   = 12 // hex digits that name a stored image
)

var (
	reTag     = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
	reDigest  = regexp.MustCompile(`^sha256:[0-9a-f]{64}$`)
	rePrefix  = regexp.MustCompile(`^sha256:[0-9a-f]{12,64}$`)
	reHost    = regexp.MustCompile(`^(?:[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?|\[[0-9a-f:.]{2,45}\])(?::[0-9]{1,5})?$`)
	reRepo    = regexp.MustCompile(`^[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*$`)
	reSuite   = regexp.MustCompile(`^[a-z][a-z0-9-]{0,63}$`)
	rePackage = regexp.MustCompile(`^[a-z0-9][a-z0-9+.-]{1,127}$`) // Debian policy 5.6.1
	reName    = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]{0,127}$`)
)

// ParseRef parses what a user writes for an image. It asks neither the file
// system nor the network.
func ParseRef(s string) (Ref, error) {
	if s == "" || len(s) > maxRef || strings.ContainsFunc(s, isControl) {
		return Ref{}, refError("cannot read image reference: it is empty, too long or has control characters", "")
	}
	r, err := parseRef(s)
	if err != nil {
		return Ref{}, err
	}
	// A path that ends like ":tag" only after cleaning would mean two things.
	if again, err := parseRef(r.String()); err != nil || again.String() != r.String() || again.Path != r.Path {
		return Ref{}, refError(fmt.Sprintf("cannot read image reference %q: ambiguous path", s), "rename the path or write it without ':' at the end")
	}
	return r, nil
}

func parseRef(s string) (Ref, error) {
	scheme, rest, _ := strings.Cut(s, ":")
	switch {
	case s == "host":
		return Ref{Kind: KindHost}, nil
	case strings.HasPrefix(s, "/"), strings.HasPrefix(s, "./"), strings.HasPrefix(s, "../"), s == ".", s == "..":
		return pathRef(KindDir, s)
	case strings.HasPrefix(s, "docker://"):
		return registryRef(s, strings.TrimPrefix(s, "docker://"))
	case scheme == "dir":
		return pathRef(KindDir, rest)
	case scheme == "oci":
		return pathRef(KindOCI, rest)
	case scheme == "docker-archive":
		return pathRef(KindDockerArchive, rest)
	case scheme == "debian":
		return debianRef(rest)
	case scheme == "sha256":
		if !rePrefix.MatchString(s) {
			return Ref{}, refError(fmt.Sprintf("cannot read image digest %q", s), fmt.Sprintf("write sha256: and at least %d hex digits, as 'caisson image ls' shows them", minPrefix))
		}
		return Ref{Kind: KindDigest, Digest: s}, nil
	case looksLikeRegistry(s):
		return registryRef(s, s)
	case reName.MatchString(s):
		return Ref{Kind: KindName, Name: s}, nil
	}
	return Ref{}, refError(fmt.Sprintf("cannot read image reference %q: no registry host in it", s),
		"name the registry (HOST/REPO:TAG), or use debian:SUITE,PACKAGE, dir:PATH, oci:PATH, docker-archive:FILE or host")
}

// looksLikeRegistry tells HOST/REPO from a bare name: only a first component
// with a dot or a port names a host. There is no default registry.
func looksLikeRegistry(s string) bool {
	host, _, ok := strings.Cut(s, "/")
	return ok && strings.ContainsAny(host, ".:[")
}

func pathRef(k Kind, s string) (Ref, error) {
	r := Ref{Kind: k, Path: s}
	if k != KindDir {
		if path, digest, ok := strings.Cut(s, "@"); ok && reDigest.MatchString(digest) && k == KindOCI {
			r.Path, r.Digest = path, digest
		} else if i := strings.LastIndexByte(s, ':'); i >= 0 && reTag.MatchString(s[i+1:]) {
			r.Path, r.Tag = s[:i], s[i+1:]
		}
	}
	if r.Path == "" {
		return Ref{}, refError("cannot read image reference: the path is missing", "write dir:PATH, oci:PATH or docker-archive:FILE")
	}
	r.Path = filepath.Clean(r.Path)
	return r, nil
}

func registryRef(whole, s string) (Ref, error) {
	bad := func(why string) (Ref, error) {
		return Ref{}, refError(fmt.Sprintf("cannot read image reference %q: %s", whole, why), "write HOST[:PORT]/REPO[:TAG][@sha256:DIGEST]")
	}
	host, rest, ok := strings.Cut(s, "/")
	if !ok || !looksLikeRegistry(s) {
		return bad("no registry host in it")
	}
	r := Ref{Kind: KindRegistry, Registry: strings.ToLower(host)}
	if !reHost.MatchString(r.Registry) {
		return bad("malformed registry host")
	}
	if h, _, _ := strings.Cut(r.Registry, ":"); h == "localhost" || strings.HasSuffix(h, ".localhost") {
		return Ref{}, refError(fmt.Sprintf("cannot read image reference %q: a name may not stand for loopback", whole), "write the address itself: 127.0.0.1:PORT/REPO")
	}
	if rest, r.Digest, ok = strings.Cut(rest, "@"); ok && !reDigest.MatchString(r.Digest) {
		return bad("malformed digest")
	}
	if rest, r.Tag, ok = strings.Cut(rest, ":"); ok && !reTag.MatchString(r.Tag) {
		return bad("malformed tag")
	}
	if r.Repo = rest; !reRepo.MatchString(rest) || len(rest) > 255 {
		return bad("malformed repository")
	}
	if r.Tag == "" && r.Digest == "" {
		r.Tag = "latest"
	}
	return r, nil
}

func debianRef(s string) (Ref, error) {
	parts := strings.Split(s, ",")
	r := Ref{Kind: KindDebian, Suite: parts[0]}
	if !reSuite.MatchString(r.Suite) {
		return Ref{}, refError(fmt.Sprintf("cannot read Debian suite %q", r.Suite), "write debian:SUITE[,PACKAGE…], for example debian:bookworm,python3")
	}
	for _, p := range parts[1:] {
		if !rePackage.MatchString(p) {
			return Ref{}, refError(fmt.Sprintf("cannot read Debian package name %q", p), "names have lower-case letters, digits, '+', '-' and '.', and no version")
		}
		r.Packages = append(r.Packages, p)
	}
	slices.Sort(r.Packages)
	r.Packages = slices.Compact(r.Packages)
	if len(r.Packages) > maxPackages {
		return Ref{}, refError(fmt.Sprintf("cannot use %d Debian packages: the limit is %d", len(r.Packages), maxPackages), "")
	}
	return r, nil
}

// String returns the normal form: equal images that are spelled differently
// have one String, and it parses to the same Ref.
func (r Ref) String() string {
	switch r.Kind {
	case KindHost:
		return "host"
	case KindDir:
		return "dir:" + r.Path
	case KindOCI:
		return "oci:" + r.Path + suffix(":", r.Tag) + suffix("@", r.Digest)
	case KindDockerArchive:
		return "docker-archive:" + r.Path + suffix(":", r.Tag)
	case KindRegistry:
		return "docker://" + r.Registry + "/" + r.Repo + suffix(":", r.Tag) + suffix("@", r.Digest)
	case KindDebian:
		return "debian:" + strings.Join(append([]string{r.Suite}, r.Packages...), ",")
	case KindDigest:
		return r.Digest
	case KindName:
		return r.Name
	}
	return ""
}

func suffix(sep, s string) string {
	if s == "" {
		return ""
	}
	return sep + s
}

func isControl(c rune) bool { return c < ' ' || c == 0x7f }

func refError(message, hint string) error {
	return &api.Error{Code: "image_reference", Message: message, Hint: hint}
}

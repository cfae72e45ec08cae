package image

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"

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

// pattern is a regular expression that is compiled when first used: every
// sandbox child pays for what package variables do. Lengths are checked apart,
// because counted repetitions make large programs.
type pattern struct {
	max  int // bytes
	expr string

	once sync.Once
	re   *regexp.Regexp
}

// MatchString tells whether the whole of s fits.
func (p *pattern) MatchString(s string) bool {
	p.once.Do(func() { p.re = regexp.MustCompile("^(?:" + p.expr + ")$") })
	return len(s) <= p.max && p.re.MatchString(s)
}

const repoPart = `[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*`

var (
	reTag     = &pattern{max: 128, expr: `[A-Za-z0-9_][A-Za-z0-9._-]*`}
	reDigest  = &pattern{max: 71, expr: `sha256:[0-9a-f]{64}`}
	rePrefix  = &pattern{max: 71, expr: `sha256:[0-9a-f]{12}[0-9a-f]*`}
	reHost    = &pattern{max: 261, expr: `(?:[a-z0-9]|[a-z0-9][a-z0-9.-]*[a-z0-9]|\[[0-9a-f:.]+\])(?::[0-9]+)?`}
	reRepo    = &pattern{max: 255, expr: repoPart + `(?:/` + repoPart + `)*`}
	reSuite   = &pattern{max: 64, expr: `[a-z][a-z0-9-]*`}
	rePackage = &pattern{max: 128, expr: `[a-z0-9][a-z0-9+.-]+`} // Debian policy 5.6.1
	reName    = &pattern{max: 128, expr: `[a-z0-9][a-z0-9._-]*`}
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
	if r.Repo = rest; !reRepo.MatchString(rest) {
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

// Scheme is the first word of the normal form: "dir", "oci", "docker-archive",
// "docker" for a registry, "debian", "sha256", "host", or "" for a name.
func (r Ref) Scheme() string {
	return [...]string{"", "host", "dir", "oci", "docker-archive", "docker", "debian", "sha256", ""}[r.Kind]
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

package image

import (
	"errors"
	"strings"
	"testing"

	"caisson.dev/caisson/api"
	"github.com/google/go-cmp/cmp"
)

var sum = "sha256:" + strings.Repeat("0a", 32)

func TestParseRef(t *testing.T) {
	for _, c := range []struct {
		in   string
		want Ref
	}{
		{"host", Ref{Kind: KindHost}},
		{"/srv/root/", Ref{Kind: KindDir, Path: "/srv/root"}},
		{"./a/../b", Ref{Kind: KindDir, Path: "b"}},
		{"..", Ref{Kind: KindDir, Path: ".."}},
		{"dir:rootfs", Ref{Kind: KindDir, Path: "rootfs"}},
		{"dir:a:b", Ref{Kind: KindDir, Path: "a:b"}},
		{"oci:/x", Ref{Kind: KindOCI, Path: "/x"}},
		{"oci:/x:v1", Ref{Kind: KindOCI, Path: "/x", Tag: "v1"}},
		{"oci:/x@" + sum, Ref{Kind: KindOCI, Path: "/x", Digest: sum}},
		{"docker-archive:a.tar:v", Ref{Kind: KindDockerArchive, Path: "a.tar", Tag: "v"}},
		{"r.example/a/b", Ref{Kind: KindRegistry, Registry: "r.example", Repo: "a/b", Tag: "latest"}},
		{"R.example:5000/a:v@" + sum, Ref{Kind: KindRegistry, Registry: "r.example:5000", Repo: "a", Tag: "v", Digest: sum}},
		{"docker://[::1]:5000/a@" + sum, Ref{Kind: KindRegistry, Registry: "[::1]:5000", Repo: "a", Digest: sum}},
		{"debian:bookworm", Ref{Kind: KindDebian, Suite: "bookworm"}},
		{"debian:sid,g++,curl,curl", Ref{Kind: KindDebian, Suite: "sid", Packages: []string{"curl", "g++"}}},
		{sum[:19], Ref{Kind: KindDigest, Digest: sum[:19]}},
		{"pandas", Ref{Kind: KindName, Name: "pandas"}},
	} {
		got, err := ParseRef(c.in)
		if err != nil {
			t.Errorf("ParseRef(%q): %v", c.in, err)
			continue
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("ParseRef(%q): %s", c.in, d)
		}
	}
}

// Row 86: what reaches mmdebstrap's command line cannot be an option, a path
// or a shell word.
func TestParseRefRefuses(t *testing.T) {
	for _, in := range []string{
		"", "python:3.12", "library/python", "-x", "--help", "host:", "HOST",
		"dir:", "oci:", "oci::tag", "docker-archive:",
		"debian:", "debian:-x", "debian:bookworm,", "debian:bookworm,-o", "debian:bookworm,./x.deb", "debian:bookworm,/x.deb",
		"debian:bookworm,a", "debian:bookworm,curl=1", "debian:bookworm,curl curl", "debian:../x", "debian:bookworm,?x", "debian:bookworm,~n.",
		"localhost/x", "localhost:5000/x", "r.example/", "r.example/A", "r.example//a", "r.example/../a", "r.example/a:", "r.example/a@sha256:00",
		"r.example/a@sha512:" + sum[7:], "user@r.example/a", "r.example:x/a", "docker://a", "docker://python/a",
		"sha256:0011", "sha256:" + strings.Repeat("zz", 32), "a\x00b", "a\nb", strings.Repeat("a", maxRef+1),
		"oci:a:b/", "http://r.example/a",
	} {
		r, err := ParseRef(in)
		var e *api.Error
		if !errors.As(err, &e) {
			t.Errorf("ParseRef(%q) = %+v, %v; want a refusal with a code", in, r, err)
		}
	}
}

func FuzzParseRef(f *testing.F) {
	for _, s := range []string{"host", "./a", "oci:a:b@" + sum, "r.example:5/a:v@" + sum, "debian:sid,a+,b.", sum, "n", "oci:a:b/."} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		r, err := ParseRef(s)
		if err != nil {
			if r.Kind != KindNone {
				t.Fatalf("an error came with a reference: %+v", r)
			}
			return
		}
		again, err := ParseRef(r.String())
		if err != nil {
			t.Fatalf("ParseRef(%q) gives %q, which does not parse: %v", s, r, err)
		}
		if d := cmp.Diff(r, again); d != "" {
			t.Fatalf("normal form of %q is not stable: %s", s, d)
		}
		for _, p := range append([]string{r.Suite}, r.Packages...) {
			if strings.HasPrefix(p, "-") || strings.ContainsAny(p, "/ ;=$") {
				t.Fatalf("%q reaches a command line", p)
			}
		}
	})
}

package image

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"caisson.dev/caisson/internal/reexec"
	"caisson.dev/caisson/internal/testenv"
)

func TestMain(m *testing.M) {
	reexec.Dispatch()
	if slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "-test.fuzz") && a != "-test.fuzzcachedir" }) {
		os.Exit(m.Run()) // workers of one run would wait for each other's lock
	}
	testenv.Main(m)
}

// openStore makes a store for one test.
func openStore(t testing.TB) *Store {
	t.Helper()
	testenv.Need(t, "norace", "nocgo", "seccomp", "userns")
	s, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func mustParse(t testing.TB, s string) Ref {
	t.Helper()
	r, err := ParseRef(s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func resolve(t testing.TB, s *Store, ref string, o Options) *Image {
	t.Helper()
	img, err := s.Resolve(context.Background(), mustParse(t, ref), o)
	if err != nil {
		t.Fatalf("%s: %v", ref, err)
	}
	t.Cleanup(func() { img.Close() })
	return img
}

func contents(t testing.TB, img *Image) map[string]string {
	t.Helper()
	f, err := os.Open(img.Path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return beyond(listing(t, f))
}

// rootfs makes a small directory to use as an image.
func rootfs(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	for name, body := range map[string]string{"bin/sh": "#!", "etc/passwd": "root:x:0:0::/:/bin/sh\n", "secret": "s"} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestResolveDir(t *testing.T) {
	s, dir := openStore(t), rootfs(t)
	img := resolve(t, s, "dir:"+dir, Options{})
	t.Log(contents(t, img), img)
}

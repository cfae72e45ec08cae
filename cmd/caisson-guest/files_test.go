package main

import (
	"archive/tar"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestAcceptsGzip(t *testing.T) {
	for h, want := range map[string]bool{
		"":                       false,
		"gzip":                   true,
		"gzip, deflate":          true,
		"deflate, gzip;q=0.5":    true,
		"gzip;q=0":               false,
		"gzip; q=0.0, identity":  false,
		"gzip;q=x":               false,
		"*":                      false, // identity is always allowed
		"x-gzip, identity;q=1.0": false,
	} {
		if got := acceptsGzip(h); got != want {
			t.Errorf("acceptsGzip(%q) = %v", h, got)
		}
	}
}

func TestPartNameKeepsDirectories(t *testing.T) {
	for h, want := range map[string][2]string{
		`form-data; name="file"; filename="/a/b c.txt"`:       {"file", "/a/b c.txt"},
		`form-data; name="file"; filename*=UTF-8''%2fx%c3%a9`: {"file", "/xé"},
		`form-data; name="file"`:                              {"file", ""},
		`form-data; name="other"; filename="x"`:               {"other", "x"},
		`;;;`:                                                 {"", ""},
		``:                                                    {"", ""},
	} {
		name, file := partName(h)
		if name != want[0] || file != want[1] {
			t.Errorf("partName(%q) = %q, %q", h, name, file)
		}
	}
}

func TestParseMetadata(t *testing.T) {
	h := http.Header{}
	h.Set("X-Metadata-Color", "deep blue")
	h.Set("X-Metadata-Ab-Cd", "1")
	h.Set("X-Other", "2")
	got, err := parseMetadata(h)
	if diff := cmp.Diff(map[string]string{"color": "deep blue", "ab-cd": "1"}, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
	for name, value := range map[string]string{
		"X-Metadata-": "x",
		"X-Metadata-" + strings.Repeat("k", maxMetaKey+1): "x",
		"X-Metadata-A": "caf\xe9",
		"X-Metadata-B": strings.Repeat("v", maxMetaTotal),
		"X-Metadata-C": "a\tb",
	} {
		if got, err := parseMetadata(http.Header{name: {value}}); err == nil {
			t.Errorf("%s: accepted as %v", clip(name), got)
		}
	}
}

func FuzzParseMetadata(f *testing.F) {
	f.Add("X-Metadata-A", "b")
	f.Fuzz(func(t *testing.T, name, value string) {
		m, err := parseMetadata(http.Header{name: {value}})
		for k, v := range m {
			if err != nil || !printable(k) || !printable(v) || k == "" || len(k) > maxMetaKey {
				t.Errorf("%q: %q becomes %q: %q, %v", name, value, k, v, err)
			}
		}
	})
}

func FuzzPartName(f *testing.F) {
	f.Add(`form-data; name="file"; filename="/a"`)
	f.Fuzz(func(t *testing.T, h string) {
		if name, file := partName(h); len(name) > 3*len(h) || len(file) > 3*len(h) {
			t.Errorf("partName(%q) = %q, %q: made up", h, name, file)
		}
	})
}

func TestI6_ArchiveEntriesAreNeverFollowed(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(t.TempDir(), "secret")
	os.WriteFile(secret, []byte("secret"), 0o600)
	os.Symlink(secret, filepath.Join(dir, "link"))
	os.WriteFile(filepath.Join(dir, "file"), []byte("abc"), 0o4755)
	os.Mkdir(filepath.Join(dir, "sub"), 0o755)
	unix.Mkfifo(filepath.Join(dir, "fifo"), 0o644)
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	for name, want := range map[string]byte{"link": tar.TypeSymlink, "file": tar.TypeReg, "sub": tar.TypeDir, "fifo": 0} {
		f, h, err := openEntry(fd, name)
		if err != nil {
			t.Fatal(err)
		}
		if f != nil {
			f.Close()
		}
		if want == 0 && h == nil {
			continue
		}
		if h == nil || h.Typeflag != want || h.Mode&^0o777 != 0 || (want == tar.TypeSymlink) != (f == nil) {
			t.Errorf("%s: %+v", name, h)
		}
	}
}

func TestHasLinks(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	os.Mkdir(filepath.Join(dir, "d"), 0o755)
	os.Symlink("d", filepath.Join(dir, "l"))
	for name, want := range map[string]bool{"d": false, "d/new/x": false, "l": true, "l/new": true, "new": false} {
		if got := hasLinks(filepath.Join(dir, name)); got != want {
			t.Errorf("hasLinks(%q) = %v", name, got)
		}
	}
}

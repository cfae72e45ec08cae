package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/erofs/go-erofs"
	"github.com/google/go-cmp/cmp"
)

// entryOf is one line of a tar stream in a test.
type entryOf struct {
	name string
	kind byte
	body string // contents, or the target of a link
	mode int64
	uid  int
	size int64 // a body of zeros when > 0
}

func file(name, body string) entryOf      { return entryOf{name: name, kind: tar.TypeReg, body: body} }
func dir(name string) entryOf             { return entryOf{name: name, kind: tar.TypeDir, mode: 0o755} }
func link(name, to string) entryOf        { return entryOf{name: name, kind: tar.TypeSymlink, body: to} }
func hard(name, to string) entryOf        { return entryOf{name: name, kind: tar.TypeLink, body: to} }
func special(name string, k byte) entryOf { return entryOf{name: name, kind: k} }

// layer encodes entries as they stand, checks of the tar writer aside.
func layer(t testing.TB, entries ...entryOf) []byte {
	t.Helper()
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Typeflag: e.kind, Mode: e.mode, Uid: e.uid, Format: tar.FormatPAX}
		if e.mode == 0 {
			h.Mode = 0o644
		}
		switch e.kind {
		case tar.TypeReg:
			h.Size = max(int64(len(e.body)), e.size)
		case tar.TypeSymlink, tar.TypeLink:
			h.Linkname = e.body
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatalf("%q: %v", e.name, err)
		}
		if e.size > 0 {
			io.CopyN(w, zeroReader{}, e.size)
		} else if e.kind == tar.TypeReg {
			io.WriteString(w, e.body)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

type zeroReader struct{}

func (zeroReader) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// packed unpacks layers in this process and returns the image file.
func packed(t testing.TB, lim Limits, layers ...[]byte) (*os.File, *unpacker, error) {
	t.Helper()
	dir := t.TempDir()
	spool, err := os.Create(filepath.Join(dir, "spool"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { spool.Close() })
	out, err := os.Create(filepath.Join(dir, "image"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	u := newUnpacker(lim.withDefaults(), spool)
	for _, l := range layers {
		if err := u.apply(bytes.NewReader(l), true); err != nil {
			return nil, u, err
		}
	}
	_, err = u.write(out, func(int64, int64) {})
	return out, u, err
}

// listing reads an image with go-erofs, an independent reader, as "path mode
// contents-or-target" lines.
func listing(t testing.TB, img *os.File) map[string]string {
	t.Helper()
	fsys, err := erofs.Open(img)
	if err != nil {
		t.Fatalf("cannot open the image: %v", err)
	}
	got := map[string]string{}
	err = fs.WalkDir(fsys, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
		info, err := d.Info()
		if err != nil {
			return fmt.Errorf("%q: %w", path, err)
		}
		content := ""
		switch {
		case info.Mode().IsRegular():
			b, err := fs.ReadFile(fsys, path)
			if err != nil {
				return fmt.Errorf("%q: %w", path, err)
			}
			content = " " + string(b)
		case info.Mode()&fs.ModeSymlink != 0:
			if content, err = fs.ReadLink(fsys, path); err != nil {
				return fmt.Errorf("%q: %w", path, err)
			}
			content = " -> " + content
		}
		// FileInfo.Mode leaves the setuid and sticky bits out.
		got["/"+path] = info.Sys().(*erofs.Stat).Mode.String() + content
		return nil
	})
	if err != nil {
		t.Fatalf("cannot read the image: %v", err)
	}
	return got
}

// skeleton is what every image has; tests name only what is theirs.
var skeleton = map[string]string{
	"/.": "drwxr-xr-x", "/dev": "drwxr-xr-x", "/proc": "dr-xr-xr-x", "/sys": "dr-xr-xr-x", "/tmp": "dtrwxrwxrwx",
	"/run": "drwxr-xr-x", "/etc": "drwxr-xr-x", "/mnt": "drwxr-xr-x", "/root": "drwx------",
	"/var": "drwxr-xr-x", "/var/tmp": "dtrwxrwxrwx",
}

// beyond returns the lines of got that are not the skeleton's.
func beyond(got map[string]string) map[string]string {
	rest := map[string]string{}
	for path, line := range got {
		if skeleton[path] != line {
			rest[path] = line
		}
	}
	return rest
}

func TestErofsHoldsWhatWentIn(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 1000)
	long := strings.Repeat("t/", 2030)
	entries := []entryOf{
		file("bin/sh", "#!"), file("empty", ""), file("big", big), file("block", strings.Repeat("b", blockSize)),
		link("short", "bin/sh"), link("long", long), hard("same", "big"),
		{name: "suid", kind: tar.TypeReg, body: "s", mode: 0o4755, uid: 70000},
	}
	want := map[string]string{
		"/bin": "drwxr-xr-x", "/bin/sh": "-rw-r--r-- #!", "/empty": "-rw-r--r-- ", "/big": "-rw-r--r-- " + big,
		"/block": "-rw-r--r-- " + strings.Repeat("b", blockSize),
		"/short": "Lrw-r--r-- -> bin/sh", "/long": "Lrw-r--r-- -> " + long, "/same": "-rw-r--r-- " + big,
		"/suid": "urwxr-xr-x s", "/many": "drwxr-xr-x",
	}
	for i := range 3000 { // several blocks of records
		name := fmt.Sprintf("many/%04d-%s", i, strings.Repeat("n", i%200))
		entries = append(entries, file(name, "x"))
		want["/"+name] = "-rw-r--r-- x"
	}
	for _, odd := range []string{"!", "-", "...", ".a", "\xff\xfe", "a b", "é"} {
		entries = append(entries, file("many/"+odd, "x"))
		want["/many/"+odd] = "-rw-r--r-- x"
	}
	img, _, err := packed(t, Limits{}, layer(t, entries...))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, beyond(listing(t, img))); d != "" {
		t.Error(d)
	}
	fsck(t, img.Name())
	st, _ := img.Stat()
	if err := checkSuper(img, st.Size()); err != nil {
		t.Error(err)
	}
}

// fsck asks erofs-utils, where they are installed, for a second opinion.
func fsck(t testing.TB, path string) {
	t.Helper()
	tool, err := exec.LookPath("fsck.erofs")
	if err != nil {
		return
	}
	if out, err := exec.Command(tool, "--extract", path).CombinedOutput(); err != nil {
		t.Errorf("fsck.erofs: %v\n%s", err, out)
	}
}

func TestErofsIsDeterministic(t *testing.T) {
	a := layer(t, file("x/a", "1"), file("x/b", "2"), link("l", "x"))
	b := layer(t, link("l", "x"), file("x/b", "2"), file("gone", "secret"), file("x/a", "1"))
	one, _, err1 := packed(t, Limits{}, a)
	two, _, err2 := packed(t, Limits{}, b, layer(t, file(".wh.gone", "")))
	if err1 != nil || err2 != nil {
		t.Fatal(err1, err2)
	}
	x, _ := os.ReadFile(one.Name())
	y, _ := os.ReadFile(two.Name())
	if !bytes.Equal(x, y) {
		t.Error("equal contents in another order and other layers gave other bytes")
	}
	if bytes.Contains(y, []byte("secret")) {
		t.Error("a removed file is still in the image")
	}
}

func TestCheckSuperFindsDamage(t *testing.T) {
	img, _, err := packed(t, Limits{}, layer(t, file("a", "b")))
	if err != nil {
		t.Fatal(err)
	}
	st, _ := img.Stat()
	if err := checkSuper(img, st.Size()+blockSize); err == nil {
		t.Error("another size passed")
	}
	img.WriteAt([]byte{1}, superOffset+80)
	if err := checkSuper(img, st.Size()); err == nil {
		t.Error("a flipped byte in the superblock passed")
	}
}

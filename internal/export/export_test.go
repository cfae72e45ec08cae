package export

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"caisson.dev/caisson/internal/guest/attach"
	"caisson.dev/caisson/internal/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }

// wire encodes entries as the attach child would, or as one that was taken
// over by its guest might.
func wire(entries ...item) []byte {
	var b bytes.Buffer
	for _, e := range entries {
		head := make([]byte, 14)
		head[0] = byte(e.kind)
		if e.exec {
			head[1] = 1
		}
		size := int64(len(e.body))
		if e.kind == attach.EntryEnd {
			size = 1
		}
		binary.LittleEndian.PutUint64(head[4:], uint64(size))
		binary.LittleEndian.PutUint16(head[12:], uint16(len(e.name)))
		b.Write(head)
		b.WriteString(e.name)
		b.WriteString(e.body)
	}
	return b.Bytes()
}

// write opens dir as the daemon does and writes there.
func write(t *testing.T, dir, name string, r io.Reader, most int64) Result {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	return Write(root, name, r, most)
}

type item struct {
	kind attach.EntryType
	name string
	body string
	exec bool
}

var (
	end  = item{kind: attach.EntryEnd}
	root = item{kind: attach.EntryDir}
)

func TestI6_NamesCannotLeaveTheArtifact(t *testing.T) {
	for _, name := range []string{"..", "../x", "a/../../x", "/etc/passwd", "/", "a\x00b", "a\nb", "\x1b[2J", "./../x", strings.Repeat("../", 40) + "tmp/x"} {
		outside := t.TempDir()
		dir := filepath.Join(outside, "dir")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		in := wire(root, item{kind: attach.EntryFile, name: name, body: "x"}, item{kind: attach.EntryDir, name: name}, end)
		r := write(t, dir, "out", bytes.NewReader(in), 1000)
		if r.Err == nil {
			t.Errorf("%q: no error", name)
		}
		for d, want := range map[string]int{outside: 1, dir: 0} {
			if names, err := os.ReadDir(d); err != nil || len(names) != want {
				t.Errorf("%q: %s holds %v, %v", name, d, names, err)
			}
		}
	}
}

func TestI6_DestinationsThatAreLinksOrDirectories(t *testing.T) {
	for _, tc := range []struct {
		name    string
		prepare func(dir, elsewhere string) error
		file    bool // the artifact is a file; else a tree
		ok      bool
	}{
		{"file over a link to a file", func(d, e string) error { return os.Symlink(filepath.Join(e, "victim"), filepath.Join(d, "out")) }, true, true},
		{"file over a dangling link", func(d, e string) error { return os.Symlink(filepath.Join(e, "new"), filepath.Join(d, "out")) }, true, true},
		{"file over a file", func(d, e string) error { return os.WriteFile(filepath.Join(d, "out"), []byte("old"), 0o600) }, true, true},
		{"file over a directory", func(d, e string) error { return os.Mkdir(filepath.Join(d, "out"), 0o755) }, true, false},
		{"tree over a link to a directory", func(d, e string) error { return os.Symlink(e, filepath.Join(d, "out")) }, false, false},
		{"tree over a directory", func(d, e string) error { return os.Mkdir(filepath.Join(d, "out"), 0o755) }, false, false},
	} {
		dir, elsewhere := t.TempDir(), t.TempDir()
		if err := os.WriteFile(filepath.Join(elsewhere, "victim"), []byte("untouched"), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := tc.prepare(dir, elsewhere); err != nil {
			t.Fatal(err)
		}
		in := wire(root, item{kind: attach.EntryFile, name: "victim", body: "new"}, end)
		if tc.file {
			in = wire(item{kind: attach.EntryFile, body: "new"}, end)
		}
		r := write(t, dir, "out", bytes.NewReader(in), 1000)
		if (r.Err == nil) != tc.ok {
			t.Errorf("%s: %v, want ok=%v", tc.name, r.Err, tc.ok)
		}
		names, err := os.ReadDir(elsewhere)
		b, rerr := os.ReadFile(filepath.Join(elsewhere, "victim"))
		if err != nil || rerr != nil || len(names) != 1 || string(b) != "untouched" {
			t.Errorf("%s: elsewhere holds %v, victim %q", tc.name, names, b)
		}
		if tc.ok {
			if fi, err := os.Lstat(filepath.Join(dir, "out")); err != nil || !fi.Mode().IsRegular() {
				t.Errorf("%s: out is %v, %v", tc.name, fi, err)
			}
		}
	}
}

func TestBrokenStreamsLeaveNothing(t *testing.T) {
	file := item{kind: attach.EntryFile, name: "f", body: "data"}
	whole := wire(root, file, end)
	for cut := range len(whole) {
		dir := t.TempDir()
		if r := write(t, dir, "out", bytes.NewReader(whole[:cut]), 1000); r.Err == nil {
			t.Errorf("cut at %d: no error", cut)
		}
		if names, err := os.ReadDir(dir); err != nil || len(names) != 0 {
			t.Errorf("cut at %d: left %v, %v", cut, names, err)
		}
	}
	dir := t.TempDir()
	broken := wire(root, file)
	broken = append(broken, make([]byte, 12)...) // an end entry that says "not whole"
	if r := write(t, dir, "out", bytes.NewReader(broken), 1000); r.Err == nil {
		t.Error("an artifact that is not whole was taken")
	}
}

func TestI5_SizeLimitIsOnTheSum(t *testing.T) {
	dir := t.TempDir()
	in := wire(root, item{kind: attach.EntryFile, name: "a", body: strings.Repeat("x", 60)}, item{kind: attach.EntryFile, name: "b", body: strings.Repeat("x", 60)}, end)
	if r := write(t, dir, "out", bytes.NewReader(in), 100); r.Err == nil || !strings.Contains(r.Err.Error(), "limit on artifacts") {
		t.Errorf("error %v", r.Err)
	}
	if r := write(t, dir, "out", bytes.NewReader(in), 120); r.Err != nil || r.Files != 2 || r.Bytes != 120 {
		t.Errorf("within the limit: %+v", r)
	}
}

// A refused artifact is read to its end, so that the next one is understood.
func TestRefusedArtifactDoesNotSpoilTheNext(t *testing.T) {
	dir := t.TempDir()
	in := bytes.NewReader(append(
		wire(root, item{kind: attach.EntryFile, name: "../evil", body: "12345"}, end),
		wire(item{kind: attach.EntryFile, body: "good", exec: true}, end)...))
	one := &oneByOne{in}
	if r := write(t, dir, "a", one, 1000); r.Err == nil {
		t.Error("the first was taken")
	}
	if r := write(t, dir, "b", one, 1000); r.Err != nil {
		t.Errorf("the second was not: %v", r.Err)
	}
	if fi, err := os.Stat(filepath.Join(dir, "b")); err != nil || fi.Mode().Perm() != 0o755 {
		t.Errorf("b: %v, %v", fi, err)
	}
}

// oneByOne hands out a byte at a time, so that no reader takes more than it
// needs.
type oneByOne struct{ r io.Reader }

func (o *oneByOne) Read(p []byte) (int, error) { return o.r.Read(p[:min(len(p), 1)]) }

// The directory is the one that was opened, wherever its name leads by now.
func TestI6_DestinationIsTheOpenedDirectory(t *testing.T) {
	base, elsewhere := t.TempDir(), t.TempDir()
	dir := filepath.Join(base, "out")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	if err := os.Rename(dir, filepath.Join(base, "moved")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, dir); err != nil {
		t.Fatal(err)
	}
	if r := Write(root, "f", bytes.NewReader(wire(item{kind: attach.EntryFile, body: "x"}, end)), 10); r.Err != nil {
		t.Fatal(r.Err)
	}
	if names, err := os.ReadDir(elsewhere); err != nil || len(names) != 0 {
		t.Errorf("the link was followed: %v, %v", names, err)
	}
	if _, err := os.Stat(filepath.Join(base, "moved", "f")); err != nil {
		t.Error(err)
	}
}

func TestNothingIsNoArtifact(t *testing.T) {
	if r := write(t, t.TempDir(), "out", bytes.NewReader(wire(end)), 10); r.Err == nil {
		t.Error("an artifact without a file or a directory was taken for one")
	}
}

func FuzzWrite(f *testing.F) {
	f.Add(wire(root, item{kind: attach.EntryFile, name: "f", body: "data"}, end))
	f.Add(wire(item{kind: attach.EntryFile, name: "../f", body: "data"}, end))
	f.Fuzz(func(t *testing.T, b []byte) {
		parent := t.TempDir()
		dir := filepath.Join(parent, "dir")
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		r := write(t, dir, "out", bytes.NewReader(b), 1<<16)
		names, err := os.ReadDir(parent)
		if err != nil || len(names) != 1 {
			t.Errorf("the directory beside ours holds %v, %v", names, err)
		}
		inside, err := os.ReadDir(dir)
		if err != nil || len(inside) > 1 || len(inside) == 1 && inside[0].Name() != "out" {
			t.Errorf("the directory holds %v, %v", inside, err)
		}
		if r.Err != nil && len(inside) != 0 && !errors.Is(r.Err, os.ErrExist) && inside[0].IsDir() {
			t.Errorf("error %v, yet a tree is there", r.Err)
		}
	})
}

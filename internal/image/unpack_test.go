package image

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/erofs/go-erofs"
	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// hostile is the corpus of images that try to reach out of themselves or to
// mislead what is mounted on them (rows 33, 34, 36, 39). An image that is
// accepted shows all that is in it beyond the skeleton.
var hostile = []struct {
	name   string
	layers [][]entryOf
	want   map[string]string // nil: refused
	code   failure
}{
	{name: "dot dot stays inside", layers: [][]entryOf{{file("../../../../etc/passwd", "x"), file("a/../../b", "y")}},
		want: map[string]string{"/etc/passwd": "-rw-r--r-- x", "/b": "-rw-r--r-- y"}},
	{name: "absolute names stay inside", layers: [][]entryOf{{file("/etc/passwd", "x"), file("//x//y", "z")}},
		want: map[string]string{"/etc/passwd": "-rw-r--r-- x", "/x": "drwxr-xr-x", "/x/y": "-rw-r--r-- z"}},
	{name: "symlink to host directory as parent", layers: [][]entryOf{{link("out", "/home/host"), file("out/x", "1")}},
		want: map[string]string{"/out": "Lrw-r--r-- -> /home/host", "/home": "drwxr-xr-x", "/home/host": "drwxr-xr-x", "/home/host/x": "-rw-r--r-- 1"}},
	{name: "symlink with dot dot as parent", layers: [][]entryOf{{dir("a/b"), link("a/b/out", "../../../../.."), file("a/b/out/x", "1")}},
		want: map[string]string{"/a": "drwxr-xr-x", "/a/b": "drwxr-xr-x", "/a/b/out": "Lrw-r--r-- -> ../../../../..", "/x": "-rw-r--r-- 1"}},
	{name: "symlink of a lower layer as parent", layers: [][]entryOf{{link("d", "/e"), file("f", "")}, {file("d/x", "1")}},
		want: map[string]string{"/d": "Lrw-r--r-- -> /e", "/e": "drwxr-xr-x", "/e/x": "-rw-r--r-- 1", "/f": "-rw-r--r-- "}},
	{name: "symlink loop as parent", layers: [][]entryOf{{link("a", "b"), link("b", "a"), file("a/x", "1")}}, code: failArchive},
	{name: "symlink to itself and below", layers: [][]entryOf{{link("a", "a/a"), file("a/x", "1")}}, code: failArchive},
	{name: "symlink chain too long", layers: [][]entryOf{chain(maxLinks + 2)}, code: failArchive},
	{name: "dangling and absolute symlinks are kept", layers: [][]entryOf{{link("a", "/nowhere"), link("b", "../../..")}},
		want: map[string]string{"/a": "Lrw-r--r-- -> /nowhere", "/b": "Lrw-r--r-- -> ../../.."}},
	{name: "file as parent", layers: [][]entryOf{{file("a", ""), file("a/b", "1")}}, code: failArchive},

	{name: "hard link to the host", layers: [][]entryOf{{file("a", ""), hard("x", "/etc/shadow")}}, code: failArchive},
	{name: "hard link with dot dot", layers: [][]entryOf{{file("a", ""), hard("x", "../../etc/shadow")}}, code: failArchive},
	{name: "hard link through a symlink", layers: [][]entryOf{{link("l", "/etc"), hard("x", "l/shadow")}}, code: failArchive},
	{name: "hard link to a directory", layers: [][]entryOf{{dir("d"), hard("x", "d")}}, code: failArchive},
	{name: "hard link to the root", layers: [][]entryOf{{file("a", ""), hard("x", "/")}}, code: failArchive},
	{name: "hard link to a symlink", layers: [][]entryOf{{link("l", "/t"), hard("x", "l")}},
		want: map[string]string{"/l": "Lrw-r--r-- -> /t", "/x": "Lrw-r--r-- -> /t"}},
	{name: "hard link into a lower layer", layers: [][]entryOf{{file("a", "1")}, {hard("b", "a"), file(".wh.a", "")}},
		want: map[string]string{"/b": "-rw-r--r-- 1"}},

	{name: "dev as a symlink", layers: [][]entryOf{{link("dev", "/host"), file("a", "")}}, want: map[string]string{"/a": "-rw-r--r-- "}},
	{name: "mount points as symlinks and files", layers: [][]entryOf{{
		link("proc", "/x"), link("sys", ".."), link("tmp", "/"), link("run", "run"), link("etc", "/proc/1/root/etc"), file("dev", ""), file("a", ""),
	}}, want: map[string]string{"/a": "-rw-r--r-- "}},
	{name: "names below dev as symlinks are hidden by the mount", layers: [][]entryOf{{link("dev/null", "/etc/passwd"), link("dev/pts", "/")}},
		want: map[string]string{"/dev/null": "Lrw-r--r-- -> /etc/passwd", "/dev/pts": "Lrw-r--r-- -> /"}},
	{name: "devices, FIFOs and sockets are left out", layers: [][]entryOf{{
		special("sda", tar.TypeBlock), special("mem", tar.TypeChar), special("fifo", tar.TypeFifo), {name: "sock", kind: 's'}, file("a", ""),
	}}, want: map[string]string{"/a": "-rw-r--r-- "}},
	{name: "setuid is kept", layers: [][]entryOf{{{name: "su", kind: tar.TypeReg, mode: 0o6755}}}, want: map[string]string{"/su": "ugrwxr-xr-x "}},

	{name: "whiteout of a file", layers: [][]entryOf{{file("a", ""), file("b", "")}, {file(".wh.a", "")}}, want: map[string]string{"/b": "-rw-r--r-- "}},
	{name: "whiteout of a tree", layers: [][]entryOf{{file("d/e/f", ""), file("b", "")}, {file(".wh.d", "")}}, want: map[string]string{"/b": "-rw-r--r-- "}},
	{name: "whiteout spares its own layer", layers: [][]entryOf{{file("d/old", "")}, {file("d/new", ""), file(".wh.d", "")}},
		want: map[string]string{"/d": "drwxr-xr-x", "/d/new": "-rw-r--r-- "}},
	{name: "opaque directory", layers: [][]entryOf{{file("d/old", ""), file("d/sub/old", "")}, {file("d/sub/new", ""), file("d/.wh..wh..opq", "")}},
		want: map[string]string{"/d": "drwxr-xr-x", "/d/sub": "drwxr-xr-x", "/d/sub/new": "-rw-r--r-- "}},
	{name: "whiteout through a symlink", layers: [][]entryOf{{link("l", "/d"), file("d/a", ""), file("b", "")}, {file("l/.wh.a", "")}},
		want: map[string]string{"/l": "Lrw-r--r-- -> /d", "/d": "drwxr-xr-x", "/b": "-rw-r--r-- "}},
	{name: "whiteout of nothing", layers: [][]entryOf{{file("b", "")}, {file("x/y/.wh.z", "")}}, want: map[string]string{"/b": "-rw-r--r-- "}},
	{name: "whiteout of dot dot", layers: [][]entryOf{{file("b", "")}, {file("d/.wh...", "")}}, code: failArchive},
	{name: "whiteout of everything", layers: [][]entryOf{{file("b", "")}, {file(".wh..wh..opq", "")}}, code: failEmpty},
	{name: "aufs records", layers: [][]entryOf{{file("b", ""), dir(".wh..wh.plnk"), file(".wh..wh.aufs", "")}}, want: map[string]string{"/b": "-rw-r--r-- "}},

	{name: "file over directory", layers: [][]entryOf{{file("d/x", "")}, {file("d", "1")}}, want: map[string]string{"/d": "-rw-r--r-- 1"}},
	{name: "symlink over directory", layers: [][]entryOf{{file("d/x", "")}, {link("d", "/e")}}, want: map[string]string{"/d": "Lrw-r--r-- -> /e"}},
	{name: "directory over directory", layers: [][]entryOf{{file("d/x", "")}, {{name: "d", kind: tar.TypeDir, mode: 0o700}}},
		want: map[string]string{"/d": "drwx------", "/d/x": "-rw-r--r-- "}},
	{name: "the root as a file", layers: [][]entryOf{{file("a", ""), file(".", "x")}}, code: failArchive},
	{name: "the root as a symlink", layers: [][]entryOf{{file("a", ""), link("..", "/etc")}}, code: failArchive},

	{name: "name too long", layers: [][]entryOf{{file(strings.Repeat("n", 256), "")}}, code: failArchive},
	{name: "name too long in a symlink target", layers: [][]entryOf{{link("l", strings.Repeat("n", 256)), file("l/x", "")}}, code: failArchive},
	{name: "too deep", layers: [][]entryOf{{file(strings.Repeat("d/", maxDepth+1)+"x", "")}}, code: failArchive},
	{name: "too deep through symlinks", layers: [][]entryOf{deepLinks()}, code: failArchive},
	{name: "symlink target too long", layers: [][]entryOf{{link("l", strings.Repeat("t", maxTarget+1))}}, code: failArchive},
	{name: "empty symlink target", layers: [][]entryOf{{{name: "l", kind: tar.TypeSymlink}}}, code: failArchive},

	{name: "nothing", layers: [][]entryOf{{}}, code: failEmpty},
	{name: "no layers", layers: nil, code: failEmpty},
	{name: "only directories", layers: [][]entryOf{{dir("a"), dir("b/c")}}, code: failEmpty},
}

func chain(n int) (all []entryOf) {
	for i := range n {
		all = append(all, link(fmt.Sprint("l", i), fmt.Sprint("l", i+1)))
	}
	return append(all, file("l0/x", ""))
}

// deepLinks goes down by a symlink that is not deep itself.
func deepLinks() []entryOf {
	half := strings.Repeat("d/", maxDepth*3/4)
	return []entryOf{dir(half), link("l", half), file("l/"+half+"x", "")}
}

func TestHostileImages(t *testing.T) {
	for _, c := range hostile {
		t.Run(c.name, func(t *testing.T) {
			var layers [][]byte
			for _, l := range c.layers {
				layers = append(layers, layer(t, l...))
			}
			img, u, err := packed(t, Limits{}, layers...)
			if c.want == nil {
				if err == nil || failureOf(err) != c.code {
					t.Fatalf("got error %v (code %d), want code %d", err, failureOf(err), c.code)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(c.want, beyond(listing(t, img))); d != "" {
				t.Error(d)
			}
			if strings.Contains(c.name, "left out") && u.t.dropped != 4 {
				t.Errorf("%d left out, want 4", u.t.dropped)
			}
			fsck(t, img.Name())
		})
	}
}

func TestUnpackCaps(t *testing.T) {
	many := make([]entryOf, 100)
	for i := range many {
		many[i] = file("same", "") // replacing counts too
	}
	for _, c := range []struct {
		name  string
		lim   Limits
		layer []byte
	}{
		{"entries", Limits{MaxEntries: 99}, layer(t, many...)},
		{"made by a deep name", Limits{MaxEntries: 50}, layer(t, file(strings.Repeat("d/", 60)+"x", ""))},
		{"bytes", Limits{MaxBytes: 1000}, layer(t, file("a", strings.Repeat("x", 600)), file("a", strings.Repeat("y", 600)))},
		{"one file", Limits{MaxBytes: 1000}, layer(t, file("a", strings.Repeat("x", 1001)))},
		{"a sparse file of an exabyte", Limits{}, sparseHeader(t)},
		{"headers that add nothing", Limits{MaxEntries: 10}, globalHeaders(t, 11)},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, _, err := packed(t, c.lim, c.layer); failureOf(err) != failLimit {
				t.Errorf("got %v, want a limit", err)
			}
		})
	}
}

// sparseHeader claims a size that only holes could fill.
func sparseHeader(t *testing.T) []byte {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	err := w.WriteHeader(&tar.Header{Name: "big", Typeflag: tar.TypeReg, Size: 1 << 60, Mode: 0o644, Format: tar.FormatGNU})
	if err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func globalHeaders(t *testing.T, n int) []byte {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for range n {
		h := &tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{"comment": "x"}}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
	}
	return buf.Bytes()
}

func TestBrokenArchives(t *testing.T) {
	whole := layer(t, file("a", strings.Repeat("x", 2000)))
	for name, b := range map[string][]byte{
		"cut in a header": whole[:700], "cut in data": whole[:len(whole)-3000], "garbage": bytes.Repeat([]byte("garbage "), 200),
	} {
		_, _, err := packed(t, Limits{}, b)
		if code := failureOf(err); code != failArchive && code != failCutOff {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A gzip bomb is a layer of zeros: it must end at the cap, not at the disk.
func TestDecompressionIsBounded(t *testing.T) {
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	z.Write(layer(t, entryOf{name: "bomb", kind: tar.TypeReg, size: 64 << 20}))
	z.Close()
	r, err := decompress(bytes.NewReader(bomb.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	u := newUnpacker(Limits{MaxBytes: 1 << 20}.withDefaults(), nil)
	if err := u.apply(r, true); failureOf(err) != failLimit {
		t.Errorf("got %v, want a limit", err)
	}
	var tail bytes.Buffer // zeros behind the end of the archive
	z = gzip.NewWriter(&tail)
	z.Write(layer(t, file("a", "x")))
	z.Write(make([]byte, 8<<20))
	z.Close()
	u = newUnpacker(Limits{MaxBytes: 1 << 20}.withDefaults(), tempFile(t))
	err = applyLayer(u, bytes.NewReader(tail.Bytes()), int64(tail.Len()), "", hashOf(nil), func(int64) {})
	if failureOf(err) != failLimit {
		t.Errorf("got %v, want a limit", err)
	}
}

// FuzzUnpack feeds tar streams to the one unpacker. Whatever it accepts is an
// image that an independent reader can walk to the end.
func FuzzUnpack(f *testing.F) {
	for _, c := range hostile {
		var all []byte
		for _, l := range c.layers {
			all = append(all, layer(f, l...)...)
		}
		f.Add(all, true)
	}
	f.Add(layer(f, file(".wh.a", "x"), hard("b", ".wh.a")), false)
	f.Fuzz(func(t *testing.T, b []byte, layered bool) {
		lim := Limits{MaxBytes: 1 << 20, MaxEntries: 500}
		dir := t.TempDir()
		spool, out := create(t, dir+"/s"), create(t, dir+"/o")
		defer spool.Close()
		defer out.Close()
		u := newUnpacker(lim, spool)
		for range 2 { // as a first and as an upper layer
			if err := u.apply(bytes.NewReader(b), layered); err != nil {
				if failureOf(err) == failInternal {
					t.Fatalf("a bad archive is not our fault: %v", err)
				}
				return
			}
		}
		size, err := u.write(out, func(int64, int64) {})
		if err != nil {
			if failureOf(err) == failInternal {
				t.Fatal(err)
			}
			return
		}
		if u.t.entries > lim.MaxEntries || u.off > lim.MaxBytes {
			t.Fatalf("%d entries, %d bytes", u.t.entries, u.off)
		}
		if err := checkSuper(out, size); err != nil {
			t.Fatal(err)
		}
		walkImage(t, out)
	})
}

func create(t testing.TB, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func tempFile(t testing.TB) *os.File {
	f := create(t, filepath.Join(t.TempDir(), "f"))
	t.Cleanup(func() { f.Close() })
	return f
}

func hashOf(b []byte) v1.Hash { return v1.Hash{Algorithm: "sha256", Hex: hexSum(b)} }

func walkImage(t *testing.T, img *os.File) {
	fsys, err := erofs.Open(img)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	err = fs.WalkDir(fsys, ".", func(path string, d fs.DirEntry, err error) error {
		if n++; n > 2000 {
			return errors.New("more entries than were made")
		}
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err == nil && info.Mode()&fs.ModeSymlink != 0 {
			_, err = fs.ReadLink(fsys, path)
		}
		if err == nil && !d.IsDir() && !info.Mode().IsRegular() && info.Mode()&fs.ModeSymlink == 0 {
			err = fmt.Errorf("%q is a %s", path, info.Mode())
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrInvalid) { // names that Go's fs.FS does not allow
		t.Fatal(err)
	}
}

package attach

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func tarOf(t testing.TB, headers ...tar.Header) *bytes.Buffer {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.CopyN(w, zeros{}, h.Size); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func entries(r io.Reader) (list []Entry, err error) {
	for {
		e, err := ReadEntry(r)
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return list, err
		}
		list = append(list, e)
		if _, err := io.CopyN(io.Discard, r, e.Size); err != nil {
			return list, err
		}
	}
}

// Attack rows 42 and 94: what leaves a guest is files and directories below
// the artifact, whatever its archive says.
func TestI6_OnlyFilesAndDirectoriesBelowTheArtifactLeave(t *testing.T) {
	in := tarOf(t,
		tar.Header{Name: "out", Typeflag: tar.TypeDir, Mode: 0o755},
		tar.Header{Name: "out/a", Typeflag: tar.TypeReg, Size: 3, Mode: 0o6755},
		tar.Header{Name: "out/../../etc/passwd", Typeflag: tar.TypeReg, Size: 1},
		tar.Header{Name: "/etc/shadow", Typeflag: tar.TypeReg, Size: 1},
		tar.Header{Name: "outside", Typeflag: tar.TypeReg, Size: 1},
		tar.Header{Name: "out/link", Typeflag: tar.TypeSymlink, Linkname: "/etc/passwd"},
		tar.Header{Name: "out/hard", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"},
		tar.Header{Name: "out/dev", Typeflag: tar.TypeChar},
		tar.Header{Name: "out/fifo", Typeflag: tar.TypeFifo},
	)
	var w bytes.Buffer
	if err := copyTar(in, &w); err != nil {
		t.Fatal(err)
	}
	got, err := entries(&w)
	if err != nil {
		t.Fatal(err)
	}
	want := []Entry{
		{Type: EntryDir, Exec: true, Mode: 0o755}, {Type: EntryFile, Exec: true, Mode: 0o6755, Size: 3, Name: "a"},
		{Type: EntrySpecial}, {Type: EntrySpecial}, {Type: EntrySpecial}, {Type: EntrySpecial}, // told as a number
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func TestTruncatedArchiveKeepsTheFraming(t *testing.T) {
	in := tarOf(t, tar.Header{Name: "f", Typeflag: tar.TypeReg, Size: 5000})
	in.Truncate(1024)
	var w bytes.Buffer
	if err := copyTar(in, &w); err == nil || !strings.Contains(err.Error(), "cut short") {
		t.Errorf("error %v, want one that says the archive is cut short", err)
	}
	got, err := entries(&w)
	if err != nil || len(got) != 1 || got[0].Size != 5000 {
		t.Errorf("entries %+v, %v; want one of 5000 bytes, padded", got, err)
	}
}

func FuzzCopyTar(f *testing.F) {
	f.Add(tarOf(f, tar.Header{Name: "a", Typeflag: tar.TypeReg, Size: 2}).Bytes())
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<16 {
			return
		}
		var w limited
		_ = copyTar(bytes.NewReader(b), &w)
		if w.full {
			return
		}
		list, err := entries(&w.Buffer)
		if err != nil {
			t.Errorf("framing broken: %v", err)
		}
		for _, e := range list {
			if strings.HasPrefix(e.Name, "/") || strings.Contains("/"+e.Name+"/", "/../") {
				t.Errorf("name %q leaves the artifact", e.Name)
			}
		}
	})
}

// limited stops a sparse archive that promises more than a test should hold.
type limited struct {
	bytes.Buffer
	full bool
}

func (l *limited) Write(p []byte) (int, error) {
	if l.Len()+len(p) > 1<<22 {
		l.full = true
		return 0, errors.New("full")
	}
	return l.Buffer.Write(p)
}

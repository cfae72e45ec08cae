package image

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
)

// What a child that was taken over may send: the parent must end, allocate
// little, and hand nothing on that is not within its bounds.
func FuzzReadOutcome(f *testing.F) {
	var good bytes.Buffer
	r := &reporter{w: &good}
	r.progress(StageUnpack, 1, 2)
	r.config(childConfig{Config: ociConfig, Source: sum})
	r.send(message{Kind: msgDone, Done: 4096, Total: 1}, nil)
	f.Add(good.Bytes())
	var bad bytes.Buffer
	(&reporter{w: &bad}).fail(failf(failLimit, "x\x1b[31m\n\u202e"))
	f.Add(bad.Bytes())
	f.Add(binary.LittleEndian.AppendUint32([]byte{msgConfig, 0, 0, 0}, 1<<31))
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := readOutcome(bytes.NewReader(b), func(s Stage, done, total int64) {
			if s >= stageEnd || done < 0 || total < 0 {
				t.Fatalf("progress %d %d %d", s, done, total)
			}
		})
		if err != nil {
			if o.ended || o.err != nil {
				t.Fatalf("an error came with an outcome: %+v", o)
			}
			return
		}
		if err := o.config.validate(); err != nil {
			t.Fatal(err)
		}
		if o.err != nil && (failureOf(o.err) >= failEnd || bytes.ContainsAny([]byte(o.err.Error()), "\n\x1b\r")) {
			t.Fatalf("unsafe text %q", o.err)
		}
	})
}

// Documents of an image, from the root on. Whatever they say, the walk ends
// and every refusal has a code.
func FuzzManifest(f *testing.F) {
	m, err := twoLayers(f).RawManifest()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(m, true)
	f.Add([]byte(`{"schemaVersion":2,"manifests":[{"digest":"`+sum+`","platform":{"os":"linux","architecture":"amd64"}}]}`), false)
	f.Add([]byte(`{"schemaVersion":2,"manifests":[]}`), true)
	f.Add([]byte(`{"schemaVersion":2,"config":null,"layers":[{}]}`), true)
	f.Fuzz(func(t *testing.T, b []byte, layout bool) {
		o := ociImage{src: oneBlob(b), layout: layout, arch: runtime.GOARCH, report: func(Stage, int64, int64) {}}
		u := newUnpacker(Limits{}.withDefaults(), nil)
		if _, err := o.unpack(u); err == nil {
			t.Fatal("one document was taken for its own layers")
		} else if failureOf(err) == failInternal {
			t.Fatalf("a bad image is not our fault: %v", err)
		}
	})
}

func FuzzDockerArchive(f *testing.F) {
	f.Add(layer(f, file("manifest.json", `[{"Config":"c","Layers":["l","l"]}]`), file("c", `{"os":"linux"}`), link("l", "./c")))
	f.Add(layer(f, file("manifest.json", `[{"Config":"../manifest.json"}]`)))
	f.Fuzz(func(t *testing.T, b []byte) {
		path := filepath.Join(t.TempDir(), "a")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		in, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer in.Close()
		a := dockerArchive{f: in, arch: runtime.GOARCH, report: func(Stage, int64, int64) {}}
		u := newUnpacker(Limits{MaxBytes: 1 << 20}.withDefaults(), create(t, path+"s"))
		defer u.spool.Close()
		if _, err := a.unpack(u); err != nil && failureOf(err) == failInternal {
			t.Fatalf("a bad archive is not our fault: %v", err)
		}
	})
}

// Requests and replies of the blob pipes, each read by the other side.
func FuzzBlobs(f *testing.F) {
	var req bytes.Buffer
	binary.Write(&req, binary.LittleEndian, blobRequest{Kind: blobRoot, Size: 100})
	f.Add(req.Bytes(), []byte("\x01\x00\x00\x00x\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, requests, replies []byte) {
		serveBlobs(t.Context(), oneBlob("some blob"), bytes.NewReader(requests), io.Discard)
		c := &blobClient{requests: io.Discard, replies: bytes.NewReader(replies)}
		r, err := c.open(t.Context(), blobRequest{Kind: blobBlob, Size: 10})
		if err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if len(got) > 10 {
			t.Fatalf("%d bytes of 10", len(got))
		}
		if err != nil && failureOf(err) == failInternal {
			t.Fatal(err)
		}
	})
}

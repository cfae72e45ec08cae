package image

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"github.com/klauspost/compress/zstd"

	"caisson.dev/caisson/api"
)

// ociOf makes an image of layers, as another program would.
func ociOf(t testing.TB, arch string, layers ...[]byte) v1.Image {
	t.Helper()
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	for _, b := range layers {
		l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil })
		if err != nil {
			t.Fatal(err)
		}
		if img, err = mutate.AppendLayers(img, l); err != nil {
			t.Fatal(err)
		}
	}
	return configured(t, img, arch)
}

func configured(t testing.TB, img v1.Image, arch string) v1.Image {
	t.Helper()
	cf, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture = "linux", arch
	cf.Config = v1.Config{
		Env: []string{"PATH=/bin", "A=b=c"}, User: "app:app", WorkingDir: "/srv",
		Entrypoint: []string{"/bin/sh"}, Cmd: []string{"-c", "true"},
	}
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		t.Fatal(err)
	}
	return img
}

func twoLayers(t testing.TB) v1.Image {
	return ociOf(t, runtime.GOARCH,
		layer(t, file("bin/sh", "#!"), file("old", "1"), file("keep", "2")),
		layer(t, file(".wh.old", ""), file("new", "3")))
}

var twoLayersContents = map[string]string{
	"/bin": "drwxr-xr-x", "/bin/sh": "-rw-r--r-- #!", "/keep": "-rw-r--r-- 2", "/new": "-rw-r--r-- 3",
}

var ociConfig = Config{
	Env: []string{"PATH=/bin", "A=b=c"}, User: "app:app", WorkDir: "/srv",
	Entrypoint: []string{"/bin/sh"}, Cmd: []string{"-c", "true"},
}

// startRegistry serves a registry on loopback, through wrap.
func startRegistry(t testing.TB, wrap func(http.Handler) http.Handler) string {
	t.Helper()
	h := registry.New(registry.Logger(log.New(io.Discard, "", 0)))
	if wrap != nil {
		h = wrap(h)
	}
	srv := httptest.NewServer(h)
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	t.Cleanup(srv.Close)
	return srv.Listener.Addr().String()
}

func push(t testing.TB, ref string, img v1.Image, auth authn.Authenticator) string {
	t.Helper()
	r, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	tr := &http.Transport{}
	defer tr.CloseIdleConnections()
	if err := remote.Write(r, img, remote.WithAuth(auth), remote.WithTransport(tr)); err != nil {
		t.Fatal(err)
	}
	d, err := img.Digest()
	if err != nil {
		t.Fatal(err)
	}
	return d.String()
}

func TestPull(t *testing.T) {
	s, addr := openStore(t), startRegistry(t, nil)
	ref := addr + "/team/app:v1"
	digest := push(t, ref, twoLayers(t), authn.Anonymous)

	img := resolve(t, s, ref, Options{})
	if d := cmp.Diff(twoLayersContents, contents(t, img)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(ociConfig, img.Config); d != "" {
		t.Error(d)
	}
	pinned := resolve(t, s, addr+"/team/app@"+digest, Options{})
	if pinned.Digest != img.Digest {
		t.Errorf("by digest %s, by tag %s", pinned.Digest, img.Digest)
	}
	// The registry is gone from here on: a second use asks nobody.
	again, err := s.Resolve(t.Context(), mustParse(t, ref), Options{})
	if err != nil || again.Digest != img.Digest {
		t.Errorf("second use: %v", err)
	}
	again.Close()
}

func TestPullRefreshSeesANewTagAndAnUnchangedOne(t *testing.T) {
	s, addr := openStore(t), startRegistry(t, nil)
	ref := addr + "/app:v1"
	push(t, ref, twoLayers(t), authn.Anonymous)
	first := resolve(t, s, ref, Options{})
	built := 0
	same := resolve(t, s, ref, Options{Refresh: true, Progress: func(u Update) {
		if u.Stage == StageWrite {
			built++
		}
	}})
	if same.Digest != first.Digest || built != 0 {
		t.Errorf("an unchanged image was built again (%d)", built)
	}
	push(t, ref, ociOf(t, runtime.GOARCH, layer(t, file("other", "x"))), authn.Anonymous)
	if resolve(t, s, ref, Options{}).Digest != first.Digest {
		t.Error("a moved tag was followed without being asked to")
	}
	if resolve(t, s, ref, Options{Refresh: true}).Digest == first.Digest {
		t.Error("--refresh did not see the moved tag")
	}
}

// wantFailure resolves and requires a user error with a code and a hint.
func wantFailure(t *testing.T, s *Store, ref string, o Options, code failure) {
	t.Helper()
	img, err := s.Resolve(context.Background(), mustParse(t, ref), o)
	if err == nil {
		img.Close()
		t.Errorf("%s was accepted", ref)
		return
	}
	var e *api.Error
	if !errors.As(err, &e) || e.Hint == "" || strings.Contains(e.Message, "\n") {
		t.Errorf("%s: %v: want one line and a hint", ref, err)
	}
	if failureOf(err) != code {
		t.Errorf("%s: %v (code %d), want code %d", ref, err, failureOf(err), code)
	}
	if left, _ := filepath.Glob(s.path("tmp", "*")); len(left) != 0 {
		t.Errorf("%s left %q", ref, left)
	}
}

func TestPullWithCredentials(t *testing.T) {
	const user, password = "u", "p:w"
	basic := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if u, p, _ := r.BasicAuth(); u != user || p != password {
				w.Header().Set("WWW-Authenticate", `Basic realm="x"`)
				w.WriteHeader(http.StatusUnauthorized)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
	s, addr := openStore(t), startRegistry(t, basic)
	ref := addr + "/app:v1"
	push(t, ref, twoLayers(t), &authn.Basic{Username: user, Password: password})

	auth := filepath.Join(t.TempDir(), "config.json")
	write := func(key, secret string) {
		body := fmt.Sprintf(`{"auths":{%q:{"auth":%q}},"credsStore":"must-not-run"}`, key, base64.StdEncoding.EncodeToString([]byte(secret)))
		if err := os.WriteFile(auth, []byte(body), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("other.example", user+":"+password)
	wantFailure(t, s, ref, Options{AuthFile: auth}, failAuth)
	write("http://"+addr+"/v1/", user+":wrong")
	wantFailure(t, s, ref, Options{AuthFile: auth}, failAuth)
	write(addr, user+":"+password)
	resolve(t, s, ref, Options{AuthFile: auth})
}

func TestPullRefuses(t *testing.T) {
	s := openStore(t)
	var answer atomic.Value // func(http.ResponseWriter, *http.Request) bool: true when it answered
	answer.Store(func(http.ResponseWriter, *http.Request) bool { return false })
	addr := startRegistry(t, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !answer.Load().(func(http.ResponseWriter, *http.Request) bool)(w, r) {
				next.ServeHTTP(w, r)
			}
		})
	})
	ref := addr + "/app:v1"
	digest := push(t, ref, twoLayers(t), authn.Anonymous)
	push(t, addr+"/app:arm", ociOf(t, "s390x", layer(t, file("a", ""))), authn.Anonymous)
	push(t, addr+"/app:empty", configured(t, mutate.MediaType(empty.Image, types.OCIManifestSchema1), runtime.GOARCH), authn.Anonymous)
	push(t, addr+"/app:hollow", ociOf(t, runtime.GOARCH, layer(t)), authn.Anonymous)
	push(t, addr+"/app:bad", ociOf(t, runtime.GOARCH, layer(t, file("a", ""), hard("b", "/etc/shadow"))), authn.Anonymous)

	onBlob := func(f func(w http.ResponseWriter)) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/blobs/") {
				return false
			}
			f(w)
			return true
		}
	}
	manifest := func(body string) func(http.ResponseWriter, *http.Request) bool {
		return func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, "/manifests/") {
				return false
			}
			w.Header().Set("Content-Type", string(types.OCIManifestSchema1))
			io.WriteString(w, body)
			return true
		}
	}
	for _, c := range []struct {
		name string
		ref  string
		code failure
		way  func(http.ResponseWriter, *http.Request) bool
	}{
		{"no such tag", addr + "/app:none", failNotFound, nil},
		{"another platform", addr + "/app:arm", failPlatform, nil},
		{"row 39: zero layers", addr + "/app:empty", failEmpty, nil},
		{"row 39: an empty layer", addr + "/app:hollow", failEmpty, nil},
		{"hostile layer", addr + "/app:bad", failArchive, nil},
		{"wrong digest", addr + "/app@" + sum, failNotFound, nil},
		{"another manifest under the digest", addr + "/app@" + digest, failDigest, manifest(`{"schemaVersion":2,"config":{}}`)},
		{"cut blob", ref, failNetwork, onBlob(func(w http.ResponseWriter) { w.Header().Set("Content-Length", "1000"); io.WriteString(w, "x") })},
		{"short blob", ref, failDigest, onBlob(func(w http.ResponseWriter) { io.WriteString(w, "x") })},
		{"endless blob", ref, failDigest, onBlob(func(w http.ResponseWriter) { io.CopyN(w, zeroReader{}, 64<<20) })},
		{"endless manifest", ref, failNetwork, func(w http.ResponseWriter, r *http.Request) bool { io.CopyN(w, zeroReader{}, 64<<20); return true }},
		{"manifest that is none", ref, failFormat, manifest(`{"schemaVersion":2}`)},
		{"manifest of schema 1", ref, failFormat, manifest(`{"schemaVersion":1,"fsLayers":[]}`)},
		{"manifest that is no JSON", ref, failFormat, manifest(`<html>`)},
		{"huge layer", ref, failLimit, manifest(changed(t, twoLayers(t), func(d *v1.Descriptor) { d.Size = 1 << 50 }))},
		{"a chart instead of layers", ref, failFormat, manifest(changed(t, twoLayers(t), func(d *v1.Descriptor) { d.MediaType = "application/vnd.example.chart" }))},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.way == nil {
				c.way = func(http.ResponseWriter, *http.Request) bool { return false }
			}
			answer.Store(c.way)
			wantFailure(t, s, c.ref, Options{}, c.code)
		})
	}
}

// changed is the manifest of img with other first layer.
func changed(t *testing.T, img v1.Image, change func(*v1.Descriptor)) string {
	t.Helper()
	m, err := img.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	m = m.DeepCopy()
	change(&m.Layers[0])
	b, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Row 81: a registry that sends us to an address which nobody named. Nothing
// may be dialed there, neither for a token nor for a blob.
func TestI14_RegistryCannotLeadUsAstray(t *testing.T) {
	s := openStore(t)
	trap, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer trap.Close()
	var caught atomic.Int32
	go func() {
		for {
			c, err := trap.Accept()
			if err != nil {
				return
			}
			caught.Add(1)
			c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(trap.Addr().String())
	targets := []string{
		"http://" + trap.Addr().String(), "https://" + trap.Addr().String(),
		"http://localhost:" + port, "https://localhost:" + port, "https://[::ffff:127.0.0.1]:" + port, "https://0.0.0.0:" + port,
		"http://169.254.169.254", "https://169.254.169.254", "https://[fd00:ec2::254]",
	}
	for _, to := range targets {
		for _, how := range []string{"realm", "ping", "manifest", "blob"} {
			addr := startRegistry(t, func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					redirect := how == "ping" && r.URL.Path == "/v2/" || how == "manifest" && strings.Contains(r.URL.Path, "/manifests/") ||
						how == "blob" && strings.Contains(r.URL.Path, "/blobs/")
					switch {
					case r.Method != http.MethodGet:
						next.ServeHTTP(w, r)
					case how == "realm" && r.Header.Get("X-Push") == "":
						w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm="%s/token",service="x"`, to))
						w.WriteHeader(http.StatusUnauthorized)
					case redirect:
						http.Redirect(w, r, to+r.URL.Path, http.StatusTemporaryRedirect)
					default:
						next.ServeHTTP(w, r)
					}
				})
			})
			if how == "manifest" || how == "blob" {
				push(t, addr+"/app:v1", twoLayers(t), authn.Anonymous)
			}
			img, err := s.Resolve(t.Context(), mustParse(t, addr+"/app:v1"), Options{})
			if err == nil {
				img.Close()
				t.Errorf("%s to %s: pulled", how, to)
			}
			if code := failureOf(err); code != failRefused && code != failNetwork {
				t.Errorf("%s to %s: %v (code %d)", how, to, err, code)
			}
		}
	}
	if n := caught.Load(); n != 0 {
		t.Errorf("the trap was dialed %d times", n)
	}
}

func TestOCILayout(t *testing.T) {
	s, dir := openStore(t), t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(twoLayers(t), layout.WithAnnotations(map[string]string{refNameAnnotation: "v1"})); err != nil {
		t.Fatal(err)
	}
	one := resolve(t, s, "oci:"+dir, Options{})
	if d := cmp.Diff(twoLayersContents, contents(t, one)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(ociConfig, one.Config); d != "" {
		t.Error(d)
	}
	other := ociOf(t, runtime.GOARCH, layer(t, file("x", "y")))
	if err := p.AppendImage(other, layout.WithAnnotations(map[string]string{refNameAnnotation: "v2"})); err != nil {
		t.Fatal(err)
	}
	wantFailure(t, s, "oci:"+dir, Options{}, failNotFound)
	wantFailure(t, s, "oci:"+dir+":v3", Options{}, failNotFound)
	wantFailure(t, s, "oci:"+dir+"@"+sum, Options{}, failNotFound)
	digest, _ := other.Digest()
	if resolve(t, s, "oci:"+dir+":v2", Options{}).Digest != resolve(t, s, "oci:"+dir+"@"+digest.String(), Options{}).Digest {
		t.Error("tag and digest name different images")
	}
	if resolve(t, s, "oci:"+dir+":v1", Options{}).Digest != one.Digest {
		t.Error("v1 is another image now")
	}

	// A blob that was changed on disk, and one that leads out of the layout.
	m, _ := other.Manifest()
	blob := filepath.Join(dir, "blobs/sha256", m.Layers[0].Digest.Hex)
	body, _ := os.ReadFile(blob)
	body[len(body)/2] ^= 1
	if err := os.WriteFile(blob, body, 0o600); err != nil {
		t.Fatal(err)
	}
	img, err := s.Resolve(t.Context(), mustParse(t, "oci:"+dir+":v2"), Options{Refresh: true})
	if code := failureOf(err); code != failDigest && code != failArchive && code != failUnchanged && img == nil {
		t.Errorf("a changed blob: %v", err)
	}
	if img != nil {
		img.Close()
	}
	os.Remove(blob)
	os.Symlink("/etc/passwd", blob)
	fresh := openStore(t)
	if _, err := fresh.Resolve(t.Context(), mustParse(t, "oci:"+dir+":v2"), Options{}); err == nil {
		t.Error("a blob that links out of the layout was read")
	}
	wantFailure(t, s, "oci:"+t.TempDir(), Options{}, failFormat)
}

func TestDockerArchive(t *testing.T) {
	s, path := openStore(t), filepath.Join(t.TempDir(), "a.tar")
	tags := map[name.Tag]v1.Image{}
	for _, tag := range []string{"r.example/a:v1", "r.example/a:v2"} {
		n, err := name.NewTag(tag)
		if err != nil {
			t.Fatal(err)
		}
		tags[n] = twoLayers(t)
		if strings.HasSuffix(tag, "2") {
			tags[n] = ociOf(t, runtime.GOARCH, layer(t, file("x", "y")))
		}
	}
	if err := tarball.MultiWriteToFile(path, tags); err != nil {
		t.Fatal(err)
	}
	img := resolve(t, s, "docker-archive:"+path+":v1", Options{})
	if d := cmp.Diff(twoLayersContents, contents(t, img)); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(ociConfig, img.Config); d != "" {
		t.Error(d)
	}
	wantFailure(t, s, "docker-archive:"+path, Options{}, failNotFound)
	wantFailure(t, s, "docker-archive:"+path+":v3", Options{}, failNotFound)
	if err := os.WriteFile(path, bytes.Repeat([]byte("no archive"), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	wantFailure(t, s, "docker-archive:"+path+":v1", Options{}, failFormat)
	wantFailure(t, s, "docker-archive:"+path+"-none", Options{}, failInternal)
}

func TestDockerArchiveRefuses(t *testing.T) {
	s := openStore(t)
	config := fmt.Sprintf(`{"os":"linux","architecture":%q,"rootfs":{"type":"layers","diff_ids":["sha256:%064d"]}}`, runtime.GOARCH, 0)
	good := layer(t, file("a", "b"))
	for _, c := range []struct {
		name    string
		entries []entryOf
		code    failure
	}{
		{"empty", []entryOf{file("x", "")}, failFormat},
		{"no images", []entryOf{file("manifest.json", "[]")}, failEmpty},
		{"not JSON", []entryOf{file("manifest.json", "{")}, failFormat},
		{"missing layer", []entryOf{file("manifest.json", `[{"Config":"c","Layers":["l"]}]`), file("c", config)}, failFormat},
		{"layer outside", []entryOf{file("manifest.json", `[{"Config":"c","Layers":["../../etc/passwd"]}]`), file("c", config)}, failFormat},
		{"layer links outside", []entryOf{link("l", "/etc/passwd"), file("manifest.json", `[{"Config":"c","Layers":["l"]}]`), file("c", config)}, failFormat},
		{"wrong contents", []entryOf{file("l", string(good)), file("manifest.json", `[{"Config":"c","Layers":["l"]}]`), file("c", config)}, failDigest},
		{"no layers", []entryOf{file("manifest.json", `[{"Config":"c","Layers":[]}]`), file("c", config)}, failEmpty},
	} {
		t.Run(c.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "a.tar")
			if err := os.WriteFile(path, layer(t, c.entries...), 0o600); err != nil {
				t.Fatal(err)
			}
			wantFailure(t, s, "docker-archive:"+path, Options{}, c.code)
		})
	}
}

func TestLayerCompressions(t *testing.T) {
	plain := layer(t, file("a", "b"), entryOf{name: "z", kind: tar.TypeReg, size: 3 << 20})
	z, _ := zstd.NewWriter(nil)
	for name, packedLayer := range map[string][]byte{"none": plain, "zstd": z.EncodeAll(plain, nil)} {
		u := newUnpacker(Limits{}.withDefaults(), tempFile(t))
		if err := applyLayer(u, bytes.NewReader(packedLayer), int64(len(packedLayer)), hexSum(packedLayer), hashOf(plain), func(int64) {}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		u = newUnpacker(Limits{}.withDefaults(), tempFile(t))
		if err := applyLayer(u, bytes.NewReader(packedLayer), int64(len(packedLayer)), hexSum(plain[1:]), hashOf(plain), func(int64) {}); failureOf(err) != failDigest {
			t.Errorf("%s with another digest: %v", name, err)
		}
		u = newUnpacker(Limits{}.withDefaults(), tempFile(t))
		if err := applyLayer(u, bytes.NewReader(packedLayer), int64(len(packedLayer)), hexSum(packedLayer), hashOf(nil), func(int64) {}); failureOf(err) != failDigest {
			t.Errorf("%s with other contents: %v", name, err)
		}
	}
}

func TestPullOverTLS(t *testing.T) {
	s := openStore(t)
	srv := httptest.NewUnstartedServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	srv.Config.ErrorLog = log.New(io.Discard, "", 0)
	srv.StartTLS()
	defer srv.Close()
	ref := srv.Listener.Addr().String() + "/app:v1"
	r, err := name.ParseReference(ref)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(r, twoLayers(t), remote.WithTransport(srv.Client().Transport)); err != nil {
		t.Fatal(err)
	}
	wantFailure(t, s, ref, Options{}, failNetwork) // an authority that nobody trusts
	ca := filepath.Join(t.TempDir(), "ca.pem")
	pem := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	if err := os.WriteFile(ca, pem, 0o600); err != nil {
		t.Fatal(err)
	}
	img := resolve(t, s, ref, Options{CAFile: ca})
	if d := cmp.Diff(twoLayersContents, contents(t, img)); d != "" {
		t.Error(d)
	}
}

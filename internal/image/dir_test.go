package image

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/authn"

	"caisson.dev/caisson/internal/testenv"
)

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

func startRegistryWith(t testing.TB, l []byte) string {
	ref := startRegistry(t, nil) + "/app:v1"
	push(t, ref, ociOf(t, runtime.GOARCH, l), authn.Anonymous)
	return ref
}

func TestDirectoryImage(t *testing.T) {
	s, dir := openStore(t), rootfs(t)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Symlink("/etc/shadow", filepath.Join(dir, "out")))
	must(os.Link(filepath.Join(dir, "secret"), filepath.Join(dir, "twin")))
	must(syscall.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	must(os.WriteFile(filepath.Join(dir, ".wh.secret"), nil, 0o600)) // a name like any other here
	must(os.Mkdir(filepath.Join(dir, "empty"), 0o711))
	must(os.Chmod(filepath.Join(dir, "bin/sh"), 0o4755|os.ModeSetuid))
	must(os.Symlink("/etc", filepath.Join(dir, "dev")))

	img := resolve(t, s, "dir:"+dir, Options{})
	want := map[string]string{
		"/bin": "drwxr-xr-x", "/bin/sh": "urwxr-xr-x #!", "/etc/passwd": "-rw------- root:x:0:0::/:/bin/sh\n",
		"/secret": "-rw------- s", "/twin": "-rw------- s", "/.wh.secret": "-rw------- ", "/empty": "drwx--x--x",
		"/out": "Lrwxrwxrwx -> /etc/shadow",
	}
	if d := cmp.Diff(want, contents(t, img)); d != "" {
		t.Error(d)
	}
	if img.Dropped != 1 {
		t.Errorf("%d left out, want the FIFO", img.Dropped)
	}
}

// A second use reads no file, and every change makes a new image.
func TestDirectoryImageIsCachedByState(t *testing.T) {
	s, dir := openStore(t), rootfs(t)
	made := 0
	o := Options{Progress: func(u Update) {
		if u.Stage == StageVerify && u.Done == u.Total {
			made++
		}
	}}
	digests := map[string]bool{}
	use := func(change func() error) {
		t.Helper()
		if err := change(); err != nil {
			t.Fatal(err)
		}
		digests[resolve(t, s, "dir:"+dir, o).Digest] = true
	}
	use(func() error { return nil })
	use(func() error { return nil })
	if made != 1 {
		t.Fatalf("made %d times", made)
	}
	secret := filepath.Join(dir, "secret")
	use(func() error { return os.WriteFile(secret, []byte("t"), 0o600) })
	use(func() error { return os.Chmod(secret, 0o640) })
	use(func() error { return os.Rename(secret, secret+"2") })
	use(func() error { return os.Symlink("x", filepath.Join(dir, "l")) })
	if made != 5 || len(digests) != 5 {
		t.Errorf("made %d times, %d images", made, len(digests))
	}
}

// A mounted /proc inside is an empty directory of the image.
func TestDirectoryImageStaysOnItsFileSystem(t *testing.T) {
	testenv.Need(t, "root")
	s, dir := openStore(t), rootfs(t)
	mnt := filepath.Join(dir, "mounted")
	if err := os.Mkdir(mnt, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("caisson-test", mnt, "tmpfs", 0, "size=1m,mode=0755"); err != nil {
		t.Fatal(err)
	}
	defer syscall.Unmount(mnt, 0)
	if err := os.WriteFile(filepath.Join(mnt, "other"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	got := contents(t, resolve(t, s, "dir:"+dir, Options{}))
	if got["/mounted"] == "" || got["/mounted/other"] != "" {
		t.Errorf("got %v", got)
	}
}

func TestDirectoryThatIsNone(t *testing.T) {
	s, dir := openStore(t), rootfs(t)
	for _, ref := range []string{"dir:" + dir + "/none", "dir:" + dir + "/secret", "oci:" + dir + "/none", "docker-archive:" + dir} {
		wantFailure(t, s, ref, Options{}, map[bool]failure{true: failFormat, false: failInternal}[strings.HasPrefix(ref, "docker")])
	}
	wantFailure(t, s, "dir:"+t.TempDir(), Options{}, failEmpty)
	for _, around := range []string{"/", s.dir, filepath.Dir(s.dir)} {
		if _, err := s.Resolve(t.Context(), mustParse(t, "dir:"+around), Options{}); code(err) != "image_reference" {
			t.Errorf("%s: %v", around, err)
		}
	}
}

// A file that grows or shrinks while it is read would shift what follows.
func TestDirectoryThatChanges(t *testing.T) {
	dir := rootfs(t)
	path := filepath.Join(dir, "secret")
	for _, grown := range []string{"", "much longer than it was"} {
		if err := os.WriteFile(path, []byte("four"), 0o600); err != nil {
			t.Fatal(err)
		}
		root, err := os.OpenRoot(dir)
		if err != nil {
			t.Fatal(err)
		}
		change := &onWrite{do: func() { os.WriteFile(path, []byte(grown), 0o600) }}
		err = tarDir(t.Context(), root, change)
		root.Close()
		if failureOf(err) != failChanged {
			t.Errorf("to %q: %v", grown, err)
		}
	}
}

// onWrite changes the file as soon as its header is written.
type onWrite struct {
	io.Writer
	do func()
}

func (w *onWrite) Write(p []byte) (int, error) {
	if w.do != nil && bytes.Contains(p, []byte("secret")) {
		w.do()
		w.do = nil
	}
	return len(p), nil
}

// A large sparse image costs neither memory nor disk by its size.
func TestSparseImage(t *testing.T) {
	s, dir := openStore(t), rootfs(t)
	const size = 256 << 20
	if err := os.Truncate(filepath.Join(dir, "secret"), size); err != nil {
		t.Fatal(err)
	}
	img := resolve(t, s, "dir:"+dir, Options{})
	st, err := os.Stat(img.Path)
	if err != nil {
		t.Fatal(err)
	}
	if blocks := st.Sys().(*syscall.Stat_t).Blocks * 512; img.Size < size || blocks > 8<<20 {
		t.Errorf("size %d, on disk %d", img.Size, blocks)
	}
	wantFailure(t, s, "dir:"+dir, Options{Refresh: true, Limits: Limits{MaxBytes: size - 1}}, failLimit)
}

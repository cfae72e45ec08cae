package image

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/reexec"
	"caisson.dev/caisson/internal/testenv"
)

func TestMain(m *testing.M) {
	reexec.Register("image-test-resolve", testOnlyResolve)
	reexec.Dispatch()
	if slices.ContainsFunc(os.Args, func(a string) bool { return strings.HasPrefix(a, "-test.fuzz") && a != "-test.fuzzcachedir" }) {
		os.Exit(m.Run()) // workers of one run would wait for each other's lock
	}
	testenv.Main(m)
}

// testOnlyResolve is another process that uses a store: it prints each step
// and the digest, and holds the image until its input ends.
func testOnlyResolve() int {
	s, err := Open(os.Args[1])
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	r, err := ParseRef(os.Args[2])
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	img, err := s.Resolve(context.Background(), r, Options{Progress: func(u Update) { fmt.Println(u.Stage) }})
	if err != nil {
		fmt.Println("error", err)
		return 1
	}
	fmt.Println("digest", img.Digest)
	bufio.NewReader(os.Stdin).ReadString('\n')
	return 0
}

// another starts testOnlyResolve. Closing in lets it end.
func another(t testing.TB, s *Store, ref string) (cmd *exec.Cmd, lines *bufio.Scanner, in interface{ Close() error }) {
	t.Helper()
	cmd = reexec.Command("image-test-resolve", s.dir, ref)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	w, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, bufio.NewScanner(out), w
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

func code(err error) string {
	if e, ok := errors.AsType[*api.Error](err); ok && e.Hint != "" {
		return e.Code
	}
	return fmt.Sprint(err)
}

func TestStoreIsPrivate(t *testing.T) {
	s := openStore(t)
	img := resolve(t, s, "dir:"+rootfs(t), Options{})
	filepath.WalkDir(s.dir, func(path string, d os.DirEntry, _ error) error {
		info, err := d.Info()
		if err != nil {
			t.Fatal(err)
		}
		if path != s.dir && info.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has mode %o", path, info.Mode().Perm())
		}
		return nil
	})
	if left, _ := filepath.Glob(s.path("locks", "*")); len(left) != 0 {
		t.Errorf("locks are left: %q", left)
	}
	if !strings.HasPrefix(img.Path, s.path("blobs/sha256/")) {
		t.Errorf("path %s", img.Path)
	}
}

func TestNamesAndDigests(t *testing.T) {
	s, dir := openStore(t), rootfs(t)
	img := resolve(t, s, "dir:"+dir, Options{Name: "mine"})
	for _, ref := range []string{"mine", img.Digest, img.Digest[:19]} {
		if got := resolve(t, s, ref, Options{}); got.Digest != img.Digest || got.Size != img.Size {
			t.Errorf("%s is %s", ref, got.Digest)
		}
	}
	for _, ref := range []string{"other", sum, sum[:19]} {
		if _, err := s.Resolve(t.Context(), mustParse(t, ref), Options{}); code(err) != "image_not_found" {
			t.Errorf("%s: %v", ref, err)
		}
	}
	if _, err := s.Resolve(t.Context(), mustParse(t, "dir:"+dir), Options{Name: "a/b"}); code(err) != "image_name" {
		t.Errorf("bad name: %v", err)
	}
	if host, err := s.Resolve(t.Context(), mustParse(t, "host"), Options{}); err != nil || host.Path != "" || host.Close() != nil {
		t.Errorf("host: %+v, %v", host, err)
	}
}

// Eight processes want one image: one makes it.
func TestConcurrentResolveMakesOneImage(t *testing.T) {
	s, dir := openStore(t), rootfs(t)
	var wg sync.WaitGroup
	var mu sync.Mutex
	digests, writes := map[string]int{}, 0
	for range 8 {
		cmd, lines, in := another(t, s, "dir:"+dir)
		wg.Go(func() {
			for lines.Scan() {
				mu.Lock()
				switch kind, rest, _ := strings.Cut(lines.Text(), " "); kind {
				case "digest":
					digests[rest]++
					in.Close()
				case "verify":
					writes++
				case "error":
					t.Error(rest)
				}
				mu.Unlock()
			}
			cmd.Wait()
		})
	}
	wg.Wait()
	if len(digests) != 1 || writes != 1 {
		t.Errorf("digests %v, made %d times", digests, writes)
	}
}

// I13: a process that is killed at any step leaves nothing that stays, and the
// next one makes the image.
func TestI13_KilledWhileMaking(t *testing.T) {
	s, dir := openStore(t), rootfs(t)
	for i := range 200 {
		os.WriteFile(filepath.Join(dir, fmt.Sprint("f", i)), make([]byte, 100<<10), 0o600)
		os.WriteFile(filepath.Join(dir, fmt.Sprint("g", i)), []byte(strings.Repeat("x", 100<<10)), 0o600)
	}
	for step := range 12 {
		cmd, lines, _ := another(t, s, "dir:"+dir)
		for n := 0; n < step && lines.Scan() && !strings.HasPrefix(lines.Text(), "digest"); n++ {
		}
		cmd.Process.Kill()
		cmd.Wait()
		awaitDead(t, s)
	}
	if _, err := s.GC(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	for _, sub := range []string{"tmp", "locks"} {
		lock := resolve(t, s, "dir:"+dir, Options{}) // takes over the lock file that a killed one left
		lock.Close()
		if left, _ := filepath.Glob(s.path(sub, "*")); len(left) != 0 {
			t.Errorf("%s has %q", sub, left)
		}
	}
}

// awaitDead waits until no child of a killed process works in the store: they
// get SIGKILL when their parent is gone, but not before.
func awaitDead(t *testing.T, s *Store) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for {
		if _, err := Open(s.dir); err != nil {
			t.Fatal(err)
		}
		left, _ := filepath.Glob(s.path("tmp", "*"))
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("still there: %q", left)
		}
		time.Sleep(time.Millisecond)
	}
}

func TestRemoveAndGCSpareWhatIsUsed(t *testing.T) {
	s, dir := openStore(t), rootfs(t)
	ref := "dir:" + dir
	cmd, lines, in := another(t, s, ref)
	for lines.Scan() && !strings.HasPrefix(lines.Text(), "digest") {
	}
	if _, err := s.Remove(t.Context(), mustParse(t, ref)); code(err) != "image_in_use" {
		t.Errorf("remove of a used image: %v", err)
	}
	if _, err := s.GC(t.Context(), time.Nanosecond); err != nil {
		t.Error(err)
	}
	if list, err := s.List(); err != nil || len(list) != 1 || !list[0].InUse {
		t.Errorf("list %+v, %v", list, err)
	}
	in.Close()
	cmd.Wait()
	if freed, err := s.Remove(t.Context(), mustParse(t, ref)); err != nil || freed == 0 {
		t.Errorf("remove: %d, %v", freed, err)
	}
	if list, err := s.List(); err != nil || len(list) != 0 {
		t.Errorf("list %+v, %v", list, err)
	}
	if _, err := s.Remove(t.Context(), mustParse(t, ref)); code(err) != "image_not_found" {
		t.Errorf("second remove: %v", err)
	}
}

func TestGCRemovesOrphansAndOldReferences(t *testing.T) {
	s, dir := openStore(t), rootfs(t)
	img := resolve(t, s, "dir:"+dir, Options{Name: "kept"})
	img.Close()
	orphan := s.blobPath(sum)
	os.WriteFile(orphan, make([]byte, blockSize), 0o600)
	if _, err := s.GC(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(orphan); err == nil {
		t.Error("an orphan stayed")
	}
	if list, _ := s.List(); len(list) != 2 {
		t.Errorf("gc removed what was used just now: %+v", list)
	}
	old := time.Now().Add(-48 * time.Hour)
	os.Chtimes(s.recordPath(refKey(mustParse(t, "dir:"+dir))), old, old)
	res, err := s.GC(t.Context(), 24*time.Hour)
	if err != nil || len(res.Refs) != 1 {
		t.Errorf("gc: %+v, %v", res, err)
	}
	resolve(t, s, "kept", Options{}).Close()
	// Removing by digest takes all that stands for it.
	if _, err := s.Remove(t.Context(), mustParse(t, img.Digest)); err != nil {
		t.Fatal(err)
	}
	if list, _ := s.List(); len(list) != 0 {
		t.Errorf("list %+v", list)
	}
}

func TestDamagedImage(t *testing.T) {
	s, dir := openStore(t), rootfs(t)
	ref := "dir:" + dir
	img := resolve(t, s, ref, Options{})
	img.Close()
	damage := func(off int64) {
		f, err := os.OpenFile(img.Path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		f.WriteAt([]byte("damage"), off)
	}
	if err := s.Verify(t.Context(), mustParse(t, ref), nil); err != nil {
		t.Fatal(err)
	}
	damage(img.Size - blockSize)
	if err := s.Verify(t.Context(), mustParse(t, ref), nil); code(err) != "image_corrupt" {
		t.Errorf("verify: %v", err)
	}
	damage(superOffset)
	if _, err := s.Resolve(t.Context(), mustParse(t, ref), Options{}); code(err) != "image_corrupt" {
		t.Errorf("damaged superblock: %v", err)
	}
	if again := resolve(t, s, ref, Options{Refresh: true}); again.Digest != img.Digest {
		t.Errorf("refresh gives %s", again.Digest)
	}
	if err := s.Verify(t.Context(), mustParse(t, img.Digest), nil); err != nil {
		t.Errorf("after refresh: %v", err)
	}
	os.Truncate(img.Path, 100)
	if _, err := s.Resolve(t.Context(), mustParse(t, ref), Options{}); code(err) != "image_corrupt" {
		t.Errorf("cut image: %v", err)
	}
	os.Remove(img.Path)
	if again := resolve(t, s, ref, Options{}); again.Digest != img.Digest {
		t.Error("a missing image was not made again")
	}
	record := s.recordPath(refKey(mustParse(t, ref)))
	for _, body := range []string{"", "{", `{"digest":"../../etc/passwd"}`, `{"extra":1}`} {
		os.WriteFile(record, []byte(body), 0o600)
		if _, err := s.Resolve(t.Context(), mustParse(t, ref), Options{}); code(err) != "image_record" {
			t.Errorf("record %q: %v", body, err)
		}
	}
}

// A file system that is full: known before, and found out while writing.
func TestNoSpace(t *testing.T) {
	testenv.Need(t, "root", "norace", "nocgo")
	for _, c := range []struct {
		name string
		ref  func(t *testing.T) string
	}{
		{"known before", func(t *testing.T) string {
			dir := rootfs(t)
			os.WriteFile(filepath.Join(dir, "big"), []byte(strings.Repeat("x", 8<<20)), 0o600)
			return "dir:" + dir
		}},
		{"found out", func(t *testing.T) string {
			// Compressed, nobody knows how much it will be.
			return startRegistryWith(t, layer(t, file("big", strings.Repeat("x", 8<<20))))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := syscall.Mount("caisson-test", dir, "tmpfs", 0, "size=4m"); err != nil {
				t.Fatal(err)
			}
			defer syscall.Unmount(dir, 0)
			s, err := Open(dir)
			if err != nil {
				t.Fatal(err)
			}
			_, err = s.Resolve(t.Context(), mustParse(t, c.ref(t)), Options{})
			if code(err) != "no_space" || !strings.Contains(err.Error(), dir) {
				t.Errorf("got %v", err)
			}
			if left, _ := filepath.Glob(s.path("tmp", "*")); len(left) != 0 {
				t.Errorf("left %q", left)
			}
		})
	}
}

func TestCancel(t *testing.T) {
	s, dir := openStore(t), rootfs(t)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := s.Resolve(ctx, mustParse(t, "dir:"+dir), Options{Progress: func(Update) { cancel() }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	if left, _ := filepath.Glob(s.path("*", "*")); len(left) > 1 { // blobs/sha256
		t.Errorf("left %q", left)
	}
}

// The children hold nothing but their descriptors (I15).
func TestI15_UnpackChildIsJailed(t *testing.T) {
	testenv.Need(t, "root")
	s, dir := openStore(t), rootfs(t)
	os.WriteFile(filepath.Join(dir, "big"), []byte(strings.Repeat("x", 32<<20)), 0o600)
	var once sync.Once
	resolve(t, s, "dir:"+dir, Options{Progress: func(u Update) {
		if u.Stage == StageUnpack {
			once.Do(func() { checkPosture(t) })
		}
	}})
}

func checkPosture(t *testing.T) {
	found := false
	status, _ := filepath.Glob("/proc/[0-9]*/status")
	for _, path := range status {
		args, _ := os.ReadFile(filepath.Join(filepath.Dir(path), "cmdline"))
		if !strings.HasPrefix(string(args), reexec.Argv0(modeUnpack)+"\x00") {
			continue
		}
		b, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		found = true
		for _, want := range []string{"CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"} {
			if !strings.Contains(string(b), want) {
				t.Errorf("the unpack child lacks %q:\n%s", want, b)
			}
		}
		if strings.Contains(string(b), "Uid:\t0\t") {
			t.Errorf("the unpack child is root")
		}
		if ents, err := os.ReadDir(filepath.Join(filepath.Dir(path), "root")); err == nil && len(ents) > 0 {
			t.Errorf("the unpack child sees %v", ents)
		}
	}
	if !found {
		t.Error("no unpack child is running")
	}
}

package main

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"caisson.dev/caisson/internal/guest"
)

// hostileRoot is an image whose links lead out of it, beside a directory that
// must not change.
func hostileRoot(t *testing.T) (*rootDir, string) {
	t.Helper()
	top := t.TempDir()
	img, outside := filepath.Join(top, "image"), filepath.Join(top, "outside")
	for _, d := range []string{img, outside, filepath.Join(img, "real")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, target := range map[string]string{
		"etc": outside, "dev": "../outside", "up": "../../../../../../..", "abs": "/real", "dangling": outside + "/new", "tmp": outside,
	} {
		if err := os.Symlink(target, filepath.Join(img, name)); err != nil {
			t.Fatal(err)
		}
	}
	r, err := openRoot(img)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		r.Close()
		list, _ := os.ReadDir(outside)
		if len(list) > 0 {
			t.Errorf("something was written outside the root: %v", list)
		}
	})
	return r, img
}

func TestI6_SetupStaysInsideAHostileImage(t *testing.T) {
	r, img := hostileRoot(t)
	for _, d := range []string{"dev", "etc", "fresh"} {
		if err := r.ensureDir(d); err != nil {
			t.Error(err)
		}
		if st, err := os.Lstat(filepath.Join(img, d)); err != nil || !st.IsDir() {
			t.Errorf("%q is not a directory: %v", d, err)
		}
	}
	if err := r.mkdirAll("/abs/x/y", 0o755); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(img, "real/x/y")); err != nil {
		t.Errorf("an absolute link is not followed inside the root: %v", err)
	}
	if err := r.mkdirAll("/up/z", 0o755); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(img, "z")); err != nil {
		t.Errorf(`".." is not held at the root: %v`, err)
	}
	if err := r.mkdirAll("/dangling/q", 0o755); err == nil {
		t.Error("a dangling link was followed")
	}
	if _, err := r.mountPoint("/dangling", true); err == nil {
		t.Error("a mount point was made behind a dangling link")
	}
}

func TestReplaceFileReplacesALinkAndFollowsNone(t *testing.T) {
	r, img := hostileRoot(t)
	os.Symlink("/etc/shadow", filepath.Join(img, "real/passwd"))
	if err := r.replaceFile("/real/passwd", []byte("x")); err != nil {
		t.Fatal(err)
	}
	if st, err := os.Lstat(filepath.Join(img, "real/passwd")); err != nil || !st.Mode().IsRegular() {
		t.Errorf("not a regular file: %v, %v", st, err)
	}
}

func TestReadFileIgnoresWhatIsNoSmallFile(t *testing.T) {
	r, img := hostileRoot(t)
	if err := unix.Mkfifo(filepath.Join(img, "real/fifo"), 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err := os.Create(filepath.Join(img, "real/huge")); err == nil {
		f.Truncate(maxTable + 1)
		f.Close()
	}
	for _, name := range []string{"/real/fifo", "/real/huge", "/real", "/none"} {
		if b := r.readFile(name); b != nil {
			t.Errorf("readFile(%q) gives %d bytes", name, len(b))
		}
	}
}

func TestAddAccountKeepsWhatTheImageKnows(t *testing.T) {
	r, img := hostileRoot(t)
	if err := r.ensureDir("etc"); err != nil {
		t.Fatal(err)
	}
	etc := filepath.Join(img, "etc")
	os.WriteFile(filepath.Join(etc, "passwd"), []byte("user:x:5:6::/elsewhere:/bin/sh"), 0o644)
	os.WriteFile(filepath.Join(etc, "shadow"), []byte("root:*:1::::::\n"), 0o640)
	if err := addAccount(r, guest.User{Name: "user", UID: 1000, GID: 1000, Home: "/home/user"}, "/bin/sh"); err != nil {
		t.Fatal(err)
	}
	passwd := r.readFile("/etc/passwd")
	if a, ok := parseAccount(passwd, "user"); !ok || a.uid != 5 {
		t.Errorf("the image's user became %+v", a)
	}
	if a, ok := parseAccount(passwd, "root"); !ok || a.uid != 0 {
		t.Errorf("root is missing: %q", passwd)
	}
	if !hasName(r.readFile("/etc/shadow"), "user") || !hasName(r.readFile("/etc/group"), "user") {
		t.Error("user is missing from shadow or group")
	}
	if st, _ := os.Stat(filepath.Join(etc, "shadow")); st.Mode().Perm() != 0o640 {
		t.Errorf("mode of shadow became %v", st.Mode())
	}
}

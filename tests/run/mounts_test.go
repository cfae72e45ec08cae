package run

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/daemon"
	"caisson.dev/caisson/internal/testenv"
)

// ownedDir makes a directory that belongs to an ordinary account.
func ownedDir(t *testing.T, uid int) string {
	t.Helper()
	paths(t)
	testenv.Need(t, "idmap")
	dir := filepath.Join(t.TempDir(), "mount")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(dir, uid, uid); err != nil {
		t.Fatal(err)
	}
	return dir
}

func write(t *testing.T, path, text string, mode os.FileMode, uid int) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(path, uid, uid); err != nil {
		t.Fatal(err)
	}
}

func mounted(req api.RunRequest, dir string, readOnly bool) api.RunRequest {
	req.Mounts = []api.Mount{{Source: dir, Target: "/data", ReadOnly: readOnly}}
	return req
}

// Attack row 22: read-only is enforced on the host, so that guest root with
// every trick it has changes nothing.
func TestI6_ReadOnlyMountStaysReadOnly(t *testing.T) {
	dir := ownedDir(t, 4321)
	write(t, filepath.Join(dir, "file"), "original", 0o666, 4321)
	for _, user := range []string{"user", "root"} {
		req := mounted(sh(`cat /data/file; cd /data
			echo x > file; echo x > new; rm -f file; mv file other; chmod 777 file; ln file hard; mkdir d; truncate -s 0 file
			mount -o remount,rw /data; mount --bind /tmp /data; umount /data
			unshare -Urm sh -c 'mount -o remount,rw /data; echo x > /data/file'
			perl -e 'open my $f, "+<", "/data/file" and print $f "x"; utime 1, 1, "/data/file"; unlink "/data/file"' ; true`), dir, true)
		req.User = user
		o := run(t, req)
		if !strings.HasPrefix(o.out, "original") {
			t.Errorf("%s cannot read the mount: %q %q", user, o.out, o.err)
		}
		names, err := os.ReadDir(dir)
		if err != nil || len(names) != 1 {
			t.Errorf("after %s the directory holds %v, %v", user, names, err)
		}
		b, err := os.ReadFile(filepath.Join(dir, "file"))
		fi, serr := os.Stat(filepath.Join(dir, "file"))
		if string(b) != "original" || err != nil || serr != nil || fi.Mode() != 0o666 {
			t.Errorf("after %s the file is %q, %v, %v", user, b, fi.Mode(), err)
		}
	}
}

func TestI6_WritesArriveAsTheOwner(t *testing.T) {
	dir := ownedDir(t, 4321)
	write(t, filepath.Join(dir, "private"), "mine", 0o600, 4321)
	o := run(t, mounted(sh("cat /data/private; echo made > /data/new; mkdir /data/sub; echo deep > /data/sub/f; stat -c %U /data/private"), dir, false))
	if o.out != "mineuser\n" {
		t.Errorf("inside: %q, %q; want the owner's file to be the user's", o.out, o.err)
	}
	for _, name := range []string{"new", "sub", "sub/f"} {
		var st syscall.Stat_t
		if err := syscall.Lstat(filepath.Join(dir, name), &st); err != nil {
			t.Error(err)
			continue
		}
		if st.Uid != 4321 || st.Gid != 4321 {
			t.Errorf("%s belongs to %d:%d on the host, want 4321", name, st.Uid, st.Gid)
		}
	}
}

// The trap of the facts: as root a guest left a setuid root file on the host.
func TestI6_NoSetuidOrDeviceArrives(t *testing.T) {
	dir := ownedDir(t, 4321)
	write(t, filepath.Join(dir, "old"), "x", 0o755, 4321)
	for _, user := range []string{"user", "root"} {
		req := mounted(sh(`cd /data; cp /bin/sh s1 2>&1; chmod 4755 s1; chmod 6755 old; chmod g+s .; install -m 4755 /bin/sh s2
			perl -e 'use Fcntl; sysopen(my $f, "s3", O_CREAT|O_WRONLY, 04777); mkdir "d", 02777; chmod 02777, "d"'
			mknod dev c 1 3; mknod blk b 8 0; mkfifo pipe
			perl -e 'syscall(260, -100, "s1", 0, 0, 0)'; chown root s1; chown 0:0 old; true`), dir, false)
		req.User = user
		run(t, req)
	}
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		fi, err := d.Info()
		if err != nil {
			return err
		}
		if fi.Mode()&(os.ModeSetuid|os.ModeSetgid|os.ModeDevice) != 0 {
			t.Errorf("%s arrived with mode %v", path, fi.Mode())
		}
		if st := fi.Sys().(*syscall.Stat_t); st.Uid != 4321 {
			t.Errorf("%s belongs to %d", path, st.Uid)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// Files of others in the mounted directory keep their protection, also from
// guest root.
func TestI6_MountGivesTheOwnersAuthorityAndNoMore(t *testing.T) {
	dir := ownedDir(t, 4321)
	write(t, filepath.Join(dir, "roots"), "secret-of-root", 0o600, 0)
	write(t, filepath.Join(dir, "others"), "secret-of-5555", 0o640, 5555)
	for _, user := range []string{"user", "root"} {
		req := mounted(sh("cat /data/roots /data/others; true"), dir, false)
		req.User = user
		if o := run(t, req); strings.Contains(o.out, "secret") {
			t.Errorf("%s read %q", user, o.out)
		}
	}
}

func TestMountOfASingleFile(t *testing.T) {
	dir := ownedDir(t, 4321)
	write(t, filepath.Join(dir, "a"), "content", 0o644, 4321)
	write(t, filepath.Join(dir, "b"), "neighbour", 0o644, 4321)
	req := sh("cat /in/config; ls /in")
	req.Mounts = []api.Mount{{Source: filepath.Join(dir, "a"), Target: "/in/config", ReadOnly: true}}
	if o := run(t, req); o.out != "contentconfig\n" {
		t.Errorf("inside: %q %q", o.out, o.err)
	}
}

func TestI12_RefusedMounts(t *testing.T) {
	paths(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/etc", link); err != nil {
		t.Fatal(err)
	}
	for _, source := range []string{"/", "/etc", "/etc/../etc", link, "/root", "/home", "/proc", "/run", "/var/run", "/dev/null", paths(t).Data, "/nonexistent"} {
		req := mounted(sh("true"), source, true)
		if _, err := tryRun(t, t.Context(), req, ""); err == nil || api.Hint(err) == "" {
			t.Errorf("mount of %s: %v (hint %q)", source, err, api.Hint(err))
		}
	}
}

// Packing a directory into an image would otherwise be the way to mount it.
func TestI12_ImagesOfRefusedDirectories(t *testing.T) {
	for _, image := range []string{"dir:/root", "/etc", "dir:/", "oci:/root", "docker-archive:/etc/shadow", "dir:" + paths(t).Data} {
		req := sh("true")
		req.Image = image
		if _, err := tryRun(t, t.Context(), req, ""); err == nil || api.Hint(err) == "" {
			t.Errorf("image %s: %v (hint %q)", image, err, api.Hint(err))
		}
	}
}

// A guest that may write where a path leads must not decide where it leads.
func TestI6_PathsThroughSymlinksAreRefused(t *testing.T) {
	dir := ownedDir(t, 4321)
	write(t, filepath.Join(dir, "script.sh"), "echo ran", 0o644, 4321)
	for name, to := range map[string]string{"tree": "/srv", "planted.sh": filepath.Join(dir, "script.sh")} {
		if err := os.Symlink(to, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	through := filepath.Join(dir, "tree")
	for name, req := range map[string]api.RunRequest{
		"mount":    mounted(sh("true"), through, true),
		"image":    {Level: "gvisor", Image: "dir:" + through, Argv: []string{"true"}},
		"artifact": {Level: "gvisor", Image: "host", Argv: []string{"true"}, Artifacts: []api.Artifact{{Path: "x", Dest: filepath.Join(through, "x")}}},
	} {
		if _, err := tryRun(t, t.Context(), req, ""); err == nil || !strings.Contains(err.Error(), "symlink") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := daemon.ReadScript(filepath.Join(dir, "planted.sh"), paths(t)); err == nil || !strings.Contains(err.Error(), "symlink") {
		t.Errorf("script: %v", err)
	}
	if b, err := daemon.ReadScript(filepath.Join(dir, "script.sh"), paths(t)); err != nil || string(b) != "echo ran" {
		t.Errorf("the script itself: %q, %v", b, err)
	}
}

// The attack: the guest replaces the directory of an artifact, which lies in
// its writable mount, by a link to somewhere else on the host.
func TestI6_ArtifactDestinationInAWritableMountIsRefused(t *testing.T) {
	dir := ownedDir(t, 4321)
	if err := os.Mkdir(filepath.Join(dir, "out"), 0o777); err != nil {
		t.Fatal(err)
	}
	req := mounted(sh("true"), dir, false)
	req.Artifacts = []api.Artifact{{Path: "/tmp/x", Dest: filepath.Join(dir, "out", "x")}}
	if _, err := tryRun(t, t.Context(), req, ""); err == nil || !strings.Contains(err.Error(), "writable mount") {
		t.Errorf("%v", err)
	}
	for _, dest := range []string{"/etc/cron.d/x", "/usr/local/bin/x", filepath.Join(paths(t).Data, "x")} {
		req := sh("true")
		req.Artifacts = []api.Artifact{{Path: "/tmp/x", Dest: dest}}
		if _, err := tryRun(t, t.Context(), req, ""); err == nil {
			t.Errorf("destination %s was taken", dest)
		}
	}
}

func TestI12_NestedMountsAreRefused(t *testing.T) {
	dir := ownedDir(t, 4321)
	req := sh("true")
	req.Mounts = []api.Mount{{Source: dir, Target: "/data"}, {Source: dir, Target: "/data/sub/deep"}}
	if _, err := tryRun(t, t.Context(), req, ""); err == nil || !strings.Contains(err.Error(), "lies in mount target") {
		t.Errorf("%v", err)
	}
}

// What the program left running neither changes artifacts under the copy nor
// uses the processor past its limits.
func TestI5_NothingRunsWhileArtifactsAreCopied(t *testing.T) {
	paths(t)
	out := t.TempDir()
	req := sh(`perl -e 'exit if fork; open STDOUT, ">/dev/null"; open STDERR, ">/dev/null"; while (1) { truncate "/home/user/f", 1e7; truncate "/home/user/f", 4096 }' &
		perl -e 'exit if fork; open STDOUT, ">/dev/null"; open STDERR, ">/dev/null"; while (1) {}'
		head -c 4096 /dev/zero > /home/user/f; echo good > g; sleep 0.3`)
	req.Artifacts = []api.Artifact{{Path: "/home/user/f", Dest: filepath.Join(out, "f")}, {Path: "g", Dest: filepath.Join(out, "g")}}
	o := run(t, req)
	for _, a := range o.Artifacts {
		if a.Error != "" {
			t.Errorf("%s: %s", a.Path, a.Error)
		}
	}
	if b, err := os.ReadFile(filepath.Join(out, "g")); string(b) != "good\n" || err != nil {
		t.Errorf("the second artifact: %q, %v", b, err)
	}
}

// An image cannot make the ordinary user root by its /etc/passwd.
func TestI12_TheImageDoesNotChooseTheUsersID(t *testing.T) {
	paths(t)
	dir := t.TempDir()
	for _, d := range []string{"etc", "bin"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write(t, filepath.Join(dir, "etc/passwd"), "user:x:0:0::/:/bin/sh\nroot:x:1000:1000::/:/bin/sh\n", 0o644, 0)
	b, err := os.ReadFile(idProgram(t))
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(dir, "bin/id"), string(b), 0o755, 0)
	for user, want := range map[string]string{"user": "1000", "root": "0"} {
		req := api.RunRequest{Level: "gvisor", Image: "dir:" + dir, Argv: []string{"/bin/id"}, User: user}
		if o := run(t, req); strings.TrimSpace(o.out) != want {
			t.Errorf("%s runs as %q, want uid %s (%s)", user, o.out, want, o.err)
		}
	}
}

// idProgram is a static program that prints its uid, built here: a directory
// image has no libraries.
func idProgram(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "main.go"), "package main\n\nimport \"os\"\n\nfunc main() { os.Stdout.WriteString(itoa(os.Getuid())) }\n\nfunc itoa(n int) string {\n\tif n < 10 {\n\t\treturn string(rune('0' + n))\n\t}\n\treturn itoa(n/10) + string(rune('0'+n%10))\n}\n", 0o644, 0)
	out := filepath.Join(dir, "id")
	cmd := exec.Command("go", "build", "-o", out, filepath.Join(dir, "main.go"))
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GO111MODULE=off")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	return out
}

func TestArtifactsAreCopiedOut(t *testing.T) {
	out := t.TempDir()
	req := sh(`mkdir -p result/sub; echo a > result/a; echo b > result/sub/b; chmod 4755 result/a; ln -s /etc/passwd result/link; echo single > one; exit 3`)
	req.Artifacts = []api.Artifact{
		{Path: "result", Dest: filepath.Join(out, "tree")},
		{Path: "/home/user/one", Dest: filepath.Join(out, "one")},
		{Path: "missing", Dest: filepath.Join(out, "missing")},
	}
	o := run(t, req)
	if o.ExitCode != 3 || len(o.Artifacts) != 3 {
		t.Fatalf("exit %d, artifacts %+v", o.ExitCode, o.Artifacts)
	}
	for name, want := range map[string]string{"tree/a": "a\n", "tree/sub/b": "b\n", "one": "single\n"} {
		b, err := os.ReadFile(filepath.Join(out, name))
		if err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
	if fi, err := os.Stat(filepath.Join(out, "tree/a")); err != nil || fi.Mode().Perm() != 0o755 || fi.Mode()&os.ModeSetuid != 0 {
		t.Errorf("tree/a: %v, %v", fi.Mode(), err)
	}
	if _, err := os.Lstat(filepath.Join(out, "tree/link")); err == nil {
		t.Error("a symlink was copied out")
	}
	if o.Artifacts[2].Error == "" || o.Artifacts[1].SHA256 == "" {
		t.Errorf("artifacts %+v", o.Artifacts)
	}
}

// Attack rows 42 and 94: what is at the destination cannot lead the writer
// elsewhere.
func TestI6_ArtifactCannotBeLedAstray(t *testing.T) {
	paths(t)
	out, elsewhere := t.TempDir(), t.TempDir()
	target := filepath.Join(elsewhere, "target")
	write(t, target, "untouched", 0o644, 0)
	if err := os.Symlink(target, filepath.Join(out, "f")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, filepath.Join(out, "d")); err != nil {
		t.Fatal(err)
	}
	req := sh("echo new > f; mkdir d; echo x > d/target")
	req.Artifacts = []api.Artifact{{Path: "f", Dest: filepath.Join(out, "f")}, {Path: "d", Dest: filepath.Join(out, "d")}}
	o := run(t, req)
	if b, err := os.ReadFile(target); string(b) != "untouched" || err != nil {
		t.Errorf("the link's target is %q now, %v", b, err)
	}
	if fi, err := os.Lstat(filepath.Join(out, "f")); err != nil || !fi.Mode().IsRegular() {
		t.Errorf("f is %v, %v", fi, err)
	}
	if o.Artifacts[1].Error == "" {
		t.Error("a directory was copied over a link")
	}
}

func TestI5_ArtifactsHaveALimit(t *testing.T) {
	out := t.TempDir()
	req := sh("head -c 3m /dev/zero > big; echo s > small")
	req.Limits.Artifacts = 1 * api.MiB
	req.Artifacts = []api.Artifact{{Path: "big", Dest: filepath.Join(out, "big")}, {Path: "small", Dest: filepath.Join(out, "small")}}
	o := run(t, req)
	if !strings.Contains(o.Artifacts[0].Error, "limit on artifacts") {
		t.Errorf("artifacts %+v", o.Artifacts)
	}
	if names, err := os.ReadDir(out); err != nil || len(names) > 1 {
		t.Errorf("left behind: %v, %v", names, err)
	}
}

// Attack row 85: what the host keeps to itself in /usr stays there.
func TestI6_HostImageShowsOnlyWhatEverybodyMayRead(t *testing.T) {
	paths(t)
	for name, mode := range map[string]os.FileMode{"closed": 0o600, "group": 0o640, "open": 0o644} {
		path := fmt.Sprintf("/usr/share/caisson-test-%s-%d", name, os.Getpid())
		write(t, path, "content-of-"+name, mode, 0)
		t.Cleanup(func() { os.Remove(path) })
	}
	o := run(t, asRoot(sh(fmt.Sprintf("id -u; cat /usr/share/caisson-test-*-%d; ls /usr/local /opt /home /root /var /run /etc", os.Getpid()))))
	if strings.Contains(o.out, "content-of-closed") || strings.Contains(o.out, "content-of-group") {
		t.Errorf("guest root read a closed file:\n%s", o.out)
	}
	if !strings.HasPrefix(o.out, "0\n") || !strings.Contains(o.out, "content-of-open") {
		t.Errorf("the probe is broken, as it cannot read an open file as root:\n%s%s", o.out, o.err)
	}
	if strings.Contains(o.out, "shadow") {
		t.Errorf("the host's /etc is inside:\n%s", o.out)
	}
}

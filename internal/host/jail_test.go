package host_test

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"caisson.dev/caisson/internal/host"
	"caisson.dev/caisson/internal/reexec"
	"caisson.dev/caisson/internal/testenv"
)

var profiles = map[string]host.Profile{
	"pure": host.ProfilePure, "net": host.ProfileNet, "files": host.ProfileFiles,
}

func init() {
	for name, p := range profiles {
		reexec.Register("jail-"+name, func() int { return jailChild(p) })
	}
	reexec.Register("jail-nothing", func() int { return jailChild(host.Profile{}) })
	reexec.Register("jail-parent", jailParent)
}

// jailChild enters the jail and does what its first argument says.
func jailChild(p host.Profile) int {
	if err := host.EnterJail(p); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 125
	}
	act, ok := jailActs[os.Args[1]]
	if !ok {
		fmt.Fprintln(os.Stderr, "no act", os.Args[1])
		return 124
	}
	if err := act(); err != nil {
		fmt.Println(err)
		return 1
	}
	return 0
}

// wait says that the child is inside, and stays until its stdin ends.
func wait() error {
	fmt.Println("inside")
	_, err := io.Copy(io.Discard, os.Stdin)
	return err
}

// startWaiting starts a child that is inside when startWaiting returns, and
// ends when the returned function is called.
func startWaiting(t *testing.T, j host.Jail) (*exec.Cmd, func()) {
	t.Helper()
	j.Args = append([]string{"wait"}, j.Args...)
	inR, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	errFile, err := os.Create(filepath.Join(t.TempDir(), "stderr"))
	if err != nil {
		t.Fatal(err)
	}
	defer errFile.Close()
	j.Stdin, j.Stdout, j.Stderr = inR, outW, errFile
	cmd, err := j.Start()
	inR.Close()
	outW.Close()
	defer outR.Close()
	if err != nil {
		inW.Close()
		t.Fatal(err)
	}
	end := func() {
		inW.Close()
		cmd.Wait()
	}
	if line, _ := bufio.NewReader(outR).ReadString('\n'); line != "inside\n" {
		end()
		text, _ := os.ReadFile(errFile.Name())
		t.Fatalf("child did not enter its jail: %q %s", line, text)
	}
	return cmd, end
}

// run starts a child that does one act and returns its output and end.
func run(t *testing.T, j host.Jail) (string, error) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	j.Stdout, j.Stderr = w, w
	cmd, err := j.Start()
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	out, _ := io.ReadAll(r)
	return strings.TrimSpace(string(out)), cmd.Wait()
}

func TestI15_JailHoldsNothing(t *testing.T) {
	testenv.Need(t, "root", "seccomp", "nocgo")
	cg := newCgroup(t, host.Limits{Pids: 64})
	shared := t.TempDir()
	// Descriptors that the parent left open and inheritable on purpose.
	leak, err := unix.Open("/etc", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(leak)
	given, err := os.Open("/etc/hostname")
	if err != nil {
		t.Fatal(err)
	}
	defer given.Close()
	t.Setenv("SECRET", "canary")

	cmd, end := startWaiting(t, host.Jail{
		Argv0: reexec.Argv0("jail-pure"), Files: []*os.File{given}, TmpBytes: 1 << 20, Cgroup: cg,
		Root: map[string][]byte{"/etc/resolv.conf": []byte("nameserver 192.0.2.1\n")},
		Dirs: []host.JailDir{{Source: shared, Target: "/out"}},
	})
	defer end()
	pid := cmd.Process.Pid

	for _, task := range tasks(t, pid) {
		got := status(t, task)
		want := map[string]string{
			"Uid": ids(host.JailUID), "Gid": ids(host.JailGID), "Groups": "",
			"NoNewPrivs": "1", "Seccomp": "2", "Seccomp_filters": "1",
			"CapInh": noCaps, "CapPrm": noCaps, "CapEff": noCaps, "CapBnd": noCaps, "CapAmb": noCaps,
		}
		maps.DeleteFunc(got, func(k, _ string) bool { _, ok := want[k]; return !ok })
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s/status (-want +got):\n%s", task, diff)
		}
	}
	if diff := cmp.Diff([]string{
		"/ ro,nosuid,nodev,noexec tmpfs",
		"/out ro,nosuid,nodev,noexec ext4",
		"/tmp rw,nosuid,nodev,noexec tmpfs",
	}, mounts(t, pid)); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"pipe", "pipe", shared + "/stderr", "/etc/hostname"},
		descriptors(t, pid), cmp.Comparer(samePath)); diff != "" {
		t.Errorf("descriptors (-want +got):\n%s", diff)
	}
	if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); err != nil || len(env) != 0 {
		t.Errorf("environment is %q, %v", env, err)
	}
	for _, ns := range []string{"mnt", "net", "pid", "ipc", "uts", "cgroup"} {
		if nsOf(t, pid, ns) == nsOf(t, os.Getpid(), ns) {
			t.Errorf("shares our %s namespace", ns)
		}
	}
	if cwd, _ := os.Readlink(fmt.Sprintf("/proc/%d/cwd", pid)); cwd != "/" {
		t.Errorf("cwd is %q", cwd)
	}
	limits, _ := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	for _, want := range []string{"Max core file size 0 0 bytes", "Max open files 1024 1024 files"} {
		if !strings.Contains(strings.Join(strings.Fields(string(limits)), " "), want) {
			t.Errorf("limits lack %q:\n%s", want, limits)
		}
	}
	if sid, _ := unix.Getsid(pid); sid != pid {
		t.Errorf("session is %d, not its own", sid)
	}
	if err := cg.Verify(pid); err != nil {
		t.Error(err)
	}
	if n, err := net.Interfaces(); err != nil || len(n) == 0 {
		t.Errorf("our own network is gone: %v %v", n, err)
	}
}

// samePath lets the name of a temporary file pass.
func samePath(a, b string) bool {
	return a == b || strings.HasSuffix(a, "/stderr") && strings.HasSuffix(b, "/stderr")
}

const noCaps = "0000000000000000"

func ids(id int) string { return strings.TrimSpace(strings.Repeat(fmt.Sprint(id)+" ", 4)) }

func tasks(t *testing.T, pid int) []string {
	t.Helper()
	dirs, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*", pid))
	if err != nil || len(dirs) < 2 {
		t.Fatalf("threads of %d: %v %v (a Go program has several)", pid, dirs, err)
	}
	return dirs
}

func status(t *testing.T, dir string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(dir + "/status")
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for line := range strings.Lines(string(text)) {
		k, v, _ := strings.Cut(line, ":")
		all[k] = strings.Join(strings.Fields(v), " ")
	}
	return all
}

func mounts(t *testing.T, pid int) (all []string) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/mountinfo", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		before, after, _ := strings.Cut(line, " - ")
		f := strings.Fields(before)
		opts := strings.ReplaceAll(f[5], ",relatime", "")
		all = append(all, f[4]+" "+opts+" "+strings.Fields(after)[0])
	}
	slices.Sort(all)
	return all
}

// descriptors lists what they are, without the poller of the Go runtime.
func descriptors(t *testing.T, pid int) (all []string) {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd/", pid)
	for fd := 0; fd < 1024; fd++ {
		target, err := os.Readlink(dir + fmt.Sprint(fd))
		if err != nil || strings.HasPrefix(target, "anon_inode:[event") {
			continue
		}
		kind, _, _ := strings.Cut(target, ":[")
		all = append(all, kind)
	}
	return all
}

func nsOf(t *testing.T, pid int, name string) string {
	t.Helper()
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, name))
	if err != nil {
		t.Fatal(err)
	}
	return link
}

func TestI15_JailUsesAUserNamespaceWithoutRoot(t *testing.T) {
	testenv.Need(t, "root", "userns", "seccomp", "nocgo")
	exe := copySelf(t)
	cmd := exec.Command(exe)
	cmd.Args = []string{reexec.Argv0("jail-parent"), "posture"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345}}
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if want := "Uid 12345 CapEff " + noCaps + " CapBnd " + noCaps + " Seccomp 2 NoNewPrivs 1\n"; string(out) != want {
		t.Errorf("got %q, want %q", out, want)
	}
}

// copySelf makes the test program reachable by another uid.
func copySelf(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "caisson-self-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	os.Chmod(dir, 0o755)
	data, err := os.ReadFile("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	exe := filepath.Join(dir, "self")
	if err := os.WriteFile(exe, data, 0o755); err != nil {
		t.Fatal(err)
	}
	return exe
}

// jailParent starts a jailed child in a process of its own. "posture" prints
// what the child holds; "die" prints the child's pid and leaves it behind.
func jailParent() int {
	inR, inW, _ := os.Pipe()
	outR, outW, _ := os.Pipe()
	cmd, err := host.Jail{Argv0: reexec.Argv0("jail-pure"), Args: []string{"wait"},
		Stdin: inR, Stdout: outW, Stderr: os.Stderr}.Start()
	if err != nil {
		fmt.Println(err)
		return 1
	}
	outW.Close()
	bufio.NewReader(outR).ReadString('\n')
	if os.Args[1] == "die" {
		fmt.Println(cmd.Process.Pid)
		io.Copy(io.Discard, os.Stdin)
		return 0
	}
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", cmd.Process.Pid))
	var show []string
	for _, key := range []string{"Uid", "CapEff", "CapBnd", "Seccomp", "NoNewPrivs"} {
		_, rest, _ := bytes.Cut(text, []byte("\n"+key+":"))
		show = append(show, key, strings.Fields(string(rest))[0])
	}
	fmt.Println(strings.Join(show, " "))
	inW.Close()
	cmd.Wait()
	return 0
}

func TestI15_JailWithNetworkKeepsOursAndNothingElse(t *testing.T) {
	testenv.Need(t, "root", "seccomp", "nocgo")
	cmd, end := startWaiting(t, host.Jail{Argv0: reexec.Argv0("jail-net"), Network: true})
	defer end()
	if nsOf(t, cmd.Process.Pid, "net") != nsOf(t, os.Getpid(), "net") {
		t.Error("has a network namespace of its own")
	}
	for _, ns := range []string{"mnt", "pid", "ipc", "uts", "cgroup"} {
		if nsOf(t, cmd.Process.Pid, ns) == nsOf(t, os.Getpid(), ns) {
			t.Errorf("shares our %s namespace", ns)
		}
	}
	for _, act := range []string{"tcp", "udp"} {
		if out, err := run(t, host.Jail{Argv0: reexec.Argv0("jail-net"), Args: []string{act}, Network: true}); err != nil {
			t.Errorf("%s over loopback: %v %s", act, err, out)
		}
	}
}

func TestI15_JailDiesWithItsParent(t *testing.T) {
	testenv.Need(t, "root", "seccomp", "nocgo")
	parent := reexec.Command("jail-parent", "die")
	stdin, err := parent.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer stdin.Close()
	stdout, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	var child int
	_, err = fmt.Fscan(stdout, &child)
	if err != nil {
		t.Fatal(err)
	}
	pidfd, err := unix.PidfdOpen(child, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(pidfd)
	parent.Process.Kill()
	parent.Wait()
	if n, err := unix.Poll([]unix.PollFd{{Fd: int32(pidfd), Events: unix.POLLIN}}, 5000); n != 1 {
		t.Fatalf("child %d still lives 5 s after its parent: %v", child, err)
	}
}

func TestJailRefuses(t *testing.T) {
	testenv.Need(t, "root", "nocgo")
	dir, err := os.Open("/etc")
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/etc", link); err != nil {
		t.Fatal(err)
	}
	pure := reexec.Argv0("jail-pure")
	for name, test := range map[string]struct {
		jail host.Jail
		want string
	}{
		"a directory as descriptor": {host.Jail{Argv0: pure, Files: []*os.File{dir}}, "is a directory"},
		"a symlink as source":       {host.Jail{Argv0: pure, Dirs: []host.JailDir{{Source: link, Target: "/out"}}}, "symlink"},
		"an empty profile":          {host.Jail{Argv0: reexec.Argv0("jail-nothing")}, "allows nothing"},
	} {
		t.Run(name, func(t *testing.T) {
			test.jail.Args = []string{"nothing"}
			out, err := run(t, test.jail)
			var exit *exec.ExitError
			if !errors.As(err, &exit) || exit.ExitCode() != 125 || !strings.Contains(out, test.want) {
				t.Errorf("got %q, %v; want status 125 and %q", out, err, test.want)
			}
		})
	}
	for name, j := range map[string]host.Jail{
		"no mode":       {},
		"relative path": {Argv0: pure, Root: map[string][]byte{"etc/x": nil}},
		"climbing path": {Argv0: pure, Root: map[string][]byte{"/../x": nil}},
		"nil file":      {Argv0: pure, Files: []*os.File{nil}},
		"huge root":     {Argv0: pure, Root: map[string][]byte{"/x": make([]byte, 9<<20)}},
	} {
		if _, err := j.Start(); err == nil {
			t.Errorf("%s: started", name)
		}
	}
}

// BenchmarkJail is compared with BenchmarkNoJail: the same program started
// without one. Both end as soon as they run.
func BenchmarkJail(b *testing.B) {
	testenv.Need(b, "root", "nocgo")
	for _, name := range []string{"pure", "net", "files"} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				cmd, err := host.Jail{Argv0: reexec.Argv0("jail-" + name), Args: []string{"nothing"}}.Start()
				if err != nil {
					b.Fatal(err)
				}
				if err := cmd.Wait(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func init() { reexec.Register("no-jail", func() int { return 0 }) }

func BenchmarkNoJail(b *testing.B) {
	for b.Loop() {
		if err := reexec.Command("no-jail").Run(); err != nil {
			b.Fatal(err)
		}
	}
}

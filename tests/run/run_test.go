// Package run tests `caisson run` from end to end: real sandboxes, on the host
// image, with nothing in them but what every Debian has (a shell, coreutils
// and perl).
package run

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/daemon"
	"caisson.dev/caisson/internal/guest/program"
	"caisson.dev/caisson/internal/host"
	"caisson.dev/caisson/internal/reexec"
	"caisson.dev/caisson/internal/testenv"
)

func TestMain(m *testing.M) {
	reexec.Dispatch()
	os.Exit(testenv.Run(cleaned{m}))
}

// cleaned removes the shared directories after the last test.
type cleaned struct{ m *testing.M }

func (c cleaned) Run() int {
	defer os.RemoveAll(base())
	return c.m.Run()
}

func base() string { return filepath.Join(os.TempDir(), "caisson") }

// paths are shared by all tests, so that the guest image is made once.
func paths(t testing.TB) daemon.Paths {
	t.Helper()
	_, _, err := program.Binary()
	testenv.NeedGuest(t, err)
	return daemon.Paths{Data: filepath.Join(base(), "data"), Run: filepath.Join(base(), "run")}
}

// outcome is a result with what the program wrote.
type outcome struct {
	*api.RunResult
	out, err string
}

// sh is a request that runs a shell command as the ordinary user.
func sh(command string) api.RunRequest {
	return api.RunRequest{Level: "gvisor", Image: "host", Argv: []string{"/bin/sh", "-c", command}}
}

func asRoot(req api.RunRequest) api.RunRequest {
	req.User = "root"
	return req
}

func run(t testing.TB, req api.RunRequest) outcome {
	t.Helper()
	o, err := tryRun(t, t.Context(), req, "")
	if err != nil {
		t.Fatalf("%v (hint: %s)", err, api.Hint(err))
	}
	return o
}

// tryRun runs req with stdin as its input; "" is /dev/null.
func tryRun(t testing.TB, ctx context.Context, req api.RunRequest, stdin string) (outcome, error) {
	t.Helper()
	p := paths(t)
	files := map[string]*os.File{}
	for _, name := range []string{"in", "out", "err"} {
		f, err := os.Create(filepath.Join(t.TempDir(), name))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		files[name] = f
	}
	stdio := daemon.Stdio{Out: files["out"], Err: files["err"]}
	if stdin != "" {
		if _, err := files["in"].WriteString(stdin); err != nil {
			t.Fatal(err)
		}
		rewind(t, files["in"])
		stdio.In = files["in"]
	}
	res, err := daemon.Run(ctx, daemon.RunOptions{Paths: p, Began: time.Now(), Stdio: stdio}, req)
	if err != nil {
		return outcome{}, err
	}
	return outcome{res, read(t, files["out"]), read(t, files["err"])}, nil
}

func rewind(t testing.TB, f *os.File) {
	t.Helper()
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
}

func read(t testing.TB, f *os.File) string {
	t.Helper()
	rewind(t, f)
	b, err := io.ReadAll(io.LimitReader(f, 32<<20))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestExitCodesAreTheProgramsOwn(t *testing.T) {
	for _, tc := range []struct {
		command string
		code    int
		end     string
	}{
		{"exit 0", 0, api.EndExited},
		{"exit 3", 3, api.EndExited},
		{"exit 255", 255, api.EndExited},
		{"kill -TERM $$", 143, api.EndSignaled},
		{"kill -SEGV $$", 139, api.EndSignaled},
	} {
		o := run(t, sh(tc.command))
		if o.ExitCode != tc.code || o.Code != tc.end {
			t.Errorf("%s: exit %d %s (%s), want %d %s", tc.command, o.ExitCode, o.Code, o.Reason, tc.code, tc.end)
		}
		if o.Level != "gvisor" {
			t.Errorf("I3: level %q in the result", o.Level)
		}
	}
}

func TestStreamsArriveWholeAndApart(t *testing.T) {
	o := run(t, sh("echo out; echo err >&2"))
	if o.out != "out\n" || o.err != "err\n" {
		t.Errorf("stdout %q, stderr %q", o.out, o.err)
	}
	text := strings.Repeat("0123456789abcdef\n", 100_000)
	o, err := tryRun(t, t.Context(), sh("cat"), text)
	if err != nil {
		t.Fatal(err)
	}
	if o.out != text {
		t.Errorf("cat returned %d of %d bytes, or others", len(o.out), len(text))
	}
}

func TestI4_NothingOfTheCallerIsInside(t *testing.T) {
	t.Setenv("AWS_SECRET_ACCESS_KEY", "canary-7391")
	req := sh("env; cat /proc/*/environ 2>/dev/null; ls -l /proc/self/fd/; pwd")
	req.Env = map[string]string{"GIVEN": "yes"}
	o := run(t, req)
	if strings.Contains(o.out+o.err, "canary-7391") {
		t.Errorf("the caller's variable is inside:\n%s", o.out)
	}
	if !strings.Contains(o.out, "GIVEN=yes") {
		t.Errorf("the variable that was given is not:\n%s", o.out)
	}
	for _, line := range strings.Split(o.out, "\n") {
		name, _, ok := strings.Cut(line, "=")
		if ok && !strings.Contains("GIVEN PATH HOME USER LOGNAME PWD OLDPWD SHLVL _", name) {
			t.Errorf("unexpected variable %q", line)
		}
	}
}

// Attack row 92: descriptors that the caller had open.
func TestI6_NoDescriptorIsInherited(t *testing.T) {
	secret, err := os.CreateTemp(t.TempDir(), "secret")
	if err != nil {
		t.Fatal(err)
	}
	defer secret.Close()
	o := run(t, asRoot(sh("ls /proc/self/fd; for i in 3 4 5 6 7 8 9 10 11 12; do cat <&$i; done 2>/dev/null; true")))
	// ls itself opens the directory, as the lowest free descriptor.
	if got := strings.Join(strings.Fields(o.out), " "); got != "0 1 2 3" {
		t.Errorf("descriptors inside: %q", got)
	}
}

func TestInterruptStopsTheGuestFirst(t *testing.T) {
	for name, tc := range map[string]struct {
		command string
		code    int
	}{
		"handled": {`trap 'echo bye; exit 7' INT; echo go; while :; do sleep 0.05; done`, 7},
		"ignored": {`trap '' INT TERM; echo go; while :; do sleep 0.05; done`, api.ExitInterrupt},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			out, in, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer out.Close()
			go func() {
				buf := make([]byte, 8)
				_, _ = out.Read(buf)
				cancel()
				_, _ = io.Copy(io.Discard, out)
			}()
			res, err := daemon.Run(ctx, daemon.RunOptions{Paths: paths(t), Began: time.Now(), Stdio: daemon.Stdio{Out: in}}, sh(tc.command))
			in.Close()
			if err != nil {
				t.Fatal(err)
			}
			if res.ExitCode != tc.code {
				t.Errorf("exit %d (%s), want %d", res.ExitCode, res.Reason, tc.code)
			}
		})
	}
}

// A healthy guest that works for some time is never taken for a lost one, and
// the channel to it still works at the end.
func TestI16_HealthyGuestIsNotMissed(t *testing.T) {
	req := sh("end=$(( $(date +%s) + 7 )); while [ $(date +%s) -lt $end ]; do :; done; echo done > f")
	req.Artifacts = []api.Artifact{{Path: "f", Dest: filepath.Join(t.TempDir(), "f")}}
	o := run(t, req)
	if len(o.Events) != 0 || o.ExitCode != 0 || o.Artifacts[0].Error != "" {
		t.Errorf("events %q, exit %d, artifacts %+v", o.Events, o.ExitCode, o.Artifacts)
	}
}

func TestTwentyRunsAtOnce(t *testing.T) {
	paths(t) // skips here, not in a goroutine
	errs := make(chan error, 20)
	for i := range 20 {
		go func() {
			o, err := tryRun(t, t.Context(), sh(fmt.Sprintf("echo %d; hostname; cat /tmp/x 2>/dev/null; echo %d > /tmp/x", i, i)), "")
			if want := fmt.Sprintf("%d\ncaisson\n", i); err == nil && o.out != want {
				err = fmt.Errorf("run %d printed %q, want %q", i, o.out, want)
			}
			errs <- err
		}()
	}
	for range 20 {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
}

func TestScriptsRunWithTheirArguments(t *testing.T) {
	req := api.RunRequest{Level: "gvisor", Image: "host", Argv: []string{"a b", "--c"}}
	req.Script = &api.Script{Lang: "bash", Name: "dir/job.sh", Code: []byte(`echo "$0|$1|$2"`)}
	if o := run(t, req); o.out != "/home/user/job.sh|a b|--c\n" {
		t.Errorf("script printed %q", o.out)
	}
	req.Script = &api.Script{Lang: "bash", Code: []byte(`echo "$((6*7))"`)}
	req.Argv = nil
	if o := run(t, req); o.out != "42\n" {
		t.Errorf("code printed %q", o.out)
	}
}

// killMode is a process that runs something long and is killed by the test.
const killMode = "test-killed-run"

func init() {
	reexec.Register(killMode, func() int {
		var p daemon.Paths
		if json.NewDecoder(os.Stdin).Decode(&p) != nil {
			return 1
		}
		_, _ = daemon.Run(context.Background(), daemon.RunOptions{Paths: p, Stdio: daemon.Stdio{Out: os.Stdout}}, sh("echo up; sleep 100"))
		return 0
	})
}

// kill -9 of caisson: the sandbox is gone at once, and the next run removes
// what is left.
func TestI13_KilledRunIsCleanedByTheNext(t *testing.T) {
	p := paths(t)
	cmd := reexec.Command(killMode)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	if err := json.NewEncoder(in).Encode(p); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(out, make([]byte, 3)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	left := leftovers(t, p)
	if len(left) == 0 {
		t.Fatal("the probe is broken: a killed run left nothing to clean")
	}
	id, _ := strings.CutSuffix(strings.TrimPrefix(left[0], "lock/"), ".lock")
	cgs, err := host.DetectCgroups()
	if err != nil {
		t.Fatal(err)
	}
	g, err := cgs.Open(id)
	if err != nil {
		t.Fatalf("the probe is broken: no cgroup of %q: %v", id, err)
	}
	g.Close()
	run(t, sh("true"))
	if left := leftovers(t, p); len(left) != 0 {
		t.Errorf("left after the next run: %v", left)
	}
	if g, err := cgs.Open(id); err == nil {
		g.Close()
		t.Errorf("the cgroup of %s is left after the next run", id)
	}
}

// leftovers lists what is in the run directory, locks first.
func leftovers(t *testing.T, p daemon.Paths) (names []string) {
	t.Helper()
	for _, dir := range []string{"lock", "sandbox", "gvisor"} {
		entries, err := os.ReadDir(filepath.Join(p.Run, dir))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, dir+"/"+e.Name())
		}
	}
	return names
}

// A reader that has seen enough ends the run, as it would end a program.
func TestClosedOutputEndsTheRun(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		_, _ = io.ReadFull(r, make([]byte, 10))
		r.Close()
	}()
	res, err := daemon.Run(t.Context(), daemon.RunOptions{Paths: paths(t), Began: time.Now(), Stdio: daemon.Stdio{Out: w}}, sh("yes"))
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	if res.ExitCode != 141 {
		t.Errorf("exit %d (%s), want 141 as for SIGPIPE", res.ExitCode, res.Reason)
	}
}

package image

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/host"
	"caisson.dev/caisson/internal/reexec"
)

// Debian images are made by mmdebstrap, which runs the maintainer scripts of
// packages. It gets a user namespace whose root is an account that owns
// nothing on the host, so not one instruction of it, or of a script, runs as
// the host's root; and what it writes is read as a hostile archive like any
// other (row 86).
//
// It keeps the network, and reads the machine's own apt configuration for
// proxies and keys: what it downloads, and from where, is the operator's.
const (
	modeDebian     = "image-debian"
	modeDebianRoot = "image-debian-root"
)

// bootstrapIDs are the host ids 1878917120 and up, as many as a Debian system
// uses. They lie in the range that systemd keeps for containers, at its end,
// far from what adduser hands out of /etc/subuid.
const (
	bootstrapIDs = 0x6FFE0000
	bootstrapLen = 1 << 16
)

func init() {
	reexec.Register(modeDebian, debianMain)
	reexec.Register(modeDebianRoot, debianRootMain)
}

type debianSource struct {
	ref    Ref
	mirror string // "" leaves the choice to mmdebstrap
	tmp    string // directory of the store for the tree while it is made
}

var reMirror = &pattern{max: 2000, expr: `https?://[A-Za-z0-9][A-Za-z0-9.:/_~+-]*`}

func (s *debianSource) state(context.Context) (string, error) { return "", nil }

func (s *debianSource) feed(ctx context.Context, progress Progress) (*feed, error) {
	tool, err := findTool("mmdebstrap")
	if err != nil {
		return nil, err
	}
	if s.mirror != "" && !reMirror.MatchString(s.mirror) {
		return nil, &api.Error{Code: "image_mirror", Message: fmt.Sprintf("cannot use mirror %q: not a plain http or https URL", s.mirror)}
	}
	work, err := newScratch(s.tmp)
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, work.remove())
	}
	run := func() error {
		err := s.bootstrap(ctx, tool, work.dir, w, progress)
		return errors.Join(err, work.remove())
	}
	return &feed{req: unpackRequest{Form: formTar}, files: []*os.File{r}, wait: inBackground(w, run)}, nil
}

func (s *debianSource) args() []string {
	args := []string{"--mode=unshare", "--variant=minbase", "--format=tar"}
	if len(s.ref.Packages) > 0 {
		args = append(args, "--include="+strings.Join(s.ref.Packages, ","))
	}
	args = append(args, s.ref.Suite, "-")
	if s.mirror != "" {
		args = append(args, s.mirror)
	}
	return args
}

// bootstrap runs mmdebstrap to its end, in a work directory of its own.
func (s *debianSource) bootstrap(ctx context.Context, tool, dir string, out *os.File, progress Progress) error {
	if os.Geteuid() == 0 {
		if err := os.Chown(dir, bootstrapIDs, bootstrapIDs); err != nil {
			return fmt.Errorf("cannot prepare bootstrap: %w", err)
		}
	}
	cmd := reexec.Command(modeDebian, append([]string{tool}, s.args()...)...)
	cmd.Dir = dir
	cmd.Stdout = out
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	cmd.WaitDelay = 5 * time.Second
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start bootstrap: %w", err)
	}
	out.Close() // so that the reader sees the end when mmdebstrap does
	stop := context.AfterFunc(ctx, func() { cmd.Process.Kill() })
	defer stop()
	complaint := followLines(stderr, progress)
	switch err := cmd.Wait(); {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil:
		return debianError(s.ref, complaint, err)
	}
	return nil
}

// debianMain is started in the work directory, which the new root could not
// reach by its path through our private ones, and hands it on as "here". It
// waits, so that everything below dies with it, and it with its parent.
func debianMain() int {
	if os.Geteuid() != 0 {
		return complain(becomeBootstrap("/var/tmp", os.Args[1:]))
	}
	runtime.LockOSThread() // the child dies with the thread that started it
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: bootstrapIDs, Size: bootstrapLen}}
	cmd := reexec.Command(modeDebianRoot, os.Args[1:]...)
	cmd.Dir = ""
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID |
			syscall.CLONE_NEWIPC | syscall.CLONE_NEWUTS,
		UidMappings: ids, GidMappings: ids,
		Credential: &syscall.Credential{}, // root of the new namespace
		Pdeathsig:  syscall.SIGKILL,
	}
	return complain(cmd.Run())
}

// debianRootMain is the root of the new namespaces and becomes mmdebstrap.
func debianRootMain() int {
	m, err := os.ReadFile("/proc/self/uid_map")
	if f := strings.Fields(string(m)); err != nil || len(f) != 3 || f[0] != "0" || f[1] == "0" {
		return complain(errors.New("refused to bootstrap as the host's root"))
	}
	if err := syscall.Mount(".", "/tmp", "", syscall.MS_BIND, ""); err != nil {
		return complain(fmt.Errorf("cannot mount the work directory: %w", err))
	}
	return complain(becomeBootstrap("/tmp", os.Args[1:]))
}

// becomeBootstrap returns only when it fails.
func becomeBootstrap(tmp string, argv []string) error {
	if err := os.Chdir("/"); err != nil {
		return err
	}
	fds, err := host.ListFDs()
	if err != nil {
		return err
	}
	for _, fd := range fds {
		if fd.Num > 2 { // row 92
			syscall.CloseOnExec(fd.Num)
		}
	}
	syscall.Umask(0o022)
	return syscall.Exec(argv[0], argv, []string{
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "TMPDIR=" + tmp, "HOME=/nonexistent", "LC_ALL=C.UTF-8", "DEBIAN_FRONTEND=noninteractive",
	})
}

func complain(err error) int {
	exit, ok := errors.AsType[*exec.ExitError](err)
	switch {
	case err == nil:
		return 0
	case ok && exit.ExitCode() > 0:
		return exit.ExitCode() // it said why
	}
	fmt.Fprintln(os.Stderr, "E:", err)
	return 125
}

// followLines shows what mmdebstrap says and keeps its last complaint.
func followLines(r io.Reader, progress Progress) (complaint string) {
	sc := bufio.NewScanner(io.LimitReader(r, 16<<20))
	for sc.Scan() {
		line := printable(sc.Bytes()[:min(len(sc.Bytes()), 300)])
		switch {
		case strings.HasPrefix(line, "I: "):
			progress(Update{Stage: StageBuild, Note: line[3:]})
		case strings.HasPrefix(line, "E: "):
			if complaint == "" || strings.Contains(line, "Unable to locate") {
				complaint = line[3:]
			}
		}
	}
	io.Copy(io.Discard, r)
	return complaint
}

func debianError(r Ref, complaint string, err error) error {
	if complaint == "" {
		complaint = err.Error()
	}
	hint := "check the suite and package names, and that 'apt-get update' works on this machine"
	if strings.Contains(complaint, "user namespace") || strings.Contains(complaint, "subuid") {
		hint = "run as root, or give your account a range: usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER"
	}
	return &api.Error{
		Code: "image_bootstrap", Message: fmt.Sprintf("cannot build %q: mmdebstrap: %s", r, complaint), Hint: hint, Err: err,
	}
}

// findTool looks where distributions put programs, not in the caller's PATH.
func findTool(name string) (string, error) {
	for _, dir := range []string{"/usr/bin/", "/usr/sbin/", "/bin/"} {
		if st, err := os.Stat(dir + name); err == nil && st.Mode().IsRegular() && st.Mode()&0o111 != 0 {
			return dir + name, nil
		}
	}
	return "", &api.Error{
		Code:    "image_tool_missing",
		Message: fmt.Sprintf("cannot build a Debian image: %s is not installed", name),
		Hint:    "apt-get install " + name,
	}
}

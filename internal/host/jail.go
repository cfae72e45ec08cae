package host

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// JailUID is the account of every jailed child unless its caller picks another.
// It is not 65534 ("nobody"), which NFS, idmapped mounts and user namespaces
// also use for "somebody else's file": a child with that id would own those.
// 65520 to 65533 is the one range below 65536 that neither Debian (reserved)
// nor systemd (unused; DynamicUser ends at 65519) ever hands out.
const (
	JailUID = 65530
	JailGID = 65530
)

// jailNoFile is enough for the streams of one run. A child that serves many
// connections asks for more.
const jailNoFile = 1024

// jailRootMax bounds Jail.Root: a CA bundle is about 220 KiB.
const jailRootMax = 8 << 20

// Jail describes an unprivileged child of ours that reads hostile bytes: a
// mode of this same binary whose first act is EnterJail.
type Jail struct {
	Argv0 string   // of the mode, from reexec.Argv0
	Args  []string // what the mode finds in os.Args[1:] after EnterJail

	UID, GID uint32 // 0 means JailUID and JailGID; it never means root

	Files                 []*os.File // descriptors 3, 4, … of the child; no directories
	Stdin, Stdout, Stderr *os.File   // nil is /dev/null

	Network  bool              // false: an empty network namespace of its own
	Root     map[string][]byte // read-only files at absolute paths; nothing else is there
	Dirs     []JailDir         // host directories that the child may use
	TmpBytes int64             // size of a writable tmpfs at /tmp; 0 for none
	NoFile   uint64            // open files; 0 for 1024

	Cgroup         *Cgroup // the child joins it before anything else
	SurvivesParent bool    // false: SIGKILL as soon as the parent is gone
}

// JailDir is a host directory that is mounted into a jail, without setuid,
// devices or programs. A directory is never handed over as a descriptor: from
// one that lies outside the root, openat("..") climbs to the host's root.
type JailDir struct {
	Source   string // absolute host path; its last component is no symlink
	Target   string // absolute path inside, such as "/out"
	Writable bool   // the file modes still apply to the child's uid
}

// Validate reports the first field that Start would refuse.
func (j Jail) Validate() error {
	switch {
	case j.Argv0 == "":
		return errors.New("cannot start a jail: no argv[0]")
	case j.TmpBytes < 0:
		return fmt.Errorf("cannot start a jail: tmp size %d is negative", j.TmpBytes)
	}
	var total int
	for name, data := range j.Root {
		if err := jailPath(name); err != nil {
			return err
		}
		total += len(data)
	}
	if total > jailRootMax {
		return fmt.Errorf("cannot start a jail: root files of %d bytes are over %d", total, jailRootMax)
	}
	for _, d := range j.Dirs {
		if !path.IsAbs(d.Source) {
			return fmt.Errorf("cannot start a jail: directory %q is not absolute", d.Source)
		}
		if err := jailPath(d.Target); err != nil {
			return err
		}
	}
	for i, f := range j.Files {
		if f == nil {
			return fmt.Errorf("cannot start a jail: file %d is nil", i)
		}
	}
	return nil
}

func jailPath(name string) error {
	if !path.IsAbs(name) || path.Clean(name) != name || name == "/" {
		return fmt.Errorf("cannot start a jail: %q is no clean absolute path", name)
	}
	return nil
}

// Start runs the child. It returns when the kernel has the program, not when
// the child is inside its jail: what it prints or answers says that. A child
// that cannot enter its jail exits with status 125 and its reason on stderr.
func (j Jail) Start() (*exec.Cmd, error) {
	if err := j.Validate(); err != nil {
		return nil, err
	}
	if err := CheckNoCgo(); err != nil {
		return nil, fmt.Errorf("cannot start jail %q: %w", j.Argv0, err)
	}
	j.UID, j.GID = cmp.Or(j.UID, JailUID), cmp.Or(j.GID, JailGID)
	cfg := jailConfig{
		UID: j.UID, GID: j.GID,
		Files: len(j.Files), NoFile: cmp.Or(j.NoFile, jailNoFile),
		TmpBytes: j.TmpBytes, Dirs: j.Dirs,
		UserNS: os.Geteuid() != 0, SurvivesParent: j.SurvivesParent,
	}
	extra, err := j.extraFiles(&cfg)
	defer closeAll(extra)
	if err != nil {
		return nil, fmt.Errorf("cannot start jail %q: %w", j.Argv0, err)
	}
	cmd := &exec.Cmd{
		Path: "/proc/self/exe", // the open inode: right after an upgrade too
		Args: append([]string{j.Argv0, jailArg(len(j.Files))}, j.Args...),
		Env:  []string{},
		Dir:  "/",

		ExtraFiles:  append(append([]*os.File{}, j.Files...), extra...),
		SysProcAttr: j.sysProcAttr(cfg.UserNS),
		WaitDelay:   5 * time.Second,
	}
	// A nil *os.File in an io.Reader would not be a nil io.Reader.
	if j.Stdin != nil {
		cmd.Stdin = j.Stdin
	}
	if j.Stdout != nil {
		cmd.Stdout = j.Stdout
	}
	if j.Stderr != nil {
		cmd.Stderr = j.Stderr
	}
	if onStarter(func() { err = cmd.Start() }); err != nil {
		return nil, fmt.Errorf("cannot start jail %q: %w", j.Argv0, err)
	}
	return cmd, nil
}

// extraFiles are the descriptors behind j.Files that EnterJail reads and
// closes: the configuration, ourselves (to notice our death), and one
// cgroup.procs for each hierarchy of the cgroup.
func (j Jail) extraFiles(cfg *jailConfig) (files []*os.File, err error) {
	var procs []*os.File
	if j.Cgroup != nil {
		if procs, err = j.Cgroup.openProcs(); err != nil {
			return nil, err
		}
		cfg.CgroupFDs = len(procs)
	}
	config, err := cfg.memfd(j.Root)
	if err != nil {
		return procs, err
	}
	self, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return append(procs, config), fmt.Errorf("cannot open own pidfd: %w", err)
	}
	return append([]*os.File{config, os.NewFile(uintptr(self), "pidfd")}, procs...), nil
}

func (j Jail) sysProcAttr(userns bool) *syscall.SysProcAttr {
	attr := &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWIPC | unix.CLONE_NEWUTS |
			unix.CLONE_NEWPID | unix.CLONE_NEWCGROUP,
		Setsid: true,
	}
	if !j.Network {
		attr.Cloneflags |= unix.CLONE_NEWNET
	}
	if !j.SurvivesParent {
		attr.Pdeathsig = syscall.SIGKILL
	}
	if userns {
		// Exec as a uid other than 0 would drop the new namespace's
		// capabilities; ambient ones carry the few that EnterJail needs.
		attr.Cloneflags |= unix.CLONE_NEWUSER
		attr.UidMappings = []syscall.SysProcIDMap{{ContainerID: int(j.UID), HostID: os.Geteuid(), Size: 1}}
		attr.GidMappings = []syscall.SysProcIDMap{{ContainerID: int(j.GID), HostID: os.Getegid(), Size: 1}}
		attr.AmbientCaps = []uintptr{unix.CAP_SYS_ADMIN, unix.CAP_SETPCAP}
	}
	return attr
}

func closeAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

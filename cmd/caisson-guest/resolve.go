package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"caisson.dev/caisson/internal/guest/process"
)

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// maxPath is the longest path that is looked at, the kernel's PATH_MAX.
const maxPath = 4096

var errBadPath = errors.New("bad path")

// resolvePath makes the path of a request absolute: "~" is the user's home,
// a relative path lies below it, and an empty one is the work directory.
// It only works on the text; what the path leads to is the kernel's business.
func resolvePath(name, home, workDir string) (string, error) {
	if len(name) > maxPath || strings.ContainsRune(name, 0) {
		return "", fmt.Errorf("%w: too long or with a zero byte", errBadPath)
	}
	switch {
	case name == "" && workDir != "":
		return path.Clean(workDir), nil
	case name == "" || name == "~":
		return path.Clean(home), nil
	case strings.HasPrefix(name, "~/"):
		return path.Join(home, name[2:]), nil
	case name[0] == '~':
		return "", fmt.Errorf("%w: %q: the home of another user is not known", errBadPath, name)
	case name[0] == '/':
		return path.Clean(name), nil
	default:
		return path.Join(home, name), nil
	}
}

// refusedError is a request that cannot be done as asked: the client's fault.
type refusedError struct{ text string }

func (e *refusedError) Error() string { return e.text }

func refuse(format string, args ...any) error { return &refusedError{fmt.Sprintf(format, args...)} }

// notFoundError is a command that the users' root does not have.
type notFoundError struct{ cmd string }

func (e *notFoundError) Error() string {
	return fmt.Sprintf("executable %q not found in $PATH", e.cmd)
}

// environment puts together what a process gets: ours, the sandbox's, the
// request's; later ones win. Nothing is inherited.
func environment(a account, all ...map[string]string) (map[string]string, error) {
	env := map[string]string{"PATH": defaultPath, "HOME": a.home, "USER": a.name, "LOGNAME": a.name}
	for _, m := range all {
		for k, v := range m {
			if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
				return nil, refuse("bad environment variable %q", k)
			}
			env[k] = v
		}
	}
	return env, nil
}

func environ(env map[string]string) []string {
	out := make([]string, 0, len(env))
	for _, k := range slices.Sorted(maps.Keys(env)) {
		out = append(out, k+"="+env[k])
	}
	return out
}

// resolve turns a request into a spec. Everything that it looks up is looked
// up in the users' root with the user's permissions.
func (b *box) resolve(user account, msg *process.StartRequest) (spec, error) {
	c := msg.GetProcess()
	if c.GetCmd() == "" {
		return spec{}, refuse("no command")
	}
	_, _, workDir, boxEnv := b.settings()
	env, err := environment(user, boxEnv, c.GetEnvs())
	if err != nil {
		return spec{}, err
	}
	sp := spec{user: user, args: append([]string{c.GetCmd()}, c.GetArgs()...), env: environ(env)}
	for _, a := range sp.args {
		if strings.ContainsRune(a, 0) {
			return spec{}, refuse("an argument holds a zero byte")
		}
	}
	if sp.dir, err = resolvePath(c.GetCwd(), user.home, workDir); err != nil {
		return spec{}, refuse("%v", err)
	}
	sp.stdin = msg.Stdin == nil || *msg.Stdin
	if msg.Pty != nil {
		sp.tty = sizeOf(msg.Pty)
	}
	err = b.files.as(user, func() error {
		if !isDir(sp.dir) {
			if c.GetCwd() != "" {
				return refuse("cwd '%s' does not exist", sp.dir)
			}
			sp.dir = "/" // a home that was never made
		}
		sp.path, err = findCommand(c.GetCmd(), env["PATH"])
		return err
	})
	return sp, err
}

func sizeOf(p *process.PTY) *ttySize {
	clamp := func(v uint32) uint16 { return uint16(min(max(v, 1), 1<<15)) }
	if p.GetSize() == nil {
		return &ttySize{80, 24}
	}
	return &ttySize{clamp(p.Size.Cols), clamp(p.Size.Rows)}
}

func isDir(name string) bool {
	st, err := os.Stat(name)
	return err == nil && st.IsDir() && unix.Access(name, unix.X_OK) == nil
}

// findCommand does what execvp does. Entries of PATH that are not absolute are
// passed over: they would mean another file in every directory.
func findCommand(cmd, list string) (string, error) {
	if strings.Contains(cmd, "/") {
		return cmd, nil // execve itself says what is wrong, from the right directory
	}
	for dir := range strings.SplitSeq(list, ":") {
		if !path.IsAbs(dir) {
			continue
		}
		name := path.Join(dir, cmd)
		st, err := os.Stat(name)
		if err == nil && st.Mode().IsRegular() && unix.Access(name, unix.X_OK) == nil {
			return name, nil
		}
	}
	return "", &notFoundError{cmd}
}

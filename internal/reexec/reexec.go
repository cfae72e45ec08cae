// Package reexec runs other programs that live in this same binary: the
// sandbox kernel, its file server, and the unprivileged children that read
// hostile bytes. It never decides anything; it only finds the mode that argv
// asks for and hands the process over before the command line is looked at.
//
// A mode is chosen by argv[0], which a caller of the installed command does
// not set by accident. Choosing one by hand gives no privilege that the caller
// does not already have.
package reexec

import (
	"fmt"
	"os"
	"os/exec"
)

// Self is the path of the running binary. It stays right when the file was
// replaced by an upgrade, because the kernel resolves it to the open inode.
const Self = "/proc/self/exe"

const prefix = "caisson-"

type mode struct {
	match func(args []string) bool
	main  func() int
}

var modes []mode

// Register adds the child mode called name. main gets os.Args[1:] as usual and
// returns the exit status. Call it from init or before Dispatch.
func Register(name string, main func() int) {
	argv0 := prefix + name
	RegisterMatch(func(args []string) bool { return args[0] == argv0 }, main)
}

// RegisterMatch adds a mode that recognises its own argv, for linked-in
// programs that choose their own name (gVisor's "runsc-sandbox").
func RegisterMatch(match func(args []string) bool, main func() int) {
	modes = append(modes, mode{match, main})
}

// Dispatch runs the mode that os.Args asks for and exits, or returns when the
// process is the command line itself. It is the first call of main, and of
// TestMain in packages that start children.
func Dispatch() {
	if len(os.Args) == 0 {
		fmt.Fprintln(os.Stderr, "caisson: error: started without argv[0]")
		os.Exit(126)
	}
	for _, m := range modes {
		if m.match(os.Args) {
			os.Exit(m.main())
		}
	}
}

// Argv0 returns the argv[0] that selects the mode called name.
func Argv0(name string) string { return prefix + name }

// Command prepares a child in the mode called name. Its environment is empty
// and its stdio is /dev/null until the caller says otherwise.
func Command(name string, args ...string) *exec.Cmd {
	return &exec.Cmd{
		Path: Self,
		Args: append([]string{Argv0(name)}, args...),
		Env:  []string{},
		Dir:  "/",
	}
}

// Package cli is the command line: one file per command. It turns flags into
// requests and results into text, and decides nothing about sandboxes.
package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/daemon"
)

// Version is set by the build.
var Version = "dev"

// Globals are the flags that every command takes.
type Globals struct {
	JSON bool   `help:"Print the result as JSON on stdout." name:"json"`
	Data string `help:"Directory for images." default:"${data}" placeholder:"DIR"`

	Stdout io.Writer `kong:"-"`
	Stderr io.Writer `kong:"-"`
	Began  time.Time `kong:"-"`
	code   int
}

// Paths are the directories that the flags ask for.
func (g *Globals) Paths() daemon.Paths {
	data, err := filepath.Abs(cmp.Or(g.Data, daemon.DefaultPaths.Data))
	if err != nil { // no working directory: what follows fails and says so
		data = g.Data
	}
	return daemon.Paths{Data: data, Run: daemon.DefaultPaths.Run}
}

type commands struct {
	Globals
	Run     runCmd     `cmd:"" help:"Run a program, or code that a model wrote, in a sandbox of its own."`
	Image   ImageCmd   `cmd:"" help:"List, pull, build and remove images."`
	Limits  limitsCmd  `cmd:"" help:"Show every limit, its default and its floor."`
	Version versionCmd `cmd:"" help:"Print the version."`
	Help    helpCmd    `cmd:"" help:"Show the help of a command."`
}

const description = `Runs code that nobody trusts: in a kernel of its own, with no network,
no files but those you name, and hard limits.

  caisson run script.py
  caisson run -c 'print(6*7)' --lang python`

// Main runs the command line and returns its exit status.
func Main(args []string, began time.Time) int {
	var c commands
	c.Stdout, c.Stderr, c.Began = os.Stdout, os.Stderr, began
	if isRun(args) {
		if c.Run.Spare = daemon.StartSpare(); c.Run.Spare != nil {
			defer c.Run.Spare.Close()
		}
	}
	args, c.Run.Argv = splitCommand(args)
	parser, err := kong.New(&c,
		kong.Name("caisson"),
		kong.Description(description),
		kong.UsageOnError(),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 100}),
		kong.Vars{"data": daemon.DefaultPaths.Data},
	)
	if err != nil {
		return c.fail(err)
	}
	args = withHelp(args)
	ctx, err := parser.Parse(args)
	if err != nil {
		return c.usage(err)
	}
	if err := ctx.Run(&c.Globals); err != nil {
		return c.fail(err)
	}
	return c.code
}

// isRun guesses whether this is going to be a run, before the flags are read.
// A wrong guess costs a process that ends at once.
func isRun(args []string) bool {
	ours, _ := splitCommand(args)
	return slices.Contains(ours, "run") && !slices.Contains(ours, "--help") && !slices.Contains(ours, "-h")
}

// splitCommand cuts "-- CMD ARG…" off, so that no flag of the program is ever
// taken for one of ours.
func splitCommand(args []string) (ours, program []string) {
	for i, a := range args {
		if a == "--" {
			return args[:i], args[i+1:]
		}
	}
	return args, nil
}

// withHelp turns what people type for help into --help, and --version into the
// command.
func withHelp(args []string) []string {
	switch {
	case len(args) == 0:
		return []string{"--help"}
	case args[0] == "help":
		return append(slices.Clone(args[1:]), "--help")
	case args[0] == "--version":
		return append([]string{"version"}, args[1:]...)
	}
	return args
}

type helpCmd struct {
	Command []string `arg:"" optional:"" help:"Command to explain."`
}

func (helpCmd) Help() string { return "Example:\n  caisson help run" }

func (c *commands) usage(err error) int {
	hint := "see caisson --help"
	var pe *kong.ParseError
	if errors.As(err, &pe) && pe.Context != nil && pe.Context.Selected() != nil {
		hint = "see caisson " + pe.Context.Selected().Path() + " --help"
	}
	c.say(&api.Error{Code: "usage", Message: err.Error(), Hint: hint})
	return api.ExitUsage
}

// fail prints one line of error and one of hint.
func (c *commands) fail(err error) int {
	c.say(err)
	switch api.Code(err) {
	case "internal":
		return api.ExitInternal
	case "interrupted":
		return api.ExitInterrupt
	case "usage", "symlink", "bad_limits", "bad_mount", "bad_env", "bad_lang", "bad_user", "nothing_to_run", "no_level",
		"mount_refused", "mount_unreadable", "bad_artifact", "image_reference", "image_name", "image_not_found":
		return api.ExitUsage
	}
	return api.ExitSetup
}

func (c *commands) say(err error) {
	if c.JSON {
		writeJSON(c.Stdout, map[string]any{"error": map[string]string{
			"code": api.Code(err), "message": err.Error(), "hint": api.Hint(err),
		}})
		return
	}
	p := newPalette(c.Stderr)
	fmt.Fprintf(c.Stderr, "%s %s\n", p.red("caisson: error:"), oneLine(err.Error()))
	if hint := api.Hint(err); hint != "" {
		fmt.Fprintf(c.Stderr, "%s %s\n", p.dim("caisson: hint:"), hint)
	}
}

// oneLine keeps an error on its line; the rest goes below, indented.
func oneLine(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n    ") }

type versionCmd struct{}

func (versionCmd) Help() string { return "Example:\n  caisson version --json" }

func (versionCmd) Run(g *Globals) error {
	if g.JSON {
		writeJSON(g.Stdout, map[string]string{"version": Version, "go": runtime.Version(), "os": runtime.GOOS, "arch": runtime.GOARCH})
		return nil
	}
	fmt.Fprintln(g.Stdout, "caisson", Version)
	return nil
}

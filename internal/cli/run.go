package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"caisson.dev/caisson/api"
	"caisson.dev/caisson/internal/daemon"
)

type runCmd struct {
	Script []string `arg:"" optional:"" passthrough:"partial" help:"Script to run and its arguments; or put a program after --."`

	Code     string   `short:"c" help:"Code to run, with --lang." placeholder:"CODE"`
	Lang     string   `help:"Language of the code: python, node or bash. Guessed from a script's name." placeholder:"LANG"`
	TTY      bool     `short:"t" help:"Give the program a terminal." name:"tty"`
	Image    string   `short:"i" help:"Root file system: host, a directory, an OCI image, debian:SUITE[,PACKAGE…]." default:"host"`
	UsrLocal bool     `help:"With the host image: /usr/local too." name:"usr-local"`
	Opt      bool     `help:"With the host image: /opt too."`
	Level    string   `help:"Isolation level; never another in its place." default:"gvisor"`
	Mount    []string `help:"Show a host directory or file inside. Read-only unless :rw." placeholder:"SRC:DST[:rw]" sep:"none"`
	Artifact []string `help:"Copy a file or directory out at the end." placeholder:"PATH[:DEST]" sep:"none"`
	Env      []string `short:"e" help:"Set a variable inside, where there is none otherwise." placeholder:"KEY=VALUE" sep:"none"`
	WorkDir  string   `short:"w" help:"Directory to start in." placeholder:"DIR" name:"workdir"`
	User     string   `short:"u" help:"user or root, inside." default:"user"`
	Quiet    bool     `short:"q" help:"Say nothing beside the program's own output."`
	Probe    bool     `help:"Only say whether this machine can run the level."`

	limitFlags `embed:"" group:"Limits"`

	Argv  []string      `kong:"-"` // what stood after --
	Spare *daemon.Spare `kong:"-"`
}

func (runCmd) Help() string {
	return `Examples:
  caisson run script.py --its-own-flag
  caisson run -c 'print(6*7)' --lang python
  caisson run --mount ./data:/data --artifact /tmp/plot.png:plot.png plot.py
  caisson run --image debian:bookworm,python3-pandas -- python3 -c 'import pandas'
  tar c src | caisson run --memory 1g --timeout 5m -- tar t

A SIZE is written like 512MiB, 512m or 2g; a TIME like 90s, 5m or 1h30m.

The exit code is the program's (128+N for signal N). Codes of Caisson itself:
  120 bad command line     121 no sandbox could be made, or a program that
  122 a limit ended it         succeeded but whose artifact could not be copied
  123 the sandbox was lost 124 interrupted before it ended 125 internal error`
}

func (c *runCmd) Run(g *Globals) error {
	if c.Probe {
		if err := daemon.Probe(context.Background(), c.Level, g.Paths()); err != nil {
			return err
		}
		if g.JSON {
			writeJSON(g.Stdout, map[string]any{"level": c.Level, "ready": true})
			return nil
		}
		fmt.Fprintf(g.Stdout, "isolation level %q can run here\n", c.Level)
		return nil
	}
	req, err := c.request(g)
	if err != nil {
		return err
	}
	streams, err := c.openStreams(g)
	if err != nil {
		return err
	}
	defer streams.close()
	ctx, stop := interruptible()
	defer stop()
	res, err := daemon.Run(ctx, daemon.RunOptions{
		Paths: g.Paths(), Began: g.Began, Stdio: streams.stdio,
		Terminal: streams.terminal, Progress: newProgress(g.Stderr, c.Quiet || g.JSON), Spare: c.Spare,
	}, req)
	streams.restore()
	if err != nil {
		return err
	}
	g.code = exitCode(res)
	if g.JSON {
		return streams.printJSON(g.Stdout, res)
	}
	if !c.Quiet {
		report(g.Stderr, res)
	}
	return nil
}

// interruptible ends its context on the first Ctrl-C or TERM, which stops the
// guest first; a second one kills us, and with us the sandbox.
// exitCode is the program's own unless that would hide that what the caller
// asked for is not there.
func exitCode(res *api.RunResult) int {
	failed := slices.ContainsFunc(res.Artifacts, func(a api.ArtifactResult) bool { return a.Error != "" })
	if res.ExitCode == 0 && failed {
		return api.ExitSetup
	}
	return res.ExitCode
}

// interruptible ends the context at the first signal. The second has its usual
// effect: it kills us, and the kernel everything that we started.
func interruptible() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.Background())
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	go func() {
		s := <-ch
		cancel()
		signal.Stop(ch)
		if s == syscall.SIGQUIT {
			signal.Ignore(s) // its usual effect is a trace of our goroutines
		}
		if s == os.Interrupt && isTerminal(os.Stderr) {
			fmt.Fprintln(os.Stderr, "\ncaisson: stopping; Ctrl-C again ends it at once")
		}
	}()
	return ctx, cancel
}

func (c *runCmd) request(g *Globals) (api.RunRequest, error) {
	req := api.RunRequest{
		Level: c.Level, Image: c.Image, HostLocal: c.UsrLocal, HostOpt: c.Opt,
		WorkDir: c.WorkDir, User: c.User, Limits: c.limits(), TTY: c.TTY,
	}
	var err error
	if req.Env, err = parseEnv(c.Env); err != nil {
		return req, err
	}
	for _, s := range c.Mount {
		m, err := parseMount(s)
		if err != nil {
			return req, err
		}
		req.Mounts = append(req.Mounts, m)
	}
	for _, s := range c.Artifact {
		a, err := parseArtifact(s)
		if err != nil {
			return req, err
		}
		req.Artifacts = append(req.Artifacts, a)
	}
	return req, c.program(&req, g)
}

// program fills in what to run: code, a script, or a command of the image.
func (c *runCmd) program(req *api.RunRequest, g *Globals) error {
	switch {
	case c.Code != "":
		if c.Lang == "" {
			return &api.Error{Code: "bad_lang", Message: "-c needs to know the language", Hint: "add --lang python, --lang node or --lang bash"}
		}
		req.Script = &api.Script{Lang: c.Lang, Code: []byte(c.Code)}
		req.Argv = append(c.Script, c.Argv...)
	case len(c.Script) > 0:
		return c.scriptFile(req, g)
	default:
		req.Argv = c.Argv
	}
	return nil
}

func (c *runCmd) scriptFile(req *api.RunRequest, g *Globals) error {
	name := c.Script[0]
	code, err := daemon.ReadScript(name, g.Paths())
	var ae *api.Error
	if errors.As(err, &ae) {
		return err
	}
	if err != nil {
		return &api.Error{Code: "usage", Message: fmt.Sprintf("cannot read script %q: %v", name, unwrapPath(err)), Hint: "to run a program of the image: caisson run -- " + strings.Join(c.Script, " "), Err: err}
	}
	lang := c.Lang
	if lang == "" {
		lang = langOf(name, code)
	}
	if lang == "" {
		return &api.Error{Code: "bad_lang", Message: fmt.Sprintf("cannot tell the language of %q", name), Hint: "add --lang python, --lang node or --lang bash"}
	}
	req.Script = &api.Script{Lang: lang, Name: name, Code: code}
	req.Argv = append(c.Script[1:], c.Argv...)
	return nil
}

func unwrapPath(err error) error {
	var pe *os.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// langOf guesses from the name, then from a #! line.
func langOf(name string, code []byte) string {
	for suffix, lang := range map[string]string{".py": "python", ".js": "node", ".mjs": "node", ".cjs": "node", ".sh": "bash", ".bash": "bash"} {
		if strings.HasSuffix(name, suffix) {
			return lang
		}
	}
	first, _, _ := strings.Cut(string(code[:min(len(code), 128)]), "\n")
	for word, lang := range map[string]string{"python": "python", "node": "node", "bash": "bash", "/sh": "bash"} {
		if strings.HasPrefix(first, "#!") && strings.Contains(first, word) {
			return lang
		}
	}
	return ""
}

// report says, after the program's own output, what its exit code does not:
// limits that were hit, what was cut off, what was copied out.
func report(w io.Writer, res *api.RunResult) {
	p := newPalette(w)
	note := func(format string, args ...any) {
		fmt.Fprintln(w, p.yellow("caisson:"), fmt.Sprintf(format, args...))
	}
	for _, e := range res.Events {
		note("%s", e)
	}
	if res.Code != api.EndExited && (len(res.Events) == 0 || res.Events[len(res.Events)-1] != res.Reason) {
		note("%s", res.Reason)
	}
	for i, o := range []*api.Output{res.Stdout, res.Stderr} {
		if o != nil && o.Truncated {
			note("%s truncated: kept %s of %s (--output)", []string{"stdout", "stderr"}[i], size(o.Kept), size(o.Bytes))
		}
	}
	for _, a := range res.Artifacts {
		if a.Error != "" {
			note("artifact %s not copied: %s", a.Path, a.Error)
		} else {
			note("artifact %s → %s (%s)%s", a.Path, a.Dest, size(a.Bytes), leftOut(a.Skipped))
		}
	}
}

// fill puts captured output into o, as text where it is text.
func leftOut(n int) string {
	switch n {
	case 0:
		return ""
	case 1:
		return "; 1 link or device left out"
	}
	return fmt.Sprintf("; %d links or devices left out", n)
}

func fill(o *api.Output, b []byte, limit int64) {
	if o == nil {
		return
	}
	o.Kept = int64(len(b))
	o.Bytes = max(o.Bytes, o.Kept)
	// A run that ended by a limit has no count; a full buffer says enough.
	o.Truncated = o.Bytes > o.Kept || o.Kept >= limit
	if utf8.Valid(b) {
		o.Data = string(b)
		return
	}
	o.DataB64 = b
}

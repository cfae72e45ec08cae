package image

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"runtime"
	"runtime/debug"
	"syscall"

	"caisson.dev/caisson/internal/host"
	"caisson.dev/caisson/internal/reexec"
)

// Two kinds of children read hostile bytes. "image-unpack" reads archives and
// manifests and has no network; "image-fetch" speaks TLS and HTTP and has no
// files. Neither has a uid, a capability or a path of the host.
const (
	modeUnpack = "image-unpack"
	modeFetch  = "image-fetch"
)

func init() {
	reexec.Register(modeUnpack, unpackMain)
	reexec.Register(modeFetch, fetchMain)
}

// unpackRequest is what the parent asks of an unpack child, on its stdin.
type unpackRequest struct {
	Limits Limits
	Form   sourceForm
	Tag    string // oci, archive
	Digest string // oci
	Layout bool   // oci: the source is a layout directory
	Known  string // oci: manifest digest that needs no unpacking
	Total  int64  // tar: bytes to expect, for progress; 0 when unknown
}

type sourceForm int

const (
	formNone    sourceForm = iota
	formTar                // one tar stream, no whiteouts
	formOCI                // pieces over the blob pipes
	formArchive            // a docker archive, a seekable file
)

// Descriptors of an unpack child.
const (
	fdSpool    = 3 // read and write, unlinked
	fdOut      = 4 // the new image
	fdStatus   = 5
	fdSource   = 6 // the stream, the file, or the blob replies
	fdRequests = 7 // formOCI: blob requests
)

// childMemory bounds a child's own memory: a base, and what an entry costs in
// the tree and while the image is planned.
func childMemory(lim Limits) uint64 { return 768<<20 + 700*uint64(lim.MaxEntries) }

// limitMemory comes before the jail, whose filter has no setrlimit. Going over
// ends the child alone.
func limitMemory(bytes uint64) error {
	debug.SetMemoryLimit(int64(bytes / 4 * 3))
	return syscall.Setrlimit(syscall.RLIMIT_DATA, &syscall.Rlimit{Cur: bytes, Max: bytes})
}

func unpackMain() int {
	var req unpackRequest
	if err := enter(host.ProfilePure, &req, func() uint64 { return childMemory(req.Limits) }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 125
	}
	report := &reporter{w: os.NewFile(fdStatus, "status")}
	if err := unpackChild(req, report); err != nil {
		report.fail(err)
		return 1
	}
	return 0
}

// enter reads the request, which is the parent's and not hostile, and then
// drops everything else.
func enter(p host.Profile, req any, memory func() uint64) error {
	if err := json.NewDecoder(io.LimitReader(os.Stdin, 1<<20)).Decode(req); err != nil {
		return fmt.Errorf("cannot read request: %w", err)
	}
	if err := limitMemory(memory()); err != nil {
		return fmt.Errorf("cannot limit memory: %w", err)
	}
	return host.EnterJail(p)
}

func unpackChild(req unpackRequest, report *reporter) error {
	spool, out := os.NewFile(fdSpool, "spool"), os.NewFile(fdOut, "image")
	source := os.NewFile(fdSource, "source")
	u := newUnpacker(req.Limits, spool)
	cfg, err := readSource(req, u, source, report)
	if err != nil {
		return err
	}
	size, err := u.write(out, func(done, total int64) { report.progress(StageWrite, done, total) })
	if err != nil {
		return err
	}
	if err := report.config(cfg); err != nil {
		return err
	}
	return report.send(message{Kind: msgDone, Done: size, Total: u.t.dropped}, nil)
}

func readSource(req unpackRequest, u *unpacker, source *os.File, report *reporter) (childConfig, error) {
	switch req.Form {
	case formTar:
		u.progress = func(done int64) { report.progress(StageUnpack, done, req.Total) }
		if err := u.apply(onlyReader{source}, false); err != nil {
			return childConfig{}, err
		}
		// A writer that still has padding to send must not meet a closed pipe.
		_, err := io.Copy(io.Discard, &boundedReader{r: onlyReader{source}, left: 1 << 30})
		return childConfig{}, err
	case formOCI:
		o := ociImage{
			src:    &blobClient{requests: os.NewFile(fdRequests, "requests"), replies: source},
			tag:    req.Tag,
			digest: req.Digest,
			layout: req.Layout,
			known:  req.Known,
			arch:   runtime.GOARCH,
			report: report.progress,
		}
		return o.unpack(u)
	case formArchive:
		a := dockerArchive{f: source, tag: req.Tag, arch: runtime.GOARCH, report: report.progress}
		return a.unpack(u)
	}
	return childConfig{}, errors.New("cannot unpack: unknown form of source")
}

// child is a running child of either kind, seen from the parent.
type child struct {
	mode   string
	status *os.File
	wait   func() error
	kill   func()
	stderr *bytes.Buffer
}

// startChild starts a child with req on its stdin. The caller closes its own
// copies of the jail's files, so that a pipe ends with who really uses it.
func startChild(mode string, req any, jail host.Jail, status *os.File) (*child, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return nil, fmt.Errorf("cannot encode request: %w", err)
	}
	in, inw, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer in.Close()
	defer inw.Close()
	errr, errw, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer errw.Close()
	jail.Argv0, jail.Stdin, jail.Stderr = reexec.Argv0(mode), in, errw
	cmd, err := jail.Start()
	if err != nil {
		errr.Close()
		return nil, err
	}
	c := &child{mode: mode, status: status, stderr: new(bytes.Buffer), kill: func() { cmd.Process.Kill() }}
	// A request is far smaller than a pipe, so this cannot block.
	inw.Write(body)
	copied := make(chan struct{})
	go func() {
		defer close(copied)
		defer errr.Close()
		io.Copy(c.stderr, io.LimitReader(errr, 4<<10))
		io.Copy(io.Discard, errr)
	}()
	c.wait = func() error { err := cmd.Wait(); <-copied; return err }
	return c, nil
}

// finish reads the child's words to the end, waits for it, and turns a death
// into an error. After ctx it kills the child.
func (c *child) finish(ctx context.Context, progress func(Stage, int64, int64)) (outcome, error) {
	defer c.status.Close()
	stop := context.AfterFunc(ctx, c.kill)
	defer stop()
	o, err := readOutcome(c.status, progress)
	if err != nil {
		c.kill()
	}
	werr := c.wait()
	switch {
	case ctx.Err() != nil:
		return o, context.Cause(ctx)
	case err != nil:
		return o, err
	case o.err != nil:
		return o, o.err
	case werr != nil || !o.ended && c.mode == modeUnpack:
		return o, failf(failInternal, "the %s child ended unexpectedly: %v %s", c.mode, werr, printable(c.stderr.Bytes()))
	}
	return o, nil
}

func closeFiles(files []*os.File) {
	for _, f := range files {
		if f != nil {
			f.Close()
		}
	}
}

// fetchRequest is what the parent asks of a fetch child, on its stdin.
type fetchRequest struct {
	Registry, Repo, Tag, Digest string
	Username, Password, Token   string // for this registry only
	Allow                       []netip.AddrPort
	AllowPrefixes               []netip.Prefix
}

// Descriptors of a fetch child.
const (
	fdFetchStatus   = 3
	fdFetchRequests = 4
	fdFetchReplies  = 5
)

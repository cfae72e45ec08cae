package image

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"syscall"

	"caisson.dev/caisson/internal/host"
)

// source is where an image is made from. There is one for each kind of
// reference that is not already in the store.
type source interface {
	// state is equal while what the source would give is. "" means that only
	// a refresh finds out.
	state(ctx context.Context) (string, error)
	// feed starts to give the unpack child what it asks for.
	feed(ctx context.Context, progress Progress) (*feed, error)
}

// feed is the running other end of an unpack child.
type feed struct {
	req   unpackRequest // Limits are filled in by the caller
	files []*os.File    // the child's, from fdSource on; closed by the caller once it has them
	size  int64         // bytes that unpacking is likely to need, 0 when unknown

	// wait returns when nothing of the feed is left. Its error is nil when the
	// feed ended because the child went away.
	wait func() error
}

func (s *Store) source(r Ref, o Options) source {
	switch r.Kind {
	case KindDir:
		return &dirSource{path: r.Path}
	case KindOCI:
		return &ociSource{ref: r}
	case KindDockerArchive:
		return &archiveSource{ref: r}
	case KindRegistry:
		return &registryPull{ref: r, opts: o}
	case KindDebian:
		return &debianSource{ref: r, mirror: cmp.Or(o.Mirror, aptMirror("/etc/apt", r.Suite)), tmp: s.path("tmp")}
	}
	return nil
}

// inBackground runs what writes to w, and closes it.
func inBackground(w io.Closer, run func() error) func() error {
	done := make(chan error, 1)
	go func() {
		err := run()
		w.Close()
		if errors.Is(err, syscall.EPIPE) || errors.Is(err, errAskerGone) {
			err = nil
		}
		done <- err
	}()
	return func() error { return <-done }
}

type dirSource struct {
	path  string
	bytes int64
}

func (s *dirSource) state(ctx context.Context) (string, error) {
	root, err := openDir(s.path)
	if err != nil {
		return "", err
	}
	defer root.Close()
	sum, bytes, err := fingerprintDir(ctx, root)
	s.bytes = bytes
	return sum, err
}

func (s *dirSource) feed(ctx context.Context, _ Progress) (*feed, error) {
	root, err := openDir(s.path)
	if err != nil {
		return nil, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		root.Close()
		return nil, err
	}
	return &feed{
		req: unpackRequest{Form: formTar, Total: s.bytes}, files: []*os.File{r}, size: s.bytes,
		wait: inBackground(w, func() error { defer root.Close(); return tarDir(ctx, root, w) }),
	}, nil
}

type ociSource struct{ ref Ref }

func (s *ociSource) state(context.Context) (string, error) {
	root, err := openDir(s.ref.Path)
	if err != nil {
		return "", err
	}
	defer root.Close()
	info, err := root.Stat("index.json")
	if err != nil {
		return "", failf(failFormat, "%q is no OCI layout: %w", s.ref.Path, err)
	}
	return fileState(info), nil
}

func (s *ociSource) feed(ctx context.Context, _ Progress) (*feed, error) {
	root, err := openDir(s.ref.Path)
	if err != nil {
		return nil, err
	}
	pipes, err := newBlobPipes()
	if err != nil {
		root.Close()
		return nil, err
	}
	return &feed{
		req:   unpackRequest{Form: formOCI, Layout: true, Tag: s.ref.Tag, Digest: s.ref.Digest},
		files: []*os.File{pipes.repliesR, pipes.requestsW},
		wait: inBackground(pipes.repliesW, func() error {
			defer root.Close()
			defer pipes.requestsR.Close()
			return serveBlobs(ctx, layoutSource{root}, pipes.requestsR, pipes.repliesW)
		}),
	}, nil
}

type blobPipes struct{ requestsR, requestsW, repliesR, repliesW *os.File }

func newBlobPipes() (p blobPipes, err error) {
	if p.requestsR, p.requestsW, err = os.Pipe(); err != nil {
		return p, err
	}
	if p.repliesR, p.repliesW, err = os.Pipe(); err != nil {
		closeFiles([]*os.File{p.requestsR, p.requestsW})
	}
	return p, err
}

type archiveSource struct{ ref Ref }

func (s *archiveSource) state(context.Context) (string, error) {
	info, err := os.Stat(s.ref.Path)
	if err != nil {
		return "", err
	}
	return fileState(info), nil
}

func (s *archiveSource) feed(context.Context, Progress) (*feed, error) {
	f, err := openFile(s.ref.Path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		f.Close()
		return nil, failf(failFormat, "%q is no regular file", s.ref.Path)
	}
	return &feed{
		req:   unpackRequest{Form: formArchive, Tag: s.ref.Tag},
		files: []*os.File{f}, size: info.Size(),
		wait: func() error { return nil },
	}, nil
}

func fileState(info os.FileInfo) string {
	st := info.Sys().(*syscall.Stat_t)
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %d %d %d", st.Dev, st.Ino, st.Size, st.Mtim.Nano(), st.Ctim.Nano()))
	return hex.EncodeToString(sum[:])
}

type registryPull struct {
	ref  Ref
	opts Options
}

func (s *registryPull) state(context.Context) (string, error) { return "", nil }

// feed connects a fetch child to the unpack child; the parent sees none of
// what passes between them.
func (s *registryPull) feed(ctx context.Context, _ Progress) (*feed, error) {
	auth, err := findCredentials(s.opts.AuthFile, s.ref.Registry)
	if err != nil {
		return nil, err
	}
	pipes, err := newBlobPipes()
	if err != nil {
		return nil, err
	}
	mine := []*os.File{pipes.requestsR, pipes.repliesW}
	defer func() { closeFiles(mine) }()
	statusR, statusW, err := os.Pipe()
	if err != nil {
		closeFiles([]*os.File{pipes.repliesR, pipes.requestsW})
		return nil, err
	}
	mine = append(mine, statusW)
	c, err := startChild(modeFetch, fetchRequest{
		Registry: s.ref.Registry, Repo: s.ref.Repo, Tag: s.ref.Tag, Digest: s.ref.Digest,
		Username: auth.username, Password: auth.password, Token: auth.token,
		Allow: literalAddress(s.ref.Registry), AllowPrefixes: s.opts.AllowPrefixes,
	}, host.Jail{
		Files:   []*os.File{statusW, pipes.requestsR, pipes.repliesW},
		Network: true,
		Root:    networkFiles(s.opts.CAFile),
	}, statusR)
	if err != nil {
		closeFiles([]*os.File{pipes.repliesR, pipes.requestsW, statusR})
		return nil, err
	}
	done := make(chan error, 1)
	go func() {
		_, err := c.finish(ctx, func(Stage, int64, int64) {})
		done <- err
	}()
	return &feed{
		req:   unpackRequest{Form: formOCI, Digest: s.ref.Digest},
		files: []*os.File{pipes.repliesR, pipes.requestsW},
		wait:  func() error { return <-done },
	}, nil
}

// literalAddress returns the address of a registry that the user wrote as an
// address with a port; it may be dialed even if its range is refused.
func literalAddress(registry string) []netip.AddrPort {
	a, err := netip.ParseAddrPort(registry)
	if err != nil {
		return nil
	}
	return []netip.AddrPort{netip.AddrPortFrom(a.Addr().Unmap(), a.Port())}
}

// caBundles are where distributions keep the certificates that they trust.
var caBundles = []string{
	"/etc/ssl/certs/ca-certificates.crt", // Debian, Ubuntu, Alpine, Arch
	"/etc/pki/tls/certs/ca-bundle.crt",   // Fedora, RHEL
	"/etc/ssl/ca-bundle.pem",             // openSUSE
	"/etc/ssl/cert.pem",
}

// networkFiles are what the fetch child's resolver and TLS need. Missing ones
// are left out and show as failed lookups or unknown authorities.
func networkFiles(caFile string) map[string][]byte {
	files := map[string][]byte{}
	for _, name := range []string{"/etc/resolv.conf", "/etc/hosts", "/etc/nsswitch.conf"} {
		if b, err := os.ReadFile(name); err == nil {
			files[name] = b
		}
	}
	for _, name := range append([]string{caFile}, caBundles...) {
		if b, err := os.ReadFile(name); err == nil && name != "" {
			files[caBundles[0]] = b
			break
		}
	}
	return files
}

// openDir and openFile open what the policy decided about: a path without any
// symlink, also where a sandbox could have put one since.
func openDir(path string) (*os.Root, error) {
	place, err := host.OpenPath(path)
	if err != nil {
		return nil, err
	}
	defer place.Close()
	return os.OpenRoot(fmt.Sprintf("/proc/self/fd/%d", place.Fd()))
}

func openFile(path string) (*os.File, error) {
	place, err := host.OpenPath(path)
	if err != nil {
		return nil, err
	}
	defer place.Close()
	return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", place.Fd()), os.O_RDONLY|syscall.O_NONBLOCK, 0)
}

package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/logs"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"

	"caisson.dev/caisson/internal/egress"
	"caisson.dev/caisson/internal/host"
)

// fetchMemory is generous for TLS, HTTP and one manifest at a time.
const fetchMemory = 512 << 20

func fetchMain() int {
	var req fetchRequest
	if err := enter(host.ProfileNet, &req, func() uint64 { return fetchMemory }); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 125
	}
	report := &reporter{w: os.NewFile(fdFetchStatus, "status")}
	err := fetchChild(req)
	if err != nil && !errors.Is(err, errAskerGone) {
		report.fail(err)
		return 1
	}
	return 0
}

func fetchChild(req fetchRequest) error {
	logs.Warn.SetOutput(io.Discard)
	src, err := newRegistrySource(req)
	if err != nil {
		return err
	}
	return serveBlobs(context.Background(), src, os.NewFile(fdFetchRequests, "requests"), os.NewFile(fdFetchReplies, "replies"))
}

// registrySource serves an image of a registry.
type registrySource struct {
	repo   name.Repository
	root   name.Reference
	puller *remote.Puller
}

func newRegistrySource(req fetchRequest) (*registrySource, error) {
	reg, err := name.NewRegistry(req.Registry, name.StrictValidation)
	if err != nil {
		return nil, failf(failFormat, "cannot use registry %q: %w", req.Registry, err)
	}
	s := &registrySource{repo: reg.Repo(req.Repo)}
	if s.root = s.repo.Tag(req.Tag); req.Digest != "" {
		s.root = s.repo.Digest(req.Digest)
	}
	var auth authn.Authenticator = authn.Anonymous
	if req.Username != "" || req.Token != "" {
		auth = authn.FromConfig(authn.AuthConfig{Username: req.Username, Password: req.Password, IdentityToken: req.Token})
	}
	s.puller, err = remote.NewPuller(
		remote.WithTransport(newTransport(req)),
		remote.WithAuth(auth),
		remote.WithUserAgent("caisson"),
	)
	if err != nil {
		return nil, fmt.Errorf("cannot set up registry client: %w", err)
	}
	return s, nil
}

func (s *registrySource) open(ctx context.Context, req blobRequest) (io.ReadCloser, error) {
	digest := s.repo.Digest(v1.Hash{Algorithm: "sha256", Hex: fmt.Sprintf("%x", req.Digest)}.String())
	var r io.ReadCloser
	var err error
	switch req.Kind {
	case blobRoot:
		r, err = s.manifest(ctx, s.root)
	case blobManifest:
		r, err = s.manifest(ctx, digest)
	default:
		var l v1.Layer
		if l, err = s.puller.Layer(ctx, digest); err == nil {
			r, err = l.Compressed()
		}
	}
	if err != nil {
		return nil, fetchError(err)
	}
	return fetchReader{r}, nil
}

func (s *registrySource) manifest(ctx context.Context, ref name.Reference) (io.ReadCloser, error) {
	d, err := s.puller.Get(ctx, ref)
	if err != nil {
		return nil, err
	}
	return io.NopCloser(strings.NewReader(string(d.Manifest))), nil
}

// fetchReader gives errors in the middle of a blob a code.
type fetchReader struct{ io.ReadCloser }

func (r fetchReader) Read(p []byte) (int, error) {
	n, err := r.ReadCloser.Read(p)
	if err != nil && err != io.EOF {
		err = fetchError(err)
	}
	return n, err
}

// fetchError classifies what the registry client says.
func fetchError(err error) error {
	var refused *egress.RefusedError
	var answer *transport.Error
	switch {
	case failureOf(err) != failInternal:
		return err
	case errors.As(err, &refused):
		return failf(failRefused, "%w", refused)
	case errors.As(err, &answer) && (answer.StatusCode == http.StatusUnauthorized || answer.StatusCode == http.StatusForbidden):
		return failf(failAuth, "the registry answers %d", answer.StatusCode)
	case errors.As(err, &answer) && answer.StatusCode == http.StatusNotFound:
		return failf(failNotFound, "the registry has no such image")
	case strings.Contains(err.Error(), "verifying") || strings.Contains(err.Error(), "does not match"):
		return failf(failDigest, "%w", err)
	}
	return failf(failNetwork, "%w", err)
}

// newTransport makes the only way by which the registry client reaches a
// network. It has no proxy, and plain HTTP only to a loopback address that the
// user wrote as the registry.
func newTransport(req fetchRequest) http.RoundTripper {
	d := &egress.Dialer{Allow: req.Allow, AllowPrefixes: req.AllowPrefixes}
	t := &http.Transport{
		DialContext:           d.DialContext,
		ForceAttemptHTTP2:     true,
		TLSHandshakeTimeout:   20 * time.Second,
		ResponseHeaderTimeout: time.Minute,
		IdleConnTimeout:       time.Minute,
		MaxIdleConns:          8,
		DisableCompression:    true, // no second decompressor before the digest
		// Headers of an answer are kept in memory.
		MaxResponseHeaderBytes: 256 << 10,
	}
	return guard{t, req}
}

type guard struct {
	next http.RoundTripper
	req  fetchRequest
}

func (g guard) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme == "http" && !(len(g.req.Allow) == 1 && r.URL.Host == g.req.Registry && g.req.Allow[0].Addr().IsLoopback()) {
		return nil, failf(failNetwork, "refused to use plain HTTP with %q", r.URL.Host)
	}
	resp, err := g.next.RoundTrip(r)
	if err == nil && !strings.Contains(firstRequest(r).URL.Path, "/blobs/") {
		// Answers that are read whole or drained: pings, tokens, manifests.
		resp.Body = &boundedBody{resp.Body, boundedReader{r: resp.Body, left: maxManifest + 1, over: errTooMuch}}
	}
	return resp, err
}

var errTooMuch = failf(failNetwork, "the registry's answer is over %d bytes", maxManifest)

type boundedBody struct {
	io.Closer
	boundedReader
}

// firstRequest goes back to the request that redirects started from.
func firstRequest(r *http.Request) *http.Request {
	for r.Response != nil && r.Response.Request != nil {
		r = r.Response.Request
	}
	return r
}

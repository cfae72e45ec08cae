package main

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	"connectrpc.com/connect"

	"caisson.dev/caisson/internal/guest"
	"caisson.dev/caisson/internal/guest/filesystem/filesystemconnect"
	"caisson.dev/caisson/internal/guest/process/processconnect"
)

// access says who may call a route. Every user process can reach the port, so
// the zero value is the strict one.
type access int

const (
	byToken access = iota
	bySignature
	byAnyone
)

type route struct {
	pattern string
	access  access
	handler http.HandlerFunc
}

func (b *box) routes() []route {
	oom := newOOM(b.reaper)
	return []route{
		{"GET /health", byAnyone, health},
		{"GET /files", bySignature, b.getFile},
		{"POST /files", bySignature, b.postFiles},
		{"POST /files/compose", byToken, b.composeFiles},
		{"GET /metrics", byToken, b.metrics},
		{"GET /envs", byToken, b.envs},
		{"POST /init", byToken, b.init},
		{"POST /caisson/oom", byToken, oom.serve},
		{"POST /caisson/stop", byToken, b.stop},
		{"GET /caisson/tar", byToken, b.tar},
		{"GET /caisson/usage", byToken, b.usage},
	}
}

// Bounds on one message: more input than a pipe takes at once is sent in
// several, files go through /files.
const (
	maxMessage = 8 << 20
	maxHeader  = 32 << 10
	maxJSON    = 1 << 20
)

func (b *box) handler() http.Handler {
	mux := http.NewServeMux()
	for _, r := range b.routes() {
		mux.Handle(r.pattern, b.guard(r.access, r.handler))
	}
	opts := []connect.HandlerOption{
		connect.WithReadMaxBytes(maxMessage),
		connect.WithCompression("gzip", nil, nil), // 100 KB per stream, and bombs
	}
	for _, register := range []func() (string, http.Handler){
		func() (string, http.Handler) {
			return processconnect.NewProcessHandler(processService{b}, opts...)
		},
		func() (string, http.Handler) {
			return filesystemconnect.NewFilesystemHandler(newFilesystemService(b), opts...)
		},
	} {
		prefix, h := register()
		mux.Handle(prefix, b.guard(byToken, h.ServeHTTP))
	}
	return crossOrigin(mux)
}

// newServer answers until the sandbox ends.
func newServer(h http.Handler) *http.Server {
	s := &http.Server{
		Handler:           h,
		ReadHeaderTimeout: strangerTime,
		IdleTimeout:       11 * time.Minute, // longer than a proxy keeps a connection
		MaxHeaderBytes:    maxHeader,
		ConnContext:       withConn,
		Protocols:         new(http.Protocols),
		HTTP2:             &http.HTTP2Config{MaxConcurrentStreams: 256},
	}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetUnencryptedHTTP2(true)
	return s
}

// guard lets a request through to h, or answers 401.
func (b *box) guard(a access, h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		err := b.authorise(a, r)
		if err != nil {
			writeError(w, http.StatusUnauthorized, err)
			return
		}
		if a != byAnyone {
			admit(r.Context())
		}
		h(w, r)
	}
}

var errNoToken = errors.New("unauthorized access, please provide a valid access token or method signing if supported")

// authorise decides whether a request may go on. There is no case that lets
// one through for lack of something.
func (b *box) authorise(a access, r *http.Request) error {
	token, _, _, _ := b.settings()
	given := r.Header.Get(guest.TokenHeader)
	switch {
	case a == byAnyone:
		return nil
	case token == "":
		return errNoToken
	case given != "":
		if !sameSecret(given, token) {
			return errNoToken
		}
		return nil
	case a == bySignature:
		return checkSignature(r, token, time.Now())
	default:
		return errNoToken
	}
}

func sameSecret(a, b string) bool { return subtle.ConstantTimeCompare([]byte(a), []byte(b)) == 1 }

// userOf returns the account that an RPC names in its Authorization header.
func (b *box) userOf(h http.Header) (account, error) {
	name, _, _ := (&http.Request{Header: h}).BasicAuth()
	a, err := b.lookup(name)
	if err != nil {
		return account{}, connect.NewError(connect.CodeUnauthenticated, fmt.Errorf("invalid username: '%s'", clip(name)))
	}
	return a, nil
}

// clip keeps what a client sent out of the way of what is said about it.
func clip(s string) string {
	if len(s) > 64 {
		return s[:64] + "..."
	}
	return s
}

func health(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusNoContent)
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v)
}

func writeError(w http.ResponseWriter, code int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(map[string]any{"code": code, "message": err.Error()})
}

// readJSON reads a small body.
func readJSON(w http.ResponseWriter, r *http.Request, v any) error {
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxJSON))
	if err := d.Decode(v); err != nil {
		return fmt.Errorf("cannot read the request: %w", err)
	}
	return nil
}

// crossOrigin answers browsers, whose clients send the token by themselves:
// an origin alone opens nothing.
func crossOrigin(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Access-Control-Allow-Origin", "*")
		if r.Method == http.MethodOptions && r.Header.Get("Access-Control-Request-Method") != "" {
			w.Header().Set("Access-Control-Allow-Methods", "GET, POST, OPTIONS")
			w.Header().Set("Access-Control-Allow-Headers", "*, Authorization, "+guest.TokenHeader)
			w.Header().Set("Access-Control-Max-Age", "7200")
			w.WriteHeader(http.StatusNoContent)
			return
		}
		w.Header().Set("Access-Control-Expose-Headers", "*")
		h.ServeHTTP(w, r)
	})
}

type connKey struct{}

func withConn(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, c)
}

// admit marks the connection of a request as the host's.
func admit(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*strangerConn); ok {
		c.admit()
	}
}

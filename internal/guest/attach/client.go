package attach

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"caisson.dev/caisson/internal/guest"
	"caisson.dev/caisson/internal/guest/process"
	"caisson.dev/caisson/internal/guest/process/processconnect"
)

// base is never resolved: all requests go over the one connection.
const base = "http://guest"

// client speaks to one guest program over two connections that its parent
// made. The program's output has one of its own, in HTTP/1.1: HTTP/2 would tell
// the guest about every 4 KiB that were read, and each such message costs the
// sandbox more than the output does. Everything else shares the other, in
// HTTP/2. What is read is bounded first: the guest may be an attacker.
type client struct {
	http   *http.Client
	output processconnect.ProcessClient // Start only
	proc   processconnect.ProcessClient // the rest
	token  string
}

// Bounds on what a guest can make us hold.
const (
	maxHeader  = 16 << 10  // response headers
	maxMessage = 256 << 10 // one event; the guest sends 32 KiB of output at a time
	maxReply   = 64 << 10  // one REST answer
)

// newClient uses the first connection that arrives for output and the second
// for the rest; calls wait for theirs.
func newClient(output, control <-chan net.Conn, token string) *client {
	var h1, h2 http.Protocols
	h1.SetHTTP1(true)
	h2.SetUnencryptedHTTP2(true)
	c := &client{http: &http.Client{Transport: newOneConn(control, &h2)}, token: token}
	out := &http.Client{Transport: newOneConn(output, &h1)}
	c.output = processconnect.NewProcessClient(out, base, connect.WithReadMaxBytes(maxMessage))
	c.proc = processconnect.NewProcessClient(c.http, base, connect.WithReadMaxBytes(maxMessage))
	return c
}

// oneConn sends every request over the one connection that there is: a guest
// that closes it gets no other, and requests that come before it all wait.
type oneConn struct {
	conn func() (*http.ClientConn, error)
}

func (o oneConn) RoundTrip(req *http.Request) (*http.Response, error) {
	c, err := o.conn()
	if err != nil {
		return nil, err
	}
	return c.RoundTrip(req)
}

func newOneConn(conns <-chan net.Conn, protocols *http.Protocols) oneConn {
	t := &http.Transport{
		Protocols:              protocols,
		HTTP2:                  &http.HTTP2Config{MaxReadFrameSize: 64 << 10},
		MaxResponseHeaderBytes: maxHeader,
		DisableCompression:     true, // no bombs, and output is rarely worth it
		ReadBufferSize:         64 << 10,
		DialContext: func(context.Context, string, string) (net.Conn, error) {
			if c, ok := <-conns; ok {
				return c, nil
			}
			return nil, net.ErrClosed // the parent gave up before the guest was there
		},
	}
	return oneConn{sync.OnceValues(func() (*http.ClientConn, error) {
		return t.NewClientConn(context.Background(), "http", "guest:80")
	})}
}

func (c *client) request(ctx context.Context, method, path string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, base+path, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set(guest.TokenHeader, c.token)
	if method == http.MethodPost {
		req.Header.Set("Content-Type", "application/octet-stream")
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 300 {
		defer resp.Body.Close()
		b, _ := io.ReadAll(io.LimitReader(resp.Body, 512))
		if text := errorText(b); text != "" {
			return nil, errors.New(text)
		}
		return nil, fmt.Errorf("the guest program answered %d", resp.StatusCode)
	}
	return resp, nil
}

// errorText takes the message out of an error body.
func errorText(b []byte) string {
	var e struct{ Message string }
	if json.Unmarshal(b, &e) == nil && e.Message != "" {
		return e.Message
	}
	return string(b)
}

// call makes a request whose answer is small or not wanted.
func (c *client) call(ctx context.Context, method, path string, body io.Reader) ([]byte, error) {
	resp, err := c.request(ctx, method, path, body)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	return io.ReadAll(io.LimitReader(resp.Body, maxReply))
}

// hello shows the token. Its failure shows in what comes after.
func (c *client) hello(ctx context.Context) { _, _ = c.call(ctx, http.MethodGet, "/envs", nil) }

func (c *client) health(ctx context.Context) error {
	_, err := c.call(ctx, http.MethodGet, "/health", nil)
	return err
}

func (c *client) upload(ctx context.Context, f File, user string) error {
	q := url.Values{"path": {f.Path}, "username": {user}}
	_, err := c.call(ctx, http.MethodPost, "/files?"+q.Encode(), bytes.NewReader(f.Data))
	if err != nil {
		return fmt.Errorf("cannot write %q inside: %w", f.Path, err)
	}
	return nil
}

func (c *client) start(ctx context.Context, t Task) (*connect.ServerStreamForClient[process.StartResponse], error) {
	msg := &process.StartRequest{
		Process: &process.ProcessConfig{Cmd: t.Cmd, Args: t.Args, Envs: t.Env},
		Stdin:   &t.Stdin,
	}
	if t.Cwd != "" {
		msg.Process.Cwd = &t.Cwd
	}
	if t.TTY {
		msg.Pty = &process.PTY{Size: &process.PTY_Size{Cols: t.Cols, Rows: t.Rows}}
	}
	req := connect.NewRequest(msg)
	c.authorise(req.Header())
	req.Header().Set(guest.UntilExitHeader, "1")
	if t.User != "" {
		req.Header().Set("Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(t.User+":")))
	}
	return c.output.Start(ctx, req)
}

func (c *client) authorise(h http.Header) { h.Set(guest.TokenHeader, c.token) }

func selector(pid uint32) *process.ProcessSelector {
	return &process.ProcessSelector{Selector: &process.ProcessSelector_Pid{Pid: pid}}
}

func (c *client) input(ctx context.Context, pid uint32, p []byte, tty bool) error {
	in := &process.ProcessInput{Input: &process.ProcessInput_Stdin{Stdin: p}}
	if tty {
		in.Input = &process.ProcessInput_Pty{Pty: p}
	}
	req := connect.NewRequest(&process.SendInputRequest{Process: selector(pid), Input: in})
	c.authorise(req.Header())
	_, err := c.proc.SendInput(ctx, req)
	return err
}

func (c *client) closeStdin(ctx context.Context, pid uint32) error {
	req := connect.NewRequest(&process.CloseStdinRequest{Process: selector(pid)})
	c.authorise(req.Header())
	_, err := c.proc.CloseStdin(ctx, req)
	return err
}

func (c *client) signal(ctx context.Context, pid uint32, sig int32) error {
	req := connect.NewRequest(&process.SendSignalRequest{Process: selector(pid), Signal: process.Signal(sig)})
	c.authorise(req.Header())
	_, err := c.proc.SendSignal(ctx, req)
	return err
}

func (c *client) resize(ctx context.Context, pid, cols, rows uint32) error {
	req := connect.NewRequest(&process.UpdateRequest{
		Process: selector(pid),
		Pty:     &process.PTY{Size: &process.PTY_Size{Cols: cols, Rows: rows}},
	})
	c.authorise(req.Header())
	_, err := c.proc.Update(ctx, req)
	return err
}

// killLargest asks the guest program to end its largest process. That it did
// not, for whatever reason, is no error: the host measures again anyway.
func (c *client) killLargest(ctx context.Context) Message {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	b, err := c.call(ctx, http.MethodPost, "/caisson/oom", nil)
	if err != nil {
		return Message{Kind: Killed}
	}
	var v struct {
		PID  int64  `json:"pid"`
		RSS  int64  `json:"rss"`
		Comm string `json:"comm"`
	}
	if json.Unmarshal(b, &v) != nil {
		return Message{Kind: Killed}
	}
	return Message{Kind: Killed, Num: 1, A: v.PID, B: v.RSS, Text: v.Comm}
}

// signalNumber reads a signal's name out of an exit status such as
// "signal: killed (core dumped)".
func signalNumber(status string) int64 {
	s := strings.TrimPrefix(strings.TrimSuffix(status, " (core dumped)"), "signal: ")
	for n := int64(1); n < 32; n++ {
		if signalText(n) == s {
			return n
		}
	}
	return 9
}

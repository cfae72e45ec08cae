package main

import (
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"caisson.dev/caisson/internal/guest"
)

func testBox(token string) *box {
	return &box{procs: newTable(), cfg: guest.Config{Token: token, User: guest.User{Name: "user", Home: "/home/user"}}}
}

// Every user process can reach the port: a route that answers without the
// token must be one of the few that are meant to.
func TestI12_EveryRouteNeedsTheToken(t *testing.T) {
	b := testBox("right")
	h := b.handler()
	rpc := []string{"POST /process.Process/Start", "POST /process.Process/List", "POST /filesystem.Filesystem/Stat", "POST /filesystem.Filesystem/WatchDir"}
	var patterns []string
	for _, r := range b.routes() {
		patterns = append(patterns, r.pattern)
	}
	for _, p := range slices.Concat(patterns, rpc) {
		method, path, _ := strings.Cut(p, " ")
		for _, token := range []string{"", "wrong", "righ", "rightt", "RIGHT"} {
			req := httptest.NewRequest(method, path, strings.NewReader("{}"))
			req.Header.Set("Content-Type", "application/json")
			if token != "" {
				req.Header.Set(guest.TokenHeader, token)
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, req)
			if public := path == "/health"; (w.Code == http.StatusUnauthorized) == public {
				t.Errorf("%s with token %q: %d", p, token, w.Code)
			}
		}
	}
}

func TestI2_NoTokenConfiguredMeansNobody(t *testing.T) {
	b := testBox("")
	for _, a := range []access{byToken, bySignature} {
		req := httptest.NewRequest("GET", "/files?signature="+signature("", "read", "", "", ""), nil)
		if b.authorise(a, req) == nil {
			t.Errorf("access %d without a configured token", a)
		}
	}
	if _, err := guest.DecodeConfig(`{"token":""}`); err == nil {
		t.Error("a configuration without a token is accepted")
	}
}

func TestListAnswersJSONAndPlainErrors(t *testing.T) {
	req := httptest.NewRequest("POST", "/process.Process/List", strings.NewReader("{}"))
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(guest.TokenHeader, "t")
	w := httptest.NewRecorder()
	testBox("t").handler().ServeHTTP(w, req)
	if w.Code != 200 || strings.TrimSpace(w.Body.String()) != "{}" {
		t.Errorf("%d %q", w.Code, w.Body)
	}
}

func TestConfigRefusesWhatIsMissing(t *testing.T) {
	good := guest.Config{
		Token: "t", DiskBytes: 1 << 30, DiskInodes: 1000, ShmBytes: 1 << 20, Pids: 10, NoFile: 64, FileSize: 1 << 20,
		User: guest.User{Name: "user", Home: "/home/user"},
	}
	if err := checkConfig(good); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*guest.Config){
		"disk":    func(c *guest.Config) { c.DiskBytes = 0 },
		"inodes":  func(c *guest.Config) { c.DiskInodes = 0 },
		"shm":     func(c *guest.Config) { c.ShmBytes = 0 },
		"pids":    func(c *guest.Config) { c.Pids = -1 },
		"nofile":  func(c *guest.Config) { c.NoFile = 0 },
		"size":    func(c *guest.Config) { c.FileSize = 0 },
		"user":    func(c *guest.Config) { c.User.Name = "a:0:0" },
		"no user": func(c *guest.Config) { c.User.Name = "" },
		"home":    func(c *guest.Config) { c.User.Home = "relative" },
		"home 2":  func(c *guest.Config) { c.User.Home = "/a:b\n" },
		"no home": func(c *guest.Config) { c.User.Home = "" },
	} {
		c := good
		if change(&c); checkConfig(c) == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// pipeListener gives out connections that a test made.
type pipeListener struct{ conns chan net.Conn }

func (l pipeListener) Accept() (net.Conn, error) {
	c, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (l pipeListener) Close() error   { return nil }
func (l pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

func closed(c net.Conn) bool {
	c.SetReadDeadline(time.Now().Add(time.Millisecond))
	_, err := c.Read(make([]byte, 1))
	ne, ok := err.(net.Error)
	return !ok || !ne.Timeout()
}

func TestStrangersCannotKeepTheHostOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := pipeListener{make(chan net.Conn, 1)}
		g := newGate(l)
		var clients []net.Conn
		connect := func() *strangerConn {
			ours, theirs := net.Pipe()
			clients = append(clients, theirs)
			l.conns <- ours
			c, err := g.Accept()
			if err != nil {
				t.Fatal(err)
			}
			return c.(*strangerConn)
		}
		host := connect()
		host.admit()
		for range 3 * maxStrangers {
			connect()
		}
		open := 0
		for _, c := range clients[1:] {
			if !closed(c) {
				open++
			}
		}
		if open > maxStrangers {
			t.Errorf("%d strangers are connected", open)
		}
		time.Sleep(2 * strangerTime) // of the bubble's clock
		synctest.Wait()
		for i, c := range clients[1:] {
			if !closed(c) {
				t.Errorf("stranger %d is still connected", i)
			}
		}
		if closed(clients[0]) {
			t.Error("the host's connection was closed")
		}
		host.Close()
	})
}

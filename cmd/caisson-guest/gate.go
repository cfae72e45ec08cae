package main

import (
	"net"
	"sync"
	"time"
)

// What a user process can take up without the token: so many connections, for
// so long. A new connection pushes out one of the old ones, so that the host's
// is always accepted.
const (
	maxStrangers = 64
	strangerTime = 2 * time.Second
)

// gate is a listener whose connections are strangers until a request on them
// has shown the token or a signature.
type gate struct {
	net.Listener

	mu        sync.Mutex
	strangers map[*strangerConn]struct{}
}

func newGate(l net.Listener) *gate {
	return &gate{Listener: l, strangers: map[*strangerConn]struct{}{}}
}

func (g *gate) Accept() (net.Conn, error) {
	nc, err := g.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &strangerConn{Conn: nc, gate: g}
	if out := g.add(c); out != nil {
		out.Close()
	}
	return c, nil
}

// add returns a connection that has to go. Which one is left to the order of
// a map: that of the host is not more likely than another.
func (g *gate) add(c *strangerConn) (out *strangerConn) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.strangers) >= maxStrangers {
		for out = range g.strangers {
			break
		}
		delete(g.strangers, out)
	}
	g.strangers[c] = struct{}{}
	c.timer = time.AfterFunc(strangerTime, func() {
		if g.remove(c) { // not if it was admitted just now
			c.Conn.Close()
		}
	})
	return out
}

// remove reports whether c was a stranger until now.
func (g *gate) remove(c *strangerConn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	_, was := g.strangers[c]
	delete(g.strangers, c)
	c.timer.Stop()
	return was
}

type strangerConn struct {
	net.Conn
	gate  *gate
	timer *time.Timer
}

func (c *strangerConn) admit() { c.gate.remove(c) }

func (c *strangerConn) Close() error {
	c.gate.remove(c)
	return c.Conn.Close()
}

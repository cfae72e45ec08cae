package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"
)

// Dialer connects to public addresses, and to the few others that the operator
// named. It resolves a name once, checks each answer, and dials the address
// that it checked, so an answer that changes afterwards changes nothing. As
// the DialContext of an HTTP client it sees redirects and authentication
// realms too. The zero Dialer reaches public addresses only.
type Dialer struct {
	// Allow are exact addresses that may be dialed although their range is
	// refused, because the operator wrote that very address.
	Allow []netip.AddrPort
	// AllowPrefixes are ranges that the operator's system policy opens.
	AllowPrefixes []netip.Prefix

	Timeout time.Duration // for each address; 0 means 20 s
	Idle    time.Duration // a connection without a byte this long breaks; 0 means 60 s
}

// maxAddrs bounds how many answers of a name are tried.
const maxAddrs = 8

// DialContext connects to host:port over TCP.
func (d *Dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	switch network {
	case "tcp", "tcp4", "tcp6":
	default:
		return nil, fmt.Errorf("cannot dial %q: network %q is not TCP", address, network)
	}
	host, portName, err := net.SplitHostPort(address)
	if err != nil {
		return nil, fmt.Errorf("cannot dial %q: %w", address, err)
	}
	port, err := strconv.ParseUint(portName, 10, 16)
	if err != nil || port == 0 {
		return nil, fmt.Errorf("cannot dial %q: bad port", address)
	}
	addrs, err := resolve(ctx, host)
	if err != nil {
		return nil, fmt.Errorf("cannot dial %q: %w", address, err)
	}
	var errs []error
	for _, addr := range addrs[:min(len(addrs), maxAddrs)] {
		conn, err := d.dial(ctx, host, netip.AddrPortFrom(addr.Unmap(), uint16(port)))
		if err == nil {
			return conn, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("cannot dial %q: %w", address, errors.Join(errs...))
}

func resolve(ctx context.Context, host string) ([]netip.Addr, error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{addr}, nil
	}
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err == nil && len(addrs) == 0 {
		err = errors.New("no address")
	}
	return addrs, err
}

func (d *Dialer) dial(ctx context.Context, host string, to netip.AddrPort) (net.Conn, error) {
	if why := d.refusal(ctx, to); why != "" {
		return nil, &RefusedError{Host: host, Addr: to, Why: why}
	}
	nd := net.Dialer{Timeout: orDefault(d.Timeout, 20*time.Second)}
	conn, err := nd.DialContext(ctx, "tcp", to.String())
	if err != nil {
		return nil, err
	}
	return &idleConn{conn, orDefault(d.Idle, time.Minute)}, nil
}

// refusal checks one address, as it will be dialed.
func (d *Dialer) refusal(ctx context.Context, to netip.AddrPort) string {
	for _, a := range d.Allow {
		if a == to {
			return ""
		}
	}
	for _, p := range d.AllowPrefixes {
		if p.Contains(to.Addr()) {
			return ""
		}
	}
	if why := Refused(to.Addr()); why != "" {
		return why
	}
	if ownAddress(ctx, to) {
		return "an address of this machine"
	}
	return ""
}

// ownAddress tells whether a public address is this machine's own: then the
// kernel picks it as the source as well. A UDP connect sends nothing, and it
// sees addresses that came after our start.
func ownAddress(ctx context.Context, to netip.AddrPort) bool {
	var nd net.Dialer
	conn, err := nd.DialContext(ctx, "udp", to.String())
	if err != nil {
		return false // no route; the real dial says so
	}
	defer conn.Close()
	from, err := netip.ParseAddrPort(conn.LocalAddr().String())
	return err == nil && from.Addr().Unmap() == to.Addr()
}

// idleConn breaks a connection whose other end has stopped, however long the
// whole transfer may take.
type idleConn struct {
	net.Conn
	idle time.Duration
}

func (c *idleConn) Read(p []byte) (int, error) {
	if err := c.SetReadDeadline(time.Now().Add(c.idle)); err != nil {
		return 0, err
	}
	return c.Conn.Read(p)
}

func (c *idleConn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(c.idle)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

func orDefault(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}

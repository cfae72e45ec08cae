package egress

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"
)

// Rows 14, 16, 21 and 77: every spelling of an address that we must not dial.
func TestI14_RefusedAddresses(t *testing.T) {
	for _, s := range []string{
		"0.0.0.0", "0.1.2.3", "127.0.0.1", "127.255.255.254", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
		"169.254.169.254", "100.64.0.1", "100.100.100.200", "168.63.129.16", "192.0.0.192", "192.0.2.1", "198.18.0.1",
		"198.51.100.1", "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
		"::", "::1", "::ffff:127.0.0.1", "::ffff:8.8.8.8.invalid", "::127.0.0.1", "::ffff:0:127.0.0.1", "fe80::1", "fe80::1%eth0",
		"2a00::1%eth0", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::1",
		"2002:a9fe:a9fe::", "2001::1", "2001:db8::1", "100::1", "5f00::1", "3fff::1", "4000::1", "1::1",
	} {
		addr, err := netip.ParseAddr(s)
		if err != nil {
			continue // never reaches a dial; the resolver gets it as a name
		}
		if Refused(addr) == "" {
			t.Errorf("%s may be dialed", s)
		}
	}
	for _, s := range []string{"8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1", "2a00:1450::1", "::ffff:8.8.8.8"} {
		if why := Refused(netip.MustParseAddr(s)); why != "" {
			t.Errorf("%s is refused: %s", s, why)
		}
	}
}

// A listener on loopback counts connections: the refusal must come before one.
func TestI14_DialerDialsOnlyWhatWasNamed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	accepted := make(chan struct{}, 16)
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			accepted <- struct{}{}
			c.Close()
		}
	}()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	named := netip.MustParseAddrPort(l.Addr().String())
	other := netip.AddrPortFrom(named.Addr(), named.Port()^1)

	for _, host := range []string{"127.0.0.1", "localhost", "::ffff:127.0.0.1", "0.0.0.0", "::1", "127.0.0.2"} {
		d := Dialer{Allow: []netip.AddrPort{other}}
		conn, err := d.DialContext(context.Background(), "tcp", net.JoinHostPort(host, port))
		var refused *RefusedError
		if !errors.As(err, &refused) {
			t.Errorf("%s: conn %v, error %v; want a refusal", host, conn, err)
		}
	}
	select {
	case <-accepted:
		t.Error("a refused address was connected to")
	default:
	}

	d := Dialer{Allow: []netip.AddrPort{named}}
	conn, err := d.DialContext(context.Background(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatalf("the named address: %v", err)
	}
	conn.Close()
	<-accepted
	for _, bad := range []string{"udp", "unix"} {
		if _, err := d.DialContext(context.Background(), bad, l.Addr().String()); err == nil {
			t.Errorf("network %q was dialed", bad)
		}
	}
}

package egress

import (
	"fmt"
	"net/netip"
)

// refused are the ranges that nobody outside may lead us to: the machine
// itself, its neighbours, the services that hand out a machine's credentials,
// and the address forms that smuggle one of those inside another. Sources are
// the IANA special-purpose registries and the documentation of cloud vendors.
var refused = []struct {
	prefix netip.Prefix
	why    string
}{
	{netip.MustParsePrefix("0.0.0.0/8"), "this machine"},
	{netip.MustParsePrefix("10.0.0.0/8"), "a private network"},
	{netip.MustParsePrefix("100.64.0.0/10"), "a provider's private network"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("168.63.129.16/32"), "a metadata service"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local, where metadata services are"},
	{netip.MustParsePrefix("172.16.0.0/12"), "a private network"},
	{netip.MustParsePrefix("192.0.0.0/24"), "reserved, a metadata service on some clouds"},
	{netip.MustParsePrefix("192.0.2.0/24"), "reserved for documentation"},
	{netip.MustParsePrefix("192.88.99.0/24"), "a 6to4 relay"},
	{netip.MustParsePrefix("192.168.0.0/16"), "a private network"},
	{netip.MustParsePrefix("198.18.0.0/15"), "reserved for benchmarks"},
	{netip.MustParsePrefix("198.51.100.0/24"), "reserved for documentation"},
	{netip.MustParsePrefix("203.0.113.0/24"), "reserved for documentation"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},

	{netip.MustParsePrefix("::/8"), "loopback, unspecified, or an IPv4 address in disguise"},
	{netip.MustParsePrefix("64:ff9b::/96"), "an IPv4 address behind NAT64"},
	{netip.MustParsePrefix("64:ff9b:1::/48"), "an IPv4 address behind NAT64"},
	{netip.MustParsePrefix("100::/64"), "a black hole"},
	{netip.MustParsePrefix("2001::/23"), "reserved; Teredo carries an IPv4 address"},
	{netip.MustParsePrefix("2001:db8::/32"), "reserved for documentation"},
	{netip.MustParsePrefix("2002::/16"), "an IPv4 address in 6to4 form"},
	{netip.MustParsePrefix("3fff::/20"), "reserved for documentation"},
	{netip.MustParsePrefix("5f00::/16"), "segment routing identifiers"},
	{netip.MustParsePrefix("fc00::/7"), "a private network"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("fec0::/10"), "site-local"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
}

// Refused returns why nobody outside may lead us to addr, or "". IPv6 outside
// the one range that is handed out (2000::/3) is refused as a whole.
func Refused(addr netip.Addr) string {
	if !addr.IsValid() || addr.Zone() != "" {
		return "not a plain address"
	}
	addr = addr.Unmap()
	for _, r := range refused {
		if r.prefix.Contains(addr) {
			return r.why
		}
	}
	if addr.Is6() && addr.As16()[0]>>5 != 1 {
		return "not a public IPv6 address"
	}
	return ""
}

// RefusedError says that a connection was not made, and why.
type RefusedError struct {
	Host string // as asked
	Addr netip.AddrPort
	Why  string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("refused to connect to %q at %s: %s", e.Host, e.Addr, e.Why)
}

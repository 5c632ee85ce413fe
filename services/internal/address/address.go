// Package address names clients by the address of their connection, for limits.
package address

import (
	"net"
	"net/netip"
)

// Of returns what limits count as one address: an IPv4 address, or a /64
// of IPv6, because one machine can have as many addresses of it as it wants. It
// returns "" for what is no network connection.
func Of(a net.Addr) string {
	tcp, ok := a.(*net.TCPAddr)
	if !ok {
		return ""
	}
	ip, _ := netip.AddrFromSlice(tcp.IP)
	if ip = ip.Unmap(); !ip.Is6() {
		return ip.String()
	}
	prefix, err := ip.Prefix(64)
	if err != nil {
		return ip.String()
	}
	return prefix.String()
}

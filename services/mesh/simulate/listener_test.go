package simulate

import (
	"net/netip"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
)

func at(name, address string, port uint32) *listenerv3.Listener {
	return &listenerv3.Listener{Name: name, Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address: address, PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: port},
	}}}}
}

// A call by name finds the one listener of its port, such as that of a gateway with bind;
// one of several addresses it does not choose.
func TestListenerOfACallByName(t *testing.T) {
	one := &Proxy{listeners: []*listenerv3.Listener{at("gateway", "127.0.0.1", 10000), at("other", "127.0.0.1", 10001)}}
	two := &Proxy{listeners: []*listenerv3.Listener{at("a", "127.0.0.1", 10000), at("b", "127.0.0.2", 10000)}}
	for name, c := range map[string]struct {
		proxy *Proxy
		call  Call
		want  string
	}{
		"one listener":      {one, Call{Host: "shop.internal", Port: 10000}, "gateway"},
		"another port":      {one, Call{Host: "shop.internal", Port: 10002}, ""},
		"another address":   {one, Call{Address: netip.MustParseAddr("127.0.0.9"), Port: 10000}, ""},
		"several addresses": {two, Call{Host: "shop.internal", Port: 10000}, ""},
		"one of several":    {two, Call{Address: netip.MustParseAddr("127.0.0.2"), Port: 10000}, "b"},
	} {
		if got := c.proxy.listener(c.call).GetName(); got != c.want {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

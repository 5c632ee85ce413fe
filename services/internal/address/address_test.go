package address_test

import (
	"net"
	"testing"

	"meshlog.dev/services/internal/address"
)

func TestOf(t *testing.T) {
	for text, want := range map[string]string{
		"10.0.0.1": "10.0.0.1", "::ffff:10.0.0.1": "10.0.0.1", "2001:db8::1": "2001:db8::/64", "2001:db8::2": "2001:db8::/64", "2001:db8:0:1::1": "2001:db8:0:1::/64",
	} {
		if got := address.Of(&net.TCPAddr{IP: net.ParseIP(text), Port: 1}); got != want {
			t.Errorf("%s counts as %s, want %s", text, got, want)
		}
	}
	if got := address.Of(&net.UnixAddr{Name: "/x"}); got != "" {
		t.Errorf("a socket counts as %s", got)
	}
}

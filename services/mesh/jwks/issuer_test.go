package jwks

import "testing"

func TestSource(t *testing.T) {
	for in, want := range map[Issuer]struct {
		source        string
		discovery, ok bool
	}{
		{"https://a.example", "https://keys.example/set"}: {"https://keys.example/set", false, true},
		{"https://a.example", ""}:                         {"https://a.example/.well-known/openid-configuration", true, true},
		{"https://a.example/tenant/", ""}:                 {"https://a.example/tenant/.well-known/openid-configuration", true, true},
		{"https://a.example", "http://keys.example/set"}:  {"http://keys.example/set", false, false},
		{"https://a.example", "https://u:p@keys.example"}: {"https://u:p@keys.example", false, false},
		{"https://a.example", "file:///etc/passwd"}:       {"file:///etc/passwd", false, false},
		{"testing@secure.istio.io", ""}:                   {"testing@secure.istio.io/.well-known/openid-configuration", true, false},
		{"", "https:///set"}:                              {"https:///set", false, false},
	} {
		source, discovery, ok := in.Source()
		if ok != want.ok || discovery != want.discovery || source != want.source {
			t.Errorf("%v: %q, %t, %t; want %v", in, source, discovery, ok, want)
		}
	}
}

// No two pairs share an object: the keys of one would count for the other.
func TestObjectName(t *testing.T) {
	names := map[string]Issuer{}
	for _, i := range []Issuer{{"a", "b"}, {"ab", ""}, {"", "ab"}, {"b", "a"}, {"a", ""}, {"", "a"}} {
		if o, taken := names[i.ObjectName()]; taken {
			t.Errorf("%v and %v share a name", i, o)
		}
		names[i.ObjectName()] = i
	}
}

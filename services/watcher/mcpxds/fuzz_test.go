package mcpxds

import (
	"hash/maphash"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"

	"meshlog.dev/deploy/testkit/mcptest"
	"meshlog.dev/proto/ident"
)

// FuzzResource decodes whatever a source may send: it is an object with a value that the
// builder can read or an Undecoded, or it is reported.
func FuzzResource(f *testing.F) {
	f.Add("networking.istio.io/v1/ServiceEntry", mcptest.Resource("shop/a", &networking.ServiceEntry{Hosts: []string{"a"}}).GetValue())
	f.Add("security.istio.io/v1/AuthorizationPolicy", mcptest.Resource("shop/a", &security.AuthorizationPolicy{Rules: []*security.Rule{{}}}).GetValue())
	f.Add("networking.istio.io/v1/Gateway", mcptest.Resource("shop/a", nil).GetValue())
	_, types := newSets(true)
	d := decoder{seed: maphash.MakeSeed(), address: "a:1"}
	f.Fuzz(func(t *testing.T, url string, b []byte) {
		c := types[url]
		if c == nil {
			return
		}
		r, n, err := d.open(c, &anypb.Any{TypeUrl: resourceType, Value: b})
		if err != nil {
			return
		}
		one := d.decode(c, n, r, time.Time{})
		v := one.object.Value
		switch _, err := c.of.kind.Decode(v.Type, v.Bytes); {
		case n.name == "" || (n.namespace != "") != c.of.kind.Namespaced:
			t.Errorf("the name is %q", n)
		case one.bad == nil && err != nil:
			t.Errorf("the builder cannot read the value: %v", err)
		case one.bad != nil && v.Type != ident.Undecoded:
			t.Errorf("%v, and the value is a %s", one.bad, v.Type)
		}
	})
}

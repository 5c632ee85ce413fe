package route

import (
	"slices"
	"testing"

	"meshlog.dev/services/mesh/index"
)

// A service has the domains by which callers may call it (VS-7).
func TestDomains(t *testing.T) {
	const suffix = ".svc.cluster.local"
	for name, test := range map[string]struct {
		service index.Service
		own     bool
		want    []string
	}{
		"of another namespace": {
			service: index.Service{ServiceID: index.ServiceID{Hostname: "a.shop.svc.cluster.local"}, Addresses: []string{"10.0.0.1"}},
			want:    []string{"a.shop.svc.cluster.local", "a.shop", "a.shop.svc", "a.shop.svc.cluster.local.", "10.0.0.1"},
		},
		"of the caller's": {
			service: index.Service{ServiceID: index.ServiceID{Hostname: "a.shop.svc.cluster.local"}}, own: true,
			want: []string{"a.shop.svc.cluster.local", "a.shop", "a.shop.svc", "a", "a.shop.svc.cluster.local."},
		},
		"no Kubernetes service": {
			service: index.Service{ServiceID: index.ServiceID{Hostname: "www.example.com"}}, own: true,
			want: []string{"www.example.com", "www.example.com."},
		},
		"a host that only looks like one": {
			service: index.Service{ServiceID: index.ServiceID{Hostname: "x.a.shop.svc.cluster.local"}}, own: true,
			want: []string{"x.a.shop.svc.cluster.local", "x.a.shop.svc.cluster.local."},
		},
		"aliases": {
			service: index.Service{ServiceID: index.ServiceID{Hostname: "www.example.com"}, Aliases: []string{"b.shop.svc.cluster.local"}},
			want: []string{
				"www.example.com", "www.example.com.",
				"b.shop.svc.cluster.local", "b.shop", "b.shop.svc", "b.shop.svc.cluster.local.",
			},
		},
		"headless (SVC-3)": {
			service: index.Service{ServiceID: index.ServiceID{Hostname: "a.shop.svc.cluster.local"}, Headless: true},
			want: []string{
				"a.shop.svc.cluster.local", "a.shop", "a.shop.svc", "a.shop.svc.cluster.local.",
				"*.a.shop.svc.cluster.local", "*.a.shop", "*.a.shop.svc", "*.a.shop.svc.cluster.local.",
			},
		},
		"addresses": {
			service: index.Service{
				ServiceID: index.ServiceID{Hostname: "db.internal"},
				Addresses: []string{"10.0.0.0/8", "10.0.0.1/32", "fd00::1", "0.0.0.0"},
			},
			want: []string{"db.internal", "db.internal.", "10.0.0.1", "[fd00::1]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			if got := appendDomains(nil, &test.service, suffix, test.own); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

package hostname

import "testing"

func TestFull(t *testing.T) {
	for host, want := range map[string]string{
		"":            "",
		"*":           "*",
		"reviews":     "reviews.shop.svc.cluster.local",
		"a.com":       "a.com",
		"reviews.x":   "reviews.x",
		"2001:db8::1": "2001:db8::1",
	} {
		if got := Full(host, "shop", "cluster.local"); got != want {
			t.Errorf("Full(%q) = %q, want %q", host, got, want)
		}
	}
}

func TestHome(t *testing.T) {
	for host, want := range map[string]string{
		"reviews.shop.svc.cluster.local":   "shop",
		"reviews.shop.svc.other.local":     "",
		"*.shop.svc.cluster.local":         "",
		"a.reviews.shop.svc.cluster.local": "",
		"a.com":                            "",
	} {
		if got := Home(host, "cluster.local"); got != want {
			t.Errorf("Home(%q) = %q, want %q", host, got, want)
		}
	}
}

package nearest_test

import (
	"testing"

	"meshlog.dev/services/nearest"
)

func TestName(t *testing.T) {
	known := []string{"listen", "bus-token-file", "log-level", "id"}
	for name, want := range map[string]string{
		"lisen": "listen", "lsiten": "listen", "busTokenFile": "bus-token-file", "bus-token": "bus-token-file",
		"loglevel": "log-level", "log_levels": "log-level", "color": "", "ip": "", "": "",
	} {
		if got, ok := nearest.Name(name, known); ok != (want != "") || ok && got != want {
			t.Errorf("Name(%q) = %q, %v, want %q", name, got, ok, want)
		}
	}
}

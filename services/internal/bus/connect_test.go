package bus_test

import (
	"log/slog"
	"strings"
	"testing"

	"meshlog.dev/services/internal/bus"
)

func TestCheckURL(t *testing.T) {
	for _, good := range []string{"nats://127.0.0.1:4222", "tls://a:1, nats://u:p@b", "wss://c/path", "/var/lib/meshlog/bus", "bus"} {
		if err := bus.CheckURL(good); err != nil {
			t.Errorf("%s: %v", good, err)
		}
	}
	for _, bad := range []string{"zzz://x", "nats://", "nats://a:1,http://b", "nats://a:port"} {
		if err := bus.CheckURL(bad); err == nil || !strings.Contains(err.Error(), "address of the bus") {
			t.Errorf("%s: got %v", bad, err)
		}
	}
	if err := bus.CheckURL("zzz://user:secret@x"); strings.Contains(err.Error(), "secret") {
		t.Errorf("the password is in %v", err)
	}
}

// ConnectWait does not retry with a malformed address.
func TestConnectWaitBadAddress(t *testing.T) {
	_, err := bus.ConnectWait(t.Context(), bus.ConnectOptions{URL: "zzz://x", Name: "test", Log: slog.New(slog.DiscardHandler)})
	if err == nil || !strings.Contains(err.Error(), "nats://HOST:PORT") {
		t.Errorf("got %v, want advice", err)
	}
}

package cli

import (
	"strings"
	"testing"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"meshlog.dev/services/internal/model"
)

func TestParseQuota(t *testing.T) {
	for _, c := range []struct {
		text    string
		streams uint32
		want    uint32
	}{
		{"100%", 7, 7}, {"95%", 20, 19}, {"95%", 21, 20}, {"50%", 0, 1}, {"0.1%", 10, 1}, {"3", 100, 3}, {"0", 100, 0},
	} {
		q, err := parseQuota(c.text)
		if err != nil {
			t.Fatal(err)
		}
		if got := q.of(c.streams); got != c.want {
			t.Errorf("%s of %d are %d, want %d", c.text, c.streams, got, c.want)
		}
	}
	for _, text := range []string{"", "x", "x%", "0%", "101%", "-1", "1.5"} {
		if _, err := parseQuota(text); exitCode(err) != 2 {
			t.Errorf("--for %q: %v, want an error of the caller", text, err)
		}
	}
}

func TestWait(t *testing.T) {
	m := start(t, map[string]string{"shop.yaml": cluster("shop")})
	var w waitView
	if m.must(t, &w, "wait", "latest", "--for", "0"); !w.Reached || w.Version == "" {
		t.Fatalf("wait --for 0 = %+v, want it reached", w)
	}
	for want, args := range map[string][]string{
		"no proxy is connected":     {w.Version},
		"is not published; the log": {"9000000000.1", "--for", "0"},
	} {
		if _, _, err := m.meshlog(t, nil, append([]string{"wait", "--timeout", "800ms"}, args...)...); err == nil || !strings.Contains(err.Error(), want) || exitCode(err) != 1 {
			t.Errorf("wait %v: %v, want %q and exit code 1", args, err, want)
		}
	}

	e := connectEnvoy(t, m.xds)
	e.ask(t, model.CDS.URL(), nil)
	unanswered, err := e.stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	out, _, err := m.meshlog(t, nil, "wait", w.Version, "--timeout", "800ms")
	if err == nil || !strings.Contains(err.Error(), "0 of 1 stream have applied") || !strings.Contains(out, "envoy-1") || !strings.Contains(out, "STALE") {
		t.Errorf("wait: %v, and prints\n%s", err, out)
	}
	ended := make(chan error, 1)
	started := time.Now()
	go func() {
		_, _, err := m.meshlog(t, nil, "wait", w.Version, "--timeout", "30s")
		ended <- err
	}()
	e.ack(t, unanswered)
	if err := <-ended; err != nil {
		t.Errorf("wait until it is acknowledged: %v after %v", err, time.Since(started))
	}
}

// ack accepts a response.
func (e *envoy) ack(t *testing.T, r *discoveryv3.DiscoveryResponse) {
	t.Helper()
	err := e.stream.Send(&discoveryv3.DiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce(), VersionInfo: r.GetVersionInfo()})
	if err != nil {
		t.Fatal(err)
	}
}

package busauth

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/events/natslog"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/store/natsfeed"
)

// A builder's key can make a missing stream with settings of its own. Builders refuse
// one that republishes: the server would publish for that key, wherever it said.
func TestRepublishIsRefused(t *testing.T) {
	s := start(t)
	builder, err := jetstream.New(s.connect(bus.Builder()))
	must(t, err)
	chain := natsfeed.StreamOptions{}
	for _, c := range []bus.StreamConfig{natslog.StreamOptions{}.Config(), chain.BlobConfig(), bus.LeaseConfig(1), audit.StreamOptions{}.Config()} {
		c.RePublish = &jetstream.RePublish{Source: c.Subjects[0], Destination: "meshlog.ver.>"}
		_, err := builder.CreateStream(t.Context(), c)
		must(t, err)
	}
	honest := s.connect(bus.Builder())
	_, log := natslog.EnsureStream(t.Context(), honest, natslog.StreamOptions{})
	_, blobs := natsfeed.EnsureStreams(t.Context(), honest, chain)
	for what, err := range map[string]error{
		"log": log, "blobs": blobs, "lease": bus.EnsureLeases(t.Context(), honest, 1), "audit": audit.EnsureStream(t.Context(), honest, audit.StreamOptions{}),
	} {
		if err == nil || !strings.Contains(err.Error(), "republish: is set, must be unset") {
			t.Errorf("the %s may republish: %v", what, err)
		}
	}
}

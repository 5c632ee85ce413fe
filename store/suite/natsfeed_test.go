package suite

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/deploy/testkit/natstest"
	"meshlog.dev/store/natsfeed"
)

// natsBus is a NATS server and the connections of its feeds.
type natsBus struct {
	server *natstest.Server
	conns  map[Feed]*nats.Conn
}

func newNATSBus(t *testing.T) Bus {
	b := natsBus{natstest.Start(t), make(map[Feed]*nats.Conn)}
	chain, blobs := natsfeed.StreamOptions{}.Config(), natsfeed.StreamOptions{}.BlobConfig()
	chain.DenyPurge = false // Expire purges it
	for _, c := range []jetstream.StreamConfig{chain, blobs} {
		_, err := b.jetStream(t).CreateStream(t.Context(), c)
		must(t, err)
	}
	return b
}

func (b natsBus) jetStream(t *testing.T) jetstream.JetStream {
	return natstest.JetStream(t, b.server.Connect(t))
}

func (b natsBus) Open(t *testing.T) Feed {
	t.Helper()
	nc := b.server.Connect(t)
	f, err := natsfeed.Open(t.Context(), nc, natsfeed.Options{})
	must(t, err)
	b.conns[f] = nc
	return f
}

func (b natsBus) Renew(t *testing.T, f Feed) { natstest.Reconnect(t, b.conns[f]) }

func (b natsBus) Expire(t *testing.T) {
	t.Helper()
	s, err := b.jetStream(t).Stream(t.Context(), natsfeed.Stream)
	must(t, err)
	must(t, s.Purge(t.Context()))
}

func (b natsBus) Image(t *testing.T) (rewind func()) {
	t.Helper()
	image := filepath.Join(t.TempDir(), "image")
	b.server.Restart(t, func() { must(t, os.CopyFS(image, os.DirFS(b.server.Dir))) })
	return func() {
		b.server.Restart(t, func() {
			must(t, os.RemoveAll(b.server.Dir))
			must(t, os.CopyFS(b.server.Dir, os.DirFS(image)))
		})
	}
}

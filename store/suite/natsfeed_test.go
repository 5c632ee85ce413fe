package suite

import (
	"bufio"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/deploy/testkit/natstest"
	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
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

const subject = natsfeed.SubjectPrefix + "mesh"

func (b natsBus) Inject(t *testing.T, u store.Update) {
	t.Helper()
	data, err := store.EncodeUpdate(u, ident.Hash{})
	must(t, err)
	b.write(t, data, jetstream.ExpectedStreamHeader, natsfeed.Stream)
}

// write appends a message with a header.
func (b natsBus) write(t *testing.T, data []byte, header ...string) {
	t.Helper()
	m := nats.NewMsg(subject)
	m.Data = data
	for i := 0; i < len(header); i += 2 {
		m.Header.Add(header[i], header[i+1])
	}
	_, err := b.jetStream(t).PublishMsg(t.Context(), m)
	must(t, err)
}

// Foreign returns what reaches the stream with a client's own bytes, with raw
// protocol, and through answers of the server that a client sends there.
func (b natsBus) Foreign(t *testing.T) map[string]func() {
	ways := map[string]func(){
		"no bytes":      func() { b.write(t, nil) },
		"foreign bytes": func() { b.write(t, []byte("no version")) },
		"foreign bytes with a builder's header": func() {
			b.write(t, []byte("no version"), jetstream.ExpectedStreamHeader, natsfeed.Stream)
		},
		"a version without a builder's header": func() {
			v := next(store.Stored{}, ident.Position{Epoch: 3, Seq: 1}, rows{"a": is("1")})
			data, err := store.EncodeUpdate(updateOf(store.Stored{}, v), ident.Hash{})
			must(t, err)
			b.write(t, data)
		},
		// No epoch could be greater (BUS-1).
		"a version of the far future": func() {
			head, err := b.Open(t).Head(t.Context())
			must(t, err)
			u := updateOf(store.Stored{}, next(store.Stored{}, ident.Position{Epoch: math.MaxUint64, Seq: 1}, rows{"a": is("1")}))
			u.Manifest.Previous, u.Manifest.PreviousRoot = head.Manifest.GetVersion(), head.Manifest.GetRoot()
			data, err := store.EncodeUpdate(u, ident.Hash{})
			must(t, err)
			b.write(t, data, jetstream.ExpectedStreamHeader, natsfeed.Stream)
		},
		// The server adds headers of these names to what it sends to a reader.
		"headers of an answer": func() {
			b.write(t, nil, "Status", "503", "Nats-Sequence", "1", "Nats-Time-Stamp", "2020-01-01T00:00:00Z", "Nats-Stream", natsfeed.Stream)
		},
	}
	for name, block := range map[string]string{
		"raw: the end of a run":      "NATS/1.0 204 EOB\r\nNats-Num-Pending: 0\r\n\r\n",
		"raw: no responders":         "NATS/1.0 503\r\n\r\n",
		"raw: headers without names": "NATS/1.0\r\nno name and no colon\r\n\r\n",
		// Libraries read no further than the empty line; the server adds its headers behind it.
		"raw: the end of a run, and an empty line": "NATS/1.0 204 EOB\r\n\r\nX: y\r\n\r\n",
		"raw: another sequence, and an empty line": "NATS/1.0\r\n" + jetstream.ExpectedStreamHeader + ": " + natsfeed.Stream +
			"\r\nNats-Subject: " + subject + "\r\nNats-Sequence: 1\r\nNats-Time-Stamp: 2020-01-01T00:00:00Z\r\n\r\nX: y\r\n\r\n",
	} {
		ways[name] = func() { b.raw(t, block) }
	}
	// A Direct Get of a version is refused: the answer carries the version's fence.
	for name, request := range map[string][2]string{
		"reply: stream info":              {"$JS.API.STREAM.INFO." + natsfeed.Stream, ""},
		"reply: direct get of no message": {"$JS.API.DIRECT.GET." + natsfeed.Stream, `{"last_by_subj":"` + subject + `x"}`},
		"reply: message get":              {"$JS.API.STREAM.MSG.GET." + natsfeed.Stream, `{"seq":1}`},
	} {
		ways[name] = func() { b.reply(t, request[0], request[1]) }
	}
	return ways
}

// raw appends a message with this block of headers, as a client of its own may.
func (b natsBus) raw(t *testing.T, block string) {
	t.Helper()
	c, err := b.server.InProcessConn()
	must(t, err)
	defer c.Close()
	_, err = bufio.NewReader(c).ReadString('\n') // INFO
	must(t, err)
	b.grows(t, func() {
		_, err = fmt.Fprintf(c, "CONNECT {\"headers\":true,\"verbose\":false}\r\nHPUB %s %d %d\r\n%s\r\n", subject, len(block), len(block), block)
		must(t, err)
	})
}

// reply makes the server answer a request to the subject of the chain.
func (b natsBus) reply(t *testing.T, api, request string) {
	t.Helper()
	nc := b.server.Connect(t)
	b.grows(t, func() { must(t, nc.PublishRequest(api, subject, []byte(request))) })
}

// grows waits until the stream has taken the message that write sends.
func (b natsBus) grows(t *testing.T, write func()) {
	t.Helper()
	nc := b.server.Connect(t)
	live, err := nc.SubscribeSync(natsfeed.LivePrefix + "mesh")
	must(t, err)
	must(t, nc.Flush())
	write()
	_, err = live.NextMsgWithContext(t.Context())
	if errors.Is(err, nats.ErrNoResponders) { // the message says so, and the library believes it
		err = nil
	}
	must(t, err)
}

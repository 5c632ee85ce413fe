package natslog_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"meshlog.dev/deploy/testkit/natstest"
	"meshlog.dev/events"
	"meshlog.dev/events/natslog"
	"meshlog.dev/proto/ident"
)

// BUS-6: the size of each record is known, with its writer, also of records that no
// process of ours has written; and then of new ones.
func TestSizes(t *testing.T) {
	b := natstest.Start(t)
	nc := b.Connect(t)
	l := newLog(t, nc, natslog.StreamOptions{MaxBytes: 64 << 20})
	loud := ident.Shard{Source: "k8s.io", Instance: "a b"}
	subject := events.ControlSubject(loud).In("mesh")
	send := func(m *nats.Msg) {
		t.Helper()
		if _, err := nc.RequestMsg(m, 5*time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Append(t.Context(), []events.Event{begin(1), begin(2)}, events.Fence{}); err != nil {
		t.Fatal(err)
	}
	large := nats.NewMsg(subject)
	large.Data = make([]byte, 100<<10)
	send(large)
	headers := nats.NewMsg(subject)
	headers.Header.Set("Nats-Msg-Size", "1") // it does not speak for the server
	headers.Header.Set("X", strings.Repeat("x", 50<<10))
	send(headers)
	raw(t, b, subject, "NATS/1.0\r\n"+strings.Repeat("no name and no colon", 1000)+"\r\n\r\n")
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	sums := map[ident.Shard]uint64{}
	last := uint64(0)
	for s, err := range l.Sizes(ctx, 0) {
		if err != nil {
			if !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			break
		}
		sums[s.Shard] += s.Bytes
		if last = s.Seq; s.Seq == 5 { // a new one, while the sizes are read
			if _, err := l.Append(t.Context(), []events.Event{begin(3)}, events.Fence{}); err != nil {
				t.Fatal(err)
			}
		}
		if s.Seq == 6 {
			cancel()
		}
	}
	bytes, most, bounds, err := l.Usage(t.Context())
	if err != nil || most != 64<<20 || bounds.Last != 6 || last != 6 {
		t.Errorf("usage: at most %d, %+v, %v; sizes were read up to %d; want 64 MiB and 6", most, bounds, err, last)
	}
	small := ident.Shard{Source: "s", Instance: "i"}
	if got := sums[loud]; got < 169<<10 || got > 171<<10 {
		t.Errorf("%s takes %d bytes, want about 170 KiB", loud, got)
	}
	if total := sums[loud] + sums[small]; len(sums) != 2 || total < bytes*98/100 || total > bytes*102/100 {
		t.Errorf("%v sum up to %d bytes, the server says %d", sums, total, bytes)
	}
}

// BUS-6: no headers that a client brings make a record smaller than it is, also
// those that hide the server's from client libraries.
func TestSizesOfHiddenHeaders(t *testing.T) {
	b := natstest.Start(t)
	l := newLog(t, b.Connect(t), natslog.StreamOptions{})
	const kib = 100
	blocks := []string{
		"NATS/1.0\r\nNats-Msg-Size: 1\r\n\r\n\r\n", // the server's header comes after an empty line
		"NATS/1.0\r\nNats-Msg-Size: 1\r\n\r\nX: 1\r\n\r\n",
		"NATS/1.0 204 x\r\nNats-Msg-Size: 1\r\n\r\n\r\n",
		"NATS/1.0 204\r\n\r\n",
	}
	for n := range 16 { // lines without a space and a carriage return make up for the length of the server's header
		blocks = append(blocks, "NATS/1.0\nNats-Msg-Size:1\n"+strings.Repeat("a:\n", n)+"\n\r\n", "NATS/1.0\nNats-Msg-Size:1\n"+strings.Repeat("a:\n", n)+"\nxx")
	}
	for _, block := range blocks {
		rawData(t, b, events.ControlSubject(ident.Shard{Source: "s", Instance: "i"}).In("mesh"), block, strings.Repeat("x", kib<<10))
	}
	for s, err := range l.Sizes(t.Context(), 0) {
		if err != nil {
			t.Fatal(err)
		}
		if s.Bytes < kib<<10 {
			t.Errorf("headers %q: a record of %d KiB counts as %d bytes", blocks[s.Seq-1], kib, s.Bytes)
		}
		if s.Seq == uint64(len(blocks)) {
			break
		}
	}
}

// raw sends a message with this block of headers, as a client of its own may.
func raw(t *testing.T, b *natstest.Server, subject, block string) {
	t.Helper()
	rawData(t, b, subject, block, "")
}

// rawData is raw with data behind the headers.
func rawData(t *testing.T, b *natstest.Server, subject, block, data string) {
	t.Helper()
	c, err := b.InProcessConn()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	in := bufio.NewReader(c)
	line, err := in.ReadString('\n') // INFO
	if err == nil {
		_, err = fmt.Fprintf(c, "CONNECT {\"headers\":true,\"verbose\":false}\r\nHPUB %s %d %d\r\n%s%s\r\nPING\r\n", subject, len(block), len(block)+len(data), block, data)
	}
	for err == nil && !strings.HasPrefix(line, "PONG") {
		line, err = in.ReadString('\n')
	}
	if err != nil {
		t.Fatal(err)
	}
}

func TestShardOf(t *testing.T) {
	for subject, want := range map[events.Subject]ident.Shard{
		events.ControlSubject(ident.Shard{Source: "k8s.io", Instance: "_ä"}): {Source: "k8s.io", Instance: "_ä"},
		events.ControlSubject(ident.Shard{}):                                 {},
		events.SegmentSubject:                                                {},
		events.OperatorOverlaySubject:                                        {},
		"file.default.any.thing.else":                                        {Source: "file", Instance: "default"},
		"=GG.x=":                                                             {Source: "=GG", Instance: "x="},
		"k.=FF.x":                                                            {Source: "k", Instance: "\uFFFD"},
		"k.=1B[31m.x":                                                        {Source: "k", Instance: "\uFFFD[31m"},
		"k.\xff.x":                                                           {Source: "k", Instance: "\uFFFD"},
	} {
		if got := events.ShardOf(subject); got != want {
			t.Errorf("%s is of %v, want %v", subject, got, want)
		}
	}
}

// BenchmarkSizes reads the sizes of a log, as a builder does when it starts.
func BenchmarkSizes(b *testing.B) {
	nc := natstest.Start(b).Connect(b)
	l := newLog(b, nc, natslog.StreamOptions{})
	js := natstest.JetStream(b, nc)
	const records = 100_000
	data, subject := make([]byte, 1<<10), events.ControlSubject(ident.Shard{Source: "s", Instance: "i"}).In("mesh")
	for n := range records {
		if _, err := js.PublishAsync(subject, data); err != nil {
			b.Fatal(err)
		}
		if n%1000 == 999 {
			<-js.PublishAsyncComplete()
		}
	}
	for b.Loop() {
		for s, err := range l.Sizes(b.Context(), 0) {
			if err != nil {
				b.Fatal(err)
			}
			if s.Seq == records {
				break
			}
		}
	}
	b.ReportMetric(float64(records)*float64(b.N)/b.Elapsed().Seconds(), "records/s")
}

package natslog_test

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"meshlog.dev/deploy/testkit/natstest"
	"meshlog.dev/events"
	"meshlog.dev/events/natslog"
	"meshlog.dev/proto/ident"
)

// benchLog opens a log on a server in this process that syncs every write, over
// loopback TCP or in process.
func benchLog(b *testing.B, tcp bool) *natslog.Log {
	b.Helper()
	s := natstest.StartTCP(b)
	nc := s.Connect(b)
	if tcp {
		nc = natstest.Connect(b, s.ClientURL())
	}
	return newLog(b, nc, natslog.StreamOptions{})
}

var transports = []struct {
	name string
	tcp  bool
}{{"in process", false}, {"tcp", true}}

// object returns an event with a payload of 1 KB.
func object(n int) events.Event {
	return events.Event{ID: fmt.Sprint("object-", n), Body: &events.Object{
		Key:     ident.Key{Source: "s", Instance: "i", Kind: "Thing", Namespace: "x", Name: fmt.Sprint(n)},
		Op:      events.Put,
		Value:   ident.Value{Type: "example.com/thing", Bytes: bytes.Repeat([]byte("x"), 1024)},
		Session: "1",
		Pseq:    uint64(n),
	}}
}

func objects(from, n int) []events.Event {
	batch := make([]events.Event, n)
	for i := range batch {
		batch[i] = object(from + i)
	}
	return batch
}

func BenchmarkAppend(b *testing.B) {
	for _, tr := range transports {
		for _, size := range []int{1, 10, 100} {
			b.Run(fmt.Sprintf("%s/batch of %d", tr.name, size), func(b *testing.B) {
				l := benchLog(b, tr.tcp)
				n := 1
				for b.Loop() {
					if _, err := l.Append(b.Context(), objects(n, size), events.Fence{}); err != nil {
						b.Fatal(err)
					}
					n += size
				}
				b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
			})
		}
	}
}

func BenchmarkAppendEach(b *testing.B) {
	l := benchLog(b, true)
	n := 1
	for b.Loop() {
		if err := l.AppendEach(b.Context(), objects(n, 1000)); err != nil {
			b.Fatal(err)
		}
		n += 1000
	}
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkFollow reads a log of 20000 records from its beginning.
func BenchmarkFollow(b *testing.B) {
	const records = 20000
	for _, tr := range transports {
		b.Run(tr.name, func(b *testing.B) {
			l := benchLog(b, tr.tcp)
			if err := l.AppendEach(b.Context(), objects(1, records)); err != nil {
				b.Fatal(err)
			}
			total := 0
			for b.Loop() {
				f, err := l.Follow(b.Context(), 0, "")
				if err != nil {
					b.Fatal(err)
				}
				for read := 0; read < records; {
					got, err := f.Next(b.Context())
					if err != nil {
						b.Fatal(err)
					}
					read += len(got)
				}
				total += records
				if err := f.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(total)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// BenchmarkTail measures the time from the call of Append to its return, and from
// there to the follower's Next.
func BenchmarkTail(b *testing.B) {
	for _, tr := range transports {
		b.Run(tr.name, func(b *testing.B) {
			l := benchLog(b, tr.tcp)
			f, err := l.Follow(b.Context(), 0, "")
			if err != nil {
				b.Fatal(err)
			}
			defer f.Close()
			received := make(chan time.Time)
			go func() {
				defer close(received)
				for {
					if _, err := f.Next(b.Context()); err != nil {
						return // the log is closed
					}
					received <- time.Now()
				}
			}()
			var appending, following time.Duration
			n := 0
			for b.Loop() {
				n++
				begin := time.Now()
				if _, err := l.Append(b.Context(), objects(n, 1), events.Fence{}); err != nil {
					b.Fatal(err)
				}
				acked := time.Now()
				appending += acked.Sub(begin)
				following += (<-received).Sub(begin)
			}
			b.ReportMetric(float64(appending.Microseconds())/float64(n), "µs-to-ack")
			b.ReportMetric(float64(following.Microseconds())/float64(n), "µs-to-next")
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
			<-received
		})
	}
}

// BenchmarkAck moves the bookmark of a named follower.
func BenchmarkAck(b *testing.B) {
	l := benchLog(b, false)
	if _, err := l.Append(b.Context(), objects(1, 500), events.Fence{}); err != nil {
		b.Fatal(err)
	}
	f, err := l.Follow(b.Context(), 0, "builder")
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	seq := uint64(0)
	for b.Loop() {
		seq++
		if err := f.Ack(b.Context(), seq%500+1); err != nil {
			b.Fatal(err)
		}
	}
}

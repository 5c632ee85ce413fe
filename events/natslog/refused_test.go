package natslog

import (
	"fmt"
	"iter"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/deploy/testkit/natstest"
	"meshlog.dev/events"
)

// A leader that lags behind the records that it has refuses one whose fence is right:
// it is sent again, and the log is whole.
func TestRestoreRefusedByNewLeader(t *testing.T) {
	for _, refusals := range []int{1, maxRefusals, maxRefusals + 1} {
		t.Run(fmt.Sprint(refusals), func(t *testing.T) {
			js, err := jetstream.New(natstest.Start(t).Connect(t))
			if err != nil {
				t.Fatal(err)
			}
			lagging := &laggingLeader{JetStream: js, refused: map[string]int{"4": refusals, "500": refusals}}
			r := restorer{js: lagging, domain: "d"}
			if err := r.create(t.Context(), StreamOptions{Options: Options{Domain: "d"}, MaxAge: time.Hour}.Config(), 1); err != nil {
				t.Fatal(err)
			}
			const records = 700
			err = r.publish(t.Context(), numbered(records))
			if refusals > maxRefusals {
				if err == nil {
					t.Error("a record that the server refuses always was restored")
				}
				return
			}
			if err != nil || lagging.refused["4"] != 0 || lagging.refused["500"] != 0 {
				t.Fatalf("%v; refusals left: %v", err, lagging.refused)
			}
			s, err := js.Stream(t.Context(), Stream)
			if err != nil {
				t.Fatal(err)
			}
			for seq := range uint64(records) {
				m, err := s.GetMsg(t.Context(), seq+1)
				if err != nil || string(m.Data) != fmt.Sprint(seq+1) {
					t.Fatalf("record %d: %v, %v", seq+1, m, err)
				}
			}
			if last := s.CachedInfo().State.LastSeq; last != records {
				t.Errorf("the stream has %d records, want %d", last, records)
			}
		})
	}
}

func numbered(n uint64) iter.Seq2[events.Raw, error] {
	return func(yield func(events.Raw, error) bool) {
		for i := range n {
			if !yield(events.Raw{Seq: i + 1, Subject: "a.b.Thing.c", Data: fmt.Append(nil, i+1)}, nil) {
				return
			}
		}
	}
}

// laggingLeader refuses some records.
type laggingLeader struct {
	jetstream.JetStream
	refused map[string]int // how often still, by data
}

func (l *laggingLeader) PublishMsgAsync(m *nats.Msg, opts ...jetstream.PublishOpt) (jetstream.PubAckFuture, error) {
	if data := string(m.Data); l.refused[data] > 0 {
		l.refused[data]--
		f := refusedFuture{make(chan error, 1)}
		f.err <- &jetstream.APIError{ErrorCode: jetstream.JSErrCodeStreamWrongLastSequence}
		return f, nil
	}
	return l.JetStream.PublishMsgAsync(m, opts...)
}

type refusedFuture struct{ err chan error }

func (refusedFuture) Ok() <-chan *jetstream.PubAck { return nil }
func (f refusedFuture) Err() <-chan error          { return f.err }
func (refusedFuture) Msg() *nats.Msg               { return nil }

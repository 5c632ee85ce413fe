package faultsim

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/deploy/testkit/natstest"
	"meshlog.dev/events"
	"meshlog.dev/events/archive"
	"meshlog.dev/events/natslog"
	"meshlog.dev/proto/jsapi"
)

// TestForgedOnNATS puts the logs of some schedules with forged records on NATS, as
// their writers would and as `meshlog import` does from an archive. All three fold to
// the same roots, with the same records refused (BUS-1, BUS-2).
func TestForgedOnNATS(t *testing.T) {
	server := natstest.Start(t)
	refused, own := 0, 0
	for seed := range uint64(8) {
		s, err := run(plan{seed: seed, faults: faultSets["forge"]})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		for _, r := range s.records() {
			if errors.Is(r.Err, events.ErrRefused) {
				refused++
			}
		}
		for how, restore := range map[string]restoreLog{"written": writeLog, "restored": importLog} {
			nc := server.Connect(t)
			o := natslog.StreamOptions{Options: natslog.Options{Domain: fmt.Sprint(how, seed)}, MaxAge: time.Hour}
			n, err := restore(t, s, nc, o)
			if err != nil {
				t.Fatalf("seed %d, %s: %v", seed, how, err)
			}
			own += n
			l, err := natslog.Open(t.Context(), nc, o.Options)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.sameLog(l, false); err != nil {
				t.Errorf("seed %d, %s: NATS differs: %v", seed, how, err)
			}
			if err := errors.Join(l.Close(), natstest.JetStream(t, nc).DeleteStream(context.Background(), natslog.Stream)); err != nil {
				t.Fatal(err)
			}
		}
	}
	t.Logf("%d refused records, %d of them written by a server", refused, own)
	if refused == 0 || own == 0 {
		t.Error("the schedules have no forged records, or none that a server made")
	}
}

// restoreLog puts the log of s on a server, and returns how many of the records a
// server wrote.
type restoreLog func(t *testing.T, s *sim, nc *nats.Conn, o natslog.StreamOptions) (int, error)

// importLog restores the log from an archive.
func importLog(t *testing.T, s *sim, nc *nats.Conn, o natslog.StreamOptions) (int, error) {
	path := filepath.Join(t.TempDir(), "archive")
	if err := export(t.Context(), s, path); err != nil {
		return 0, err
	}
	a, err := archive.Open(t.Context(), path)
	if err != nil {
		return 0, err
	}
	defer a.Close()
	return 0, natslog.Restore(t.Context(), nc, o, 1, a.Raw(t.Context(), 1, s.last()))
}

// writeLog publishes each record as its writer would: with the header of a publisher,
// or by a server that answers a request.
func writeLog(t *testing.T, s *sim, nc *nats.Conn, o natslog.StreamOptions) (byServer int, err error) {
	if _, err := natslog.EnsureStream(t.Context(), nc, o); err != nil {
		return 0, err
	}
	js := natstest.JetStream(t, nc)
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{
		Name: "SCRATCH", Subjects: []string{"scratch"}, AllowDirect: true, Storage: jetstream.MemoryStorage,
	})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, js.DeleteStream(context.Background(), "SCRATCH")) }()
	for raw, err := range s.log.Raw(t.Context(), 1, s.last()) {
		if err != nil {
			return 0, err
		}
		subject := raw.Subject.In(o.Domain)
		if raw.Refused == "" {
			if _, err := js.Publish(t.Context(), subject, raw.Data, jetstream.WithExpectStream(natslog.Stream), jetstream.WithExpectLastSequence(raw.Seq-1)); err != nil {
				return 0, err
			}
			continue
		}
		if _, err := js.Publish(t.Context(), "scratch", raw.Data); err != nil {
			return 0, err
		}
		if err := nc.PublishRequest(jsapi.DirectGet+"SCRATCH", subject, []byte(`{"last_by_subj":"scratch"}`)); err != nil {
			return 0, err
		}
		byServer++
		for last := uint64(0); last < raw.Seq; { // until the server has written it
			m, err := js.Stream(t.Context(), natslog.Stream)
			if err != nil {
				return 0, err
			}
			last = m.CachedInfo().State.LastSeq
		}
	}
	return byServer, nil
}

package events

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/proto/ident"
)

func TestRecord(t *testing.T) {
	e := examples()[0].event
	data, subject := encoded(t, e)
	local := exampleTime.In(time.FixedZone("x", 3600))
	want := Record{Seq: 5, Time: exampleTime, Hash: RecordHash(data, exampleTime), Event: e}
	if diff := cmp.Diff(want, Raw{Seq: 5, Time: local, Subject: subject, Data: data}.Record()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	bad := Raw{Seq: 6, Time: exampleTime, Subject: subject, Data: []byte("junk")}.Record()
	if bad.Err == nil || errors.Is(bad.Err, ErrRefused) || bad.Seq != 6 || bad.Event.Body != nil || bad.Hash != RecordHash([]byte("junk"), exampleTime) {
		t.Errorf("of junk: %+v", bad)
	}
	if RecordHash(data, exampleTime) == RecordHash(data, exampleTime.Add(1)) {
		t.Error("the server's time is not in the hash")
	}
}

// TestForged checks that every event is refused under every subject but its own
// (BUS-1): a key that may publish under one subject publishes nothing else.
func TestForged(t *testing.T) {
	subjects := map[Subject]bool{
		"file.default._ctl": true, "file.default.Resource.other": true, "file.default.Service.shop": true,
		"file.other.Resource.shop": true, "other.default.Resource.shop": true, "": true, "a.b": true,
	}
	for _, x := range examples() {
		_, s := encoded(t, x.event)
		subjects[s] = true
	}
	for _, x := range examples() {
		data, own := encoded(t, x.event)
		for s := range subjects {
			raw := Raw{Seq: 7, Time: exampleTime, Subject: s, Data: data}
			r := raw.Record()
			if s == own {
				if r.Err != nil || raw.Refusal() != "" {
					t.Errorf("%s under its own subject %s: %v", x.name, s, r.Err)
				}
				continue
			}
			if !errors.Is(r.Err, ErrRefused) || r.Event.Body != nil || r.Event.ID != "" {
				t.Errorf("%s under %s: %+v", x.name, s, r)
				continue
			}
			for _, part := range []string{string(s), string(own), x.event.ID} {
				if !strings.Contains(r.Err.Error(), part) {
					t.Errorf("%s under %s: %q does not name %q", x.name, s, r.Err, part)
				}
			}
		}
	}
}

// TestFarEpoch checks the greatest epoch that a segment may name (BUS-1): a year
// after the server's time of the record, whatever the reader's clock says.
func TestFarEpoch(t *testing.T) {
	const year = 365 * 24 * 3600
	at := uint64(exampleTime.Unix())
	for epoch, refused := range map[uint64]bool{1: false, at: false, at + year: false, at + year + 1: true, math.MaxUint64: true} {
		for _, g := range []*Segment{
			{Epoch: epoch, Build: "A"},
			{Epoch: 1, Build: "A", Head: ident.Position{Epoch: epoch, Seq: 1}},
		} {
			data, s := encoded(t, Event{ID: "x", Body: g})
			raw := Raw{Seq: 1, Time: exampleTime, Subject: s, Data: data}
			r := raw.Record()
			if errors.Is(r.Err, ErrRefused) != refused || (raw.Refusal() != "") != refused {
				t.Errorf("%+v: %v", g, r.Err)
			}
		}
	}
	if ident.MaxEpoch(time.Unix(-1<<40, 0)) != 0 {
		t.Error("a time before 1970 has a limit above 0")
	}
}

// TestRefused checks that the verdict of a driver holds whatever the bytes are, and
// that copies keep it (BUS-2).
func TestRefused(t *testing.T) {
	data, s := encoded(t, examples()[0].event)
	raw := Raw{Seq: 1, Time: exampleTime, Subject: s, Data: data, Refused: "a server made it"}
	r := raw.Record()
	if !errors.Is(r.Err, ErrRefused) || !strings.Contains(r.Err.Error(), raw.Refused) || r.Event.Body != nil {
		t.Errorf("%+v", r)
	}
	if r.Hash != RecordHash(data, exampleTime) || raw.Refusal() != raw.Refused {
		t.Errorf("hash %s, refusal %q", r.Hash, raw.Refusal())
	}
}

func encoded(t *testing.T, e Event) ([]byte, Subject) {
	t.Helper()
	data, err := Encode(e)
	if err != nil {
		t.Fatal(err)
	}
	s, err := SubjectOf(e)
	if err != nil {
		t.Fatal(err)
	}
	return data, s
}

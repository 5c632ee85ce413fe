package events_test

import (
	"bytes"
	"crypto/ed25519"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protowire"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

func testKey(b byte) ed25519.PrivateKey {
	return ed25519.NewKeyFromSeed(bytes.Repeat([]byte{b}, ed25519.SeedSize))
}

// record returns the record that a log makes of an event.
func record(t *testing.T, e events.Event) events.Raw {
	t.Helper()
	messages, err := events.Messages([]events.Event{e})
	if err != nil {
		t.Fatal(err)
	}
	return events.Raw{Seq: 9, Time: time.Unix(9, 0), Subject: messages[0].Subject, Data: messages[0].Data}
}

func approval(id string) events.Event {
	return events.Event{ID: "approve/" + id, Actor: "ann", Body: &events.Overlay{ID: id, Remove: true}}
}

func signed(t *testing.T, e events.Event) events.Event {
	t.Helper()
	e, err := events.Sign(e, testKey(1), "epoch-id", ident.Position{Epoch: 3, Seq: 8}, 1)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestSign(t *testing.T) {
	shard := ident.Shard{Source: ident.API, Instance: "default"}
	watched := ident.Shard{Source: "file", Instance: "default"}
	bodies := map[events.Subject]events.Body{
		"_operator.overlay":      &events.Overlay{ID: "hold-1", Remove: true},
		"api.default._ctl":       &events.Begin{Shard: shard, Session: "s", Holder: "ann"},
		"api.default.Thing.shop": &events.Object{Key: ident.Key{Source: "api", Instance: "default", Kind: "Thing", Namespace: "shop", Name: "a"}, Op: events.Delete, Session: "s", Pseq: 1},
		"_operator.control":      &events.Begin{Shard: watched, Session: "s", Holder: "ann"},
	}
	for subject, body := range bodies {
		raw := record(t, signed(t, events.Event{ID: "x", Observed: time.Unix(5, 0), Actor: "ann", Body: body}))
		rec := raw.Record()
		switch s := rec.Event.Signature; {
		case rec.Err != nil:
			t.Errorf("%s: %v", subject, rec.Err)
		case raw.Subject != subject:
			t.Errorf("signed %T is under %s, want %s", body, raw.Subject, subject)
		case s == nil || !s.Valid():
			t.Errorf("%s: the signature of the record is not valid: %+v", subject, s)
		case s.Read != ident.Position{Epoch: 3, Seq: 8} || s.Number != 1 || s.EpochID != "epoch-id":
			t.Errorf("%s: signature %+v", subject, s)
		}
	}
}

// TestSignatureMoved moves a signature to other content, and changes what it says.
func TestSignatureMoved(t *testing.T) {
	good := signed(t, approval("hold-1"))
	moved := func(e events.Event, change func(*events.Signature)) events.Raw {
		s := *good.Signature
		change(&s)
		e.Signature = &s
		return record(t, e)
	}
	same := func(*events.Signature) {}
	raws := map[string]events.Raw{
		"another payload":     moved(approval("hold-2"), same),
		"another actor":       moved(events.Event{ID: "approve/hold-1", Actor: "eve", Body: approval("hold-1").Body}, same),
		"another id":          moved(events.Event{ID: "again", Actor: "ann", Body: approval("hold-1").Body}, same),
		"another epoch":       moved(approval("hold-1"), func(s *events.Signature) { s.Read.Epoch++ }),
		"a later position":    moved(approval("hold-1"), func(s *events.Signature) { s.Read.Seq++ }),
		"another number":      moved(approval("hold-1"), func(s *events.Signature) { s.Number++ }),
		"another mesh":        moved(approval("hold-1"), func(s *events.Signature) { s.EpochID = "other" }),
		"another key":         moved(approval("hold-1"), func(s *events.Signature) { copy(s.Key[:], testKey(2).Public().(ed25519.PublicKey)) }),
		"no bytes":            moved(approval("hold-1"), func(s *events.Signature) { s.Bytes = [64]byte{} }),
		"unknown field after": record(t, good),
		"second signature":    record(t, good),
	}
	after := raws["unknown field after"]
	after.Data = protowire.AppendVarint(protowire.AppendTag(bytes.Clone(after.Data), 900, protowire.VarintType), 1)
	raws["unknown field after"] = after
	twice := raws["second signature"]
	b, _ := events.Encode(approval("hold-1"))
	twice.Data = append(bytes.Clone(twice.Data), twice.Data[len(b):]...)
	raws["second signature"] = twice
	before := record(t, good)
	before.Data = append(bytes.Clone(before.Data[len(b):]), b...)
	raws["signature before the rest"] = before
	for name, raw := range raws {
		rec := raw.Record()
		if rec.Err != nil || rec.Event.Signature == nil {
			t.Errorf("%s: %v, signature %v: want a record with a signature that is not valid", name, rec.Err, rec.Event.Signature)
			continue
		}
		if rec.Event.Signature.Valid() {
			t.Errorf("%s: the signature is valid", name)
		}
	}
	raw := record(t, good)
	raw.Subject = "_operator.control"
	if rec := raw.Record(); rec.Err == nil {
		t.Error("under another subject: the record counts")
	}
	if rec := record(t, good).Record(); !rec.Event.Signature.Valid() {
		t.Error("the record itself is not valid")
	}
}

package fold

import (
	"crypto/ed25519"
	"crypto/sha256"
	"strconv"
	"strings"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/permit"
)

// signer returns the key of an operator of the scripts.
func signer(name string) ed25519.PrivateKey {
	seed := sha256.Sum256([]byte(name))
	return ed25519.NewKeyFromSeed(seed[:])
}

func signerText(name string) string {
	return permit.KeyText(permit.Key(signer(name).Public().(ed25519.PublicKey)))
}

// onLog returns the record that a log makes of the event of rec.
func onLog(rec events.Record) events.Record {
	messages, err := events.Messages([]events.Event{rec.Event})
	if err != nil {
		panic(err)
	}
	raw := events.Raw{Seq: rec.Seq, Time: rec.Time, Subject: messages[0].Subject, Data: messages[0].Data}
	made := raw.Record()
	made.Hash = rec.Hash
	return made
}

// bySigned returns the record of a line with a signature.
func (s *script) bySigned(w words, line string) events.Record {
	if s.signed == nil {
		s.signed = map[uint64]events.Event{}
	}
	name, rest, _ := strings.Cut(strings.TrimSpace(strings.TrimPrefix(line, w.verb)), " ")
	number, _ := strconv.ParseUint(name, 10, 64)
	if w.verb == "again" {
		rec, _ := s.record("remove again")
		rec.Event = s.signed[number]
		return onLog(rec)
	}
	rec, ok := s.record(rest)
	if !ok {
		panic("not a record: " + line)
	}
	if w.verb == "steal" {
		rec.Event.Signature = s.signed[number].Signature
		return onLog(rec)
	}
	read := ident.Position{Epoch: w.number("of", s.fold.Segment().Epoch), Seq: w.number("read", rec.Seq-1)}
	mesh, ok := w.options["mesh"]
	if !ok {
		mesh = s.fold.Segment().ID
	}
	var err error
	if rec.Event, err = events.Sign(rec.Event, signer(name), mesh, read, w.number("number", 1)); err != nil {
		panic(err)
	}
	s.signed[rec.Seq] = rec.Event
	return onLog(rec)
}

package events

import (
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/binary"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	eventv1 "meshlog.dev/proto/meshlog/event/v1"
)

// Signature proves which key appended a record, and that the record is not one from
// elsewhere: it covers the subject, the bytes of the event as they are on the log, the
// epoch of the mesh, and where the operator had read to.
type Signature struct {
	Key [ed25519.PublicKeySize]byte
	// EpochID is the id of the record that began the epoch.
	EpochID string
	// Read is the last record that the operator had read.
	Read ident.Position
	// Number orders the records that a key signs at one Read.
	Number uint64
	Bytes  [ed25519.SignatureSize]byte
	// Sum is the hash that Bytes sign. Raw.Record computes it from the bytes of the
	// record; it is zero if other bytes follow the signature.
	Sum ident.Hash
}

// signatureContext begins what is signed, so that a signature for another purpose is none
// for this one.
const signatureContext = "meshlog record of an operator, version 1\n"

// signatureField is the number of Event.signature.
const signatureField = 15

// Sign returns e with the signature of an operator. A signature that e had before does
// not count.
func Sign(e Event, key ed25519.PrivateKey, epochID string, read ident.Position, number uint64) (Event, error) {
	s := &Signature{EpochID: epochID, Read: read, Number: number}
	copy(s.Key[:], key.Public().(ed25519.PublicKey))
	e.Signature = s
	b, err := encodeUnsigned(e)
	if err != nil {
		return Event{}, err
	}
	subject, err := SubjectOf(e)
	if err != nil {
		return Event{}, err
	}
	s.Sum = s.sum(subject, b)
	copy(s.Bytes[:], ed25519.Sign(key, s.signed()))
	return e, nil
}

// Valid reports whether the key has signed the record. It does not say whose key it is,
// nor whether the record is at its place.
func (s *Signature) Valid() bool {
	return !s.Sum.IsZero() && ed25519.Verify(s.Key[:], s.signed(), s.Bytes[:])
}

func (s *Signature) signed() []byte { return append([]byte(signatureContext), s.Sum[:]...) }

// sum returns the hash of all that is signed; event has the bytes before the signature.
func (s *Signature) sum(subject Subject, event []byte) ident.Hash {
	content := sha256.Sum256(event)
	b := appendField(nil, string(subject))
	b = appendField(b, s.EpochID)
	for _, n := range []uint64{s.Read.Epoch, s.Read.Seq, s.Number} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	b = append(append(b, s.Key[:]...), content[:]...)
	return sha256.Sum256(b)
}

// appendSignature appends the field of a signature to the bytes of an event. The encoder
// of protobuf promises no order of fields, so the field is written by hand.
func appendSignature(b []byte, s *Signature) ([]byte, error) {
	m, err := proto.MarshalOptions{Deterministic: true}.Marshal(&eventv1.Signature{
		Key: s.Key[:], EpochId: s.EpochID, Epoch: s.Read.Epoch, Seq: s.Read.Seq, Number: s.Number, Signature: s.Bytes[:],
	})
	if err != nil {
		return nil, err
	}
	return protowire.AppendBytes(protowire.AppendTag(b, signatureField, protowire.BytesType), m), nil
}

// unsigned returns the bytes of an event before its signature; false unless the signature
// is the last field, and the only one.
func unsigned(raw []byte) ([]byte, bool) {
	for at := 0; at < len(raw); {
		number, _, n := protowire.ConsumeField(raw[at:])
		if n < 0 {
			return nil, false
		}
		if number == signatureField {
			return raw[:at], at+n == len(raw)
		}
		at += n
	}
	return nil, false
}

// verifiable computes what the signature of a record signs.
func (s *Signature) verifiable(r Raw) {
	if b, ok := unsigned(r.Data); ok {
		s.Sum = s.sum(r.Subject, b)
	}
}

func checkSignature(s *eventv1.Signature) error {
	if s == nil {
		return nil
	}
	for _, f := range []struct {
		name string
		b    []byte
		want int
	}{{"key", s.GetKey(), ed25519.PublicKeySize}, {"signature", s.GetSignature(), ed25519.SignatureSize}} {
		if len(f.b) != f.want {
			return fmt.Errorf("%s: has %d bytes instead of %d", f.name, len(f.b), f.want)
		}
	}
	return text("epoch_id", s.GetEpochId())
}

func signatureFromProto(m *eventv1.Signature) *Signature {
	if m == nil {
		return nil
	}
	return &Signature{
		Key: [ed25519.PublicKeySize]byte(m.GetKey()), EpochID: m.GetEpochId(), Number: m.GetNumber(),
		Read:  ident.Position{Epoch: m.GetEpoch(), Seq: m.GetSeq()},
		Bytes: [ed25519.SignatureSize]byte(m.GetSignature()),
	}
}

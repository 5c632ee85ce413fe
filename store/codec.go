package store

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
)

// HashFrom decodes a hash; no bytes are the zero Hash.
func HashFrom(b []byte) (ident.Hash, error) {
	switch len(b) {
	case 0:
		return ident.Hash{}, nil
	case len(ident.Hash{}):
		return ident.Hash(b), nil
	}
	return ident.Hash{}, fmt.Errorf("hash of %d bytes, want %d", len(b), len(ident.Hash{}))
}

// RootOf returns the root in a manifest, the zero Hash if it has no valid one.
func RootOf(m *Manifest) ident.Hash {
	h, _ := HashFrom(m.GetRoot())
	return h
}

// PreviousOf returns the version that a manifest follows, and its root.
func PreviousOf(m *Manifest) (ident.Position, ident.Hash) {
	h, _ := HashFrom(m.GetPreviousRoot())
	return VersionOf(m.GetPrevious()), h
}

// marshal encodes equal messages as equal bytes.
func marshal(m proto.Message) ([]byte, error) {
	return proto.MarshalOptions{Deterministic: true}.Marshal(m)
}

// EncodeManifest encodes m; equal manifests give equal bytes.
func EncodeManifest(m *Manifest) ([]byte, error) {
	if err := CheckManifest(m); err != nil {
		return nil, err
	}
	return marshal(m)
}

// DecodeManifest is the reverse of EncodeManifest. It keeps no reference to b.
func DecodeManifest(b []byte) (*Manifest, error) {
	m := new(Manifest)
	if err := proto.Unmarshal(b, m); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	return m, CheckManifest(m)
}

// EncodeDelta encodes d; equal deltas give equal bytes.
func EncodeDelta(d Delta) ([]byte, error) {
	p, err := deltaProto(d)
	if err != nil {
		return nil, err
	}
	return marshal(p)
}

// DecodeDelta is the reverse of EncodeDelta. It keeps no reference to b.
func DecodeDelta(b []byte) (Delta, error) {
	p := new(snapshotv1.Delta)
	if err := proto.Unmarshal(b, p); err != nil {
		return Delta{}, fmt.Errorf("delta: %w", err)
	}
	return deltaOf(p)
}

// EncodeUpdate encodes u. If blob is not zero, it encodes the hash of the blob
// with the delta instead of the delta. Equal updates give equal bytes.
func EncodeUpdate(u Update, blob ident.Hash) ([]byte, error) {
	if err := CheckManifest(u.Manifest); err != nil {
		return nil, err
	}
	p := &snapshotv1.Update{Manifest: u.Manifest}
	if !blob.IsZero() {
		p.DeltaBlob = blob[:]
		return marshal(p)
	}
	d, err := deltaProto(u.Delta)
	if err != nil {
		return nil, fmt.Errorf("version %s: %w", VersionOf(u.Manifest.GetVersion()), err)
	}
	p.Delta = d
	return marshal(p)
}

// DecodeUpdate is the reverse of EncodeUpdate. If blob is not zero, the delta is
// empty and the blob holds it. DecodeUpdate keeps no reference to b.
func DecodeUpdate(b []byte) (u Update, blob ident.Hash, err error) {
	p := new(snapshotv1.Update)
	if err := proto.Unmarshal(b, p); err != nil {
		return u, blob, fmt.Errorf("update: %w", err)
	}
	u.Manifest = p.GetManifest()
	if err := CheckManifest(u.Manifest); err != nil {
		return u, blob, fmt.Errorf("update: %w", err)
	}
	blob, err = HashFrom(p.GetDeltaBlob())
	switch {
	case err != nil:
		err = fmt.Errorf("delta_blob: %w", err)
	case p.Delta != nil && len(p.DeltaBlob) > 0:
		err = errors.New("delta_blob: must be absent beside a delta")
	case p.Delta == nil && blob.IsZero():
		err = errors.New("delta: is missing")
	default:
		u.Delta, err = deltaOf(p.GetDelta())
	}
	if err != nil {
		return u, blob, fmt.Errorf("update %s: %w", VersionOf(u.Manifest.GetVersion()), err)
	}
	return u, blob, nil
}

const manifestField protowire.Number = 1 // of an Update

// DecodeUpdateManifest returns the manifest of an encoded update, and does not decode the
// delta. It keeps no reference to b.
func DecodeUpdateManifest(b []byte) (*Manifest, error) {
	m := new(Manifest)
	for len(b) > 0 {
		num, typ, n := protowire.ConsumeField(b)
		if err := protowire.ParseError(n); err != nil {
			return nil, fmt.Errorf("update: %w", err)
		}
		field := b[:n]
		b = b[n:]
		if num != manifestField || typ != protowire.BytesType {
			continue
		}
		_, _, n = protowire.ConsumeTag(field)
		is, _ := protowire.ConsumeBytes(field[n:])
		if err := (proto.UnmarshalOptions{Merge: true}).Unmarshal(is, m); err != nil {
			return nil, fmt.Errorf("update: manifest: %w", err)
		}
	}
	if err := CheckManifest(m); err != nil {
		return nil, fmt.Errorf("update: %w", err)
	}
	return m, nil
}

// EncodeCheckpoint encodes c, for a checkpoint that is a blob itself, such as the
// base of a segment. Equal checkpoints give equal bytes.
func EncodeCheckpoint(c *snapshotv1.Checkpoint) ([]byte, error) {
	if err := checkRefs(c); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	return marshal(c)
}

// DecodeCheckpoint is the reverse of EncodeCheckpoint. It keeps no reference to b.
func DecodeCheckpoint(b []byte) (*snapshotv1.Checkpoint, error) {
	c := new(snapshotv1.Checkpoint)
	if err := proto.Unmarshal(b, c); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	if err := checkRefs(c); err != nil {
		return nil, fmt.Errorf("checkpoint: %w", err)
	}
	return c, nil
}

func deltaProto(d Delta) (*snapshotv1.Delta, error) {
	if err := d.Check(); err != nil {
		return nil, err
	}
	return &snapshotv1.Delta{Put: rowsProto(d.Put), Remove: d.Remove}, nil
}

func deltaOf(p *snapshotv1.Delta) (Delta, error) {
	d := Delta{Put: rowsOf(p.GetPut()), Remove: p.GetRemove()}
	return d, d.Check()
}

func rowsProto(rows []Row) []*snapshotv1.Row {
	all := make([]snapshotv1.Row, len(rows))
	ps := make([]*snapshotv1.Row, len(rows))
	for i, row := range rows {
		all[i].Key, all[i].Value = row.Key, row.Value
		ps[i] = &all[i]
	}
	return ps
}

func rowsOf(ps []*snapshotv1.Row) []Row {
	if len(ps) == 0 {
		return nil
	}
	rows := make([]Row, len(ps))
	for i, p := range ps {
		rows[i] = Row{p.GetKey(), p.GetValue()}
	}
	return rows
}

package store

import (
	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
)

// VersionOf decodes a version; nil is the zero Position.
func VersionOf(p *snapshotv1.Version) ident.Position {
	return ident.Position{Epoch: p.GetEpoch(), Seq: p.GetSeq()}
}

// VersionProto encodes v.
func VersionProto(v ident.Position) *snapshotv1.Version {
	return &snapshotv1.Version{Epoch: v.Epoch, Seq: v.Seq}
}

// Manifest describes a version without its content.
type Manifest = snapshotv1.Manifest

// Row is one entry of a snapshot or of a side table.
type Row struct {
	Key   string
	Value []byte
}

// Delta leads from one set of rows to another. Put and Remove are sorted by key
// and have no key in common.
type Delta struct {
	Put    []Row
	Remove []string
}

// IsEmpty reports whether the delta changes nothing.
func (d Delta) IsEmpty() bool { return len(d.Put) == 0 && len(d.Remove) == 0 }

// Update is one link of the version chain: a version and the delta that leads to
// it from the version before.
type Update struct {
	Manifest *Manifest
	Delta    Delta
}

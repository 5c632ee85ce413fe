package store

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
)

// Version names a published world: the position of the log that it contains.
// The zero Version lies before all others.
type Version struct{ Epoch, Seq uint64 }

// Compare is -1, 0 or 1 as v lies before, at or after w.
func (v Version) Compare(w Version) int {
	return cmp.Or(cmp.Compare(v.Epoch, w.Epoch), cmp.Compare(v.Seq, w.Seq))
}

// Less says whether v lies before w.
func (v Version) Less(w Version) bool { return v.Compare(w) < 0 }

// IsZero says whether v is the version before all others.
func (v Version) IsZero() bool { return v == Version{} }

// String is epoch.seq.
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Epoch, v.Seq) }

// MarshalText is String: in logs and JSON a version is one word.
func (v Version) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// Proto is v on the wire.
func (v Version) Proto() *snapshotv1.Version {
	return &snapshotv1.Version{Epoch: v.Epoch, Seq: v.Seq}
}

// VersionOf reads a version from the wire; nil is the zero Version.
func VersionOf(p *snapshotv1.Version) Version { return Version{p.GetEpoch(), p.GetSeq()} }

// ParseVersion reads what String printed.
func ParseVersion(s string) (Version, error) {
	var v Version
	var rest string
	if n, _ := fmt.Sscanf(s, "%d.%d%s", &v.Epoch, &v.Seq, &rest); n != 2 {
		return Version{}, fmt.Errorf("version %q: want EPOCH.SEQ, as `meshlog versions` prints it", s)
	}
	return v, nil
}

// Hash is a SHA-256 sum.
type Hash [sha256.Size]byte

// HashOf is the hash of b, and its name as a blob.
func HashOf(b []byte) Hash { return sha256.Sum256(b) }

// String is lower-case hex.
func (h Hash) String() string { return hex.EncodeToString(h[:]) }

// IsZero says whether h is the hash of nothing.
func (h Hash) IsZero() bool { return h == Hash{} }

// Manifest says everything of a version but its content.
type Manifest = snapshotv1.Manifest

// Row is one entry of a snapshot or of a side table.
type Row struct {
	Key   string
	Value []byte
}

// Delta leads from one set of rows to another. Put and Remove are sorted by
// key and share none.
type Delta struct {
	Put    []Row
	Remove []string
}

// IsEmpty says whether the delta changes nothing.
func (d Delta) IsEmpty() bool { return len(d.Put) == 0 && len(d.Remove) == 0 }

// Update is one link of the version chain: a version and what leads to it
// from the one before.
type Update struct {
	Manifest *Manifest
	Delta    Delta
}

package events

import (
	"cmp"
	"fmt"
)

// Position is a place on the log, and the version of the world there.
// Positions are ordered by epoch, then by sequence. The zero Position lies
// before all others.
type Position struct{ Epoch, Seq uint64 }

// Compare is -1, 0 or 1 as p lies before, at or after q.
func (p Position) Compare(q Position) int {
	return cmp.Or(cmp.Compare(p.Epoch, q.Epoch), cmp.Compare(p.Seq, q.Seq))
}

// Less says whether p lies before q.
func (p Position) Less(q Position) bool { return p.Compare(q) < 0 }

// IsZero says whether p is the place before all others.
func (p Position) IsZero() bool { return p == Position{} }

// String is epoch.seq.
func (p Position) String() string { return fmt.Sprintf("%d.%d", p.Epoch, p.Seq) }

// MarshalText is String: in logs and JSON a position is one word.
func (p Position) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// ParsePosition reads what String printed.
func ParsePosition(s string) (Position, error) {
	var p Position
	var rest string
	if n, _ := fmt.Sscanf(s, "%d.%d%s", &p.Epoch, &p.Seq, &rest); n != 2 {
		return Position{}, fmt.Errorf("position %q: want EPOCH.SEQ, as `meshlog versions` prints it", s)
	}
	return p, nil
}

package store

import (
	"iter"
)

// Snapshot is an immutable set of rows with a Merkle root over 4096 buckets of
// keys. A change makes a new one that shares what did not change; it costs
// O(rows changed), the root included. The nil *Snapshot is the empty one.
type Snapshot struct{}

// With is s after d.
func (s *Snapshot) With(d Delta) *Snapshot { panic("contract") }

// Get returns the value of a row.
func (s *Snapshot) Get(key string) ([]byte, bool) { panic("contract") }

// Len is how many rows there are.
func (s *Snapshot) Len() int { panic("contract") }

// Root covers all rows, in whatever order they came.
func (s *Snapshot) Root() Hash { panic("contract") }

// Rows yields all rows; the order is the same for equal snapshots.
func (s *Snapshot) Rows() iter.Seq[Row] { panic("contract") }

// Diff is what leads from one snapshot to another. It costs O(difference)
// where they share structure.
func Diff(from, to *Snapshot) Delta { panic("contract") }

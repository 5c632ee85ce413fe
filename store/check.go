package store

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
)

// CheckManifest returns an error unless m is a valid manifest.
func CheckManifest(m *Manifest) error {
	v, prev := VersionOf(m.GetVersion()), VersionOf(m.GetPrevious())
	if v.IsZero() {
		return errors.New("manifest: version: is missing")
	}
	if !prev.Less(v) {
		return fmt.Errorf("manifest %s: previous: is %s, must be smaller", v, prev)
	}
	if len(m.GetRoot()) != len(ident.Hash{}) {
		return fmt.Errorf("manifest %s: root: has %d bytes, want %d", v, len(m.GetRoot()), len(ident.Hash{}))
	}
	if _, err := HashFrom(m.GetPreviousRoot()); err != nil {
		return fmt.Errorf("manifest %s: previous_root: %w", v, err)
	}
	if err := checkRefs(m.GetCheckpoint()); err != nil {
		return fmt.Errorf("manifest %s: checkpoint: %w", v, err)
	}
	if err := checkRefs(m.GetFoldCheckpoint()); err != nil {
		return fmt.Errorf("manifest %s: fold_checkpoint: %w", v, err)
	}
	return nil
}

func checkRefs(c *snapshotv1.Checkpoint) error {
	for i, ref := range c.GetChunks() {
		if len(ref.GetHash()) != len(ident.Hash{}) {
			return fmt.Errorf("chunks[%d].hash: has %d bytes, want %d", i, len(ref.GetHash()), len(ident.Hash{}))
		}
	}
	return nil
}

// Check returns an error if rows of d are out of order, or a key occurs twice.
func (d Delta) Check() error {
	for i := 1; i < len(d.Put); i++ {
		if d.Put[i-1].Key >= d.Put[i].Key {
			return fmt.Errorf("delta: put[%d]: %q must come before %q, and only once", i, d.Put[i].Key, d.Put[i-1].Key)
		}
	}
	for i := 1; i < len(d.Remove); i++ {
		if d.Remove[i-1] >= d.Remove[i] {
			return fmt.Errorf("delta: remove[%d]: %q must come before %q, and only once", i, d.Remove[i], d.Remove[i-1])
		}
	}
	put := d.Put
	for i, key := range d.Remove {
		n, found := slices.BinarySearchFunc(put, key, compareRow)
		if found {
			return fmt.Errorf("delta: remove[%d]: %q is put as well", i, key)
		}
		put = put[n:]
	}
	return nil
}

// leads reports whether d leads from one snapshot to another. It hashes no values.
func (d Delta) leads(from, to *Snapshot) bool {
	for _, row := range d.Put {
		if value, ok := to.Get(row.Key); !ok || !bytes.Equal(value, row.Value) {
			return false
		}
	}
	for _, key := range d.Remove {
		if _, ok := to.Get(key); ok {
			return false
		}
	}
	need := Diff(from, to)
	for _, row := range need.Put {
		if _, ok := slices.BinarySearchFunc(d.Put, row.Key, compareRow); !ok {
			return false
		}
	}
	for _, key := range need.Remove {
		if _, ok := slices.BinarySearch(d.Remove, key); !ok {
			return false
		}
	}
	return true
}

// Check returns an error unless u can be published.
func (u Update) Check() error {
	if err := CheckManifest(u.Manifest); err != nil {
		return err
	}
	if err := u.Delta.Check(); err != nil {
		return fmt.Errorf("version %s: %w", VersionOf(u.Manifest.GetVersion()), err)
	}
	return nil
}

// Check returns an error unless the content has the root in the manifest.
func (s Stored) Check() error {
	if got, want := s.Snapshot.Root(), RootOf(s.Manifest); got != want {
		return fmt.Errorf("version %s has root %s, its manifest says %s: %w", s.Version(), got, want, ErrCorrupt)
	}
	return nil
}

// Check returns an error unless c can be committed after latest, the newest
// version so far (zero for none). Stores call it before they write.
func (c Commit) Check(latest Stored) error {
	if err := CheckManifest(c.Manifest); err != nil {
		return err
	}
	v := VersionOf(c.Manifest.GetVersion())
	if !latest.Version().Less(v) {
		return fmt.Errorf("version %s: must be greater than %s, the latest", v, latest.Version())
	}
	if err := (Stored{c.Manifest, c.Snapshot}).Check(); err != nil {
		return err
	}
	if err := c.Delta.Check(); err != nil {
		return fmt.Errorf("version %s: %w", v, err)
	}
	if !c.Delta.leads(latest.Snapshot, c.Snapshot) {
		return fmt.Errorf("version %s: the delta does not lead from %s to the content: %w", v, latest.Version(), ErrCorrupt)
	}
	if err := c.Side.Check(); err != nil {
		return fmt.Errorf("version %s: side table: %w", v, err)
	}
	return nil
}

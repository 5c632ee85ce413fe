package bolt

import (
	"encoding/binary"
	"fmt"

	"go.etcd.io/bbolt"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// The buckets of the file.
var (
	// rowsBucket holds the content of the latest version: key -> value. The
	// root in the manifest covers it.
	rowsBucket = []byte("rows")
	// versionsBucket holds the manifests: version -> Manifest.
	versionsBucket = []byte("versions")
	// undoBucket holds the deltas that lead from a version back to the one kept
	// before it: version -> Delta.
	undoBucket = []byte("undo")
	// sideBucket holds the side table: key -> value.
	sideBucket = []byte("side")
	// metaBucket holds the format, and by its name the digest of each of the
	// three buckets above: the exclusive or of the hashes of its rows.
	metaBucket = []byte("meta")
	formatKey  = []byte("format")
	// digested are the buckets that a digest covers.
	digested = [][]byte{versionsBucket, undoBucket, sideBucket}
)

// format is the layout of the buckets. Open sets aside a file with another one.
const format = "1"

// versionKey returns a key that sorts as its version.
func versionKey(v ident.Position) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, v.Epoch), v.Seq)
}

// digest changes with every row of a bucket, and costs O(1) per change.
type digest ident.Hash

// flip adds a row, or removes it.
func (d *digest) flip(key, value []byte) {
	b := binary.BigEndian.AppendUint64(nil, uint64(len(key)))
	b = append(append(b, key...), value...)
	h := ident.HashOf(b)
	for i := range d {
		d[i] ^= h[i]
	}
}

// changer changes a bucket and its digest, within one transaction.
type changer struct {
	bucket *bbolt.Bucket
	meta   *bbolt.Bucket
	name   []byte
	digest digest
}

func change(tx *bbolt.Tx, name []byte) *changer {
	c := &changer{bucket: tx.Bucket(name), meta: tx.Bucket(metaBucket), name: name}
	copy(c.digest[:], c.meta.Get(name))
	return c
}

func (c *changer) put(key, value []byte) error {
	if old := c.bucket.Get(key); old != nil {
		c.digest.flip(key, old)
	}
	c.digest.flip(key, value)
	return c.bucket.Put(key, value)
}

func (c *changer) remove(key []byte) error {
	old := c.bucket.Get(key)
	if old == nil {
		return nil
	}
	c.digest.flip(key, old)
	return c.bucket.Delete(key)
}

// apply applies d by the functions of a bucket or of a changer.
func apply(d store.Delta, put func(key, value []byte) error, remove func(key []byte) error) error {
	for _, key := range d.Remove {
		if err := remove([]byte(key)); err != nil {
			return fmt.Errorf("row %q: %w", key, err)
		}
	}
	for _, row := range d.Put {
		if err := put([]byte(row.Key), row.Value); err != nil {
			return fmt.Errorf("row %q: %w", row.Key, err)
		}
	}
	return nil
}

// changeSide applies d to the side table.
func changeSide(tx *bbolt.Tx, d store.Delta) error {
	side := change(tx, sideBucket)
	if err := apply(d, side.put, side.remove); err != nil {
		return err
	}
	return side.done()
}

// done writes the digest; the caller must not change rows after it.
func (c *changer) done() error { return c.meta.Put(c.name, c.digest[:]) }

package logcopy

import (
	"context"
	"encoding/binary"
	"fmt"
	"hash/crc32"

	"go.etcd.io/bbolt"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

// trimAtOnce is how many records one Append removes at most.
const trimAtOnce = 4096

// Append adds records, which follow on the last one, and removes the oldest that the limits
// leave out.
func (c *Copy) Append(ctx context.Context, records []events.Raw) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.change(func(tx *bbolt.Tx, b *events.Bounds, s *sizes) error {
		log, subjects := tx.Bucket(logBucket), tx.Bucket(subjectBucket)
		for _, r := range records {
			if r.Seq != b.Last+1 {
				return fmt.Errorf("record %d does not follow on record %d: %w", r.Seq, b.Last, events.ErrGap)
			}
			value := encode(r)
			if err := log.Put(seqKey(r.Seq), value); err != nil {
				return err
			}
			if err := subjects.Put(subjectKey(r.Subject, r.Seq), nil); err != nil {
				return err
			}
			b.Last, s.records = r.Seq, s.records+int64(len(value)+len(r.Subject))
		}
		return c.trim(tx, b, s)
	})
}

// trim removes the oldest records that the limits leave out; the newest stays.
func (c *Copy) trim(tx *bbolt.Tx, b *events.Bounds, s *sizes) error {
	log, subjects := tx.Bucket(logBucket), tx.Bucket(subjectBucket)
	most := max(c.limits.Bytes/2, c.limits.Bytes-s.blobs)
	newest, err := decode(b.Last, log.Get(seqKey(b.Last)))
	if err != nil {
		return nil // there is none
	}
	for range trimAtOnce {
		value := log.Get(seqKey(b.First))
		r, err := decode(b.First, value)
		if err != nil {
			return err
		}
		large := c.limits.Bytes > 0 && s.records > most
		old := c.limits.Age > 0 && newest.Time.Sub(r.Time) > c.limits.Age
		if b.First == b.Last || !large && !old {
			return nil
		}
		s.records -= int64(len(value) + len(r.Subject))
		if err := log.Delete(seqKey(b.First)); err != nil {
			return err
		}
		if err := subjects.Delete(subjectKey(r.Subject, r.Seq)); err != nil {
			return err
		}
		b.First++
	}
	return nil
}

// Reset empties the log; the next record is first. Blobs stay.
func (c *Copy) Reset(first uint64) error {
	return c.change(func(tx *bbolt.Tx, b *events.Bounds, s *sizes) error {
		for _, name := range [][]byte{logBucket, subjectBucket} {
			if err := tx.DeleteBucket(name); err != nil {
				return err
			}
			if _, err := tx.CreateBucket(name); err != nil {
				return err
			}
		}
		*b, s.records = events.Bounds{First: first, Last: first - 1}, 0
		return nil
	})
}

// change runs f in a write transaction, synced to the disk, with bounds and sizes that it may
// change.
func (c *Copy) change(f func(tx *bbolt.Tx, b *events.Bounds, s *sizes) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	b, s := c.bounds, c.sizes
	err := guard(func() error {
		return c.db.Update(func(tx *bbolt.Tx) error {
			if err := f(tx, &b, &s); err != nil {
				return err
			}
			meta := tx.Bucket(metaBucket)
			if err := meta.Put(firstKey, seqKey(b.First)); err != nil {
				return err
			}
			return meta.Put(sizesKey, binary.BigEndian.AppendUint64(seqKey(uint64(s.records)), uint64(s.blobs)))
		})
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", c.path, err)
	}
	c.bounds, c.sizes = b, s
	close(c.changed)
	c.changed = make(chan struct{})
	return nil
}

// Wait waits until the copy has the record at seq, or ctx is done.
func (c *Copy) Wait(ctx context.Context, seq uint64) error {
	for {
		c.mu.Lock()
		last, changed := c.bounds.Last, c.changed
		c.mu.Unlock()
		if last >= seq {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}

// PutBlob implements store.Blobs.
func (c *Copy) PutBlob(ctx context.Context, b []byte) (ident.Hash, error) {
	h := ident.HashOf(b)
	if err := ctx.Err(); err != nil {
		return h, err
	}
	return h, c.change(func(tx *bbolt.Tx, _ *events.Bounds, s *sizes) error {
		blobs := tx.Bucket(blobBucket)
		if blobs.Get(h[:]) == nil {
			s.blobs += int64(len(b))
		}
		return blobs.Put(h[:], b)
	})
}

// KeepBlobs removes all other blobs.
func (c *Copy) KeepBlobs(keep map[ident.Hash]bool) error {
	return c.change(func(tx *bbolt.Tx, _ *events.Bounds, s *sizes) error {
		blobs := tx.Bucket(blobBucket)
		var gone [][]byte
		err := blobs.ForEach(func(k, v []byte) error {
			if len(k) != len(ident.Hash{}) || !keep[ident.Hash(k)] {
				gone, s.blobs = append(gone, append([]byte(nil), k...)), s.blobs-int64(len(v))
			}
			return nil
		})
		for _, k := range gone {
			if err == nil {
				err = blobs.Delete(k)
			}
		}
		return err
	})
}

// encode returns the checksum of the rest, the time in nanoseconds, and the lengths and the
// bytes of subject and reason of refusal; then the data.
func encode(r events.Raw) []byte {
	b := make([]byte, 4, 4+8+8+len(r.Subject)+len(r.Refused)+len(r.Data))
	b = binary.BigEndian.AppendUint64(b, uint64(r.Time.UnixNano()))
	for _, text := range []string{string(r.Subject), r.Refused} {
		b = binary.AppendUvarint(b, uint64(len(text)))
		b = append(b, text...)
	}
	b = append(b, r.Data...)
	binary.BigEndian.PutUint32(b, crc32.ChecksumIEEE(b[4:]))
	return b
}

package logcopy

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
	"slices"
	"time"

	"go.etcd.io/bbolt"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// A read transaction takes so many records at most: while one lasts, the file cannot grow.
const (
	readRecords = 512
	readBytes   = 1 << 20
)

// decode reads a record; it keeps no reference to b.
func decode(seq uint64, b []byte) (events.Raw, error) {
	r := events.Raw{Seq: seq}
	switch {
	case b == nil:
		return r, events.ErrNotFound
	case len(b) < 12 || crc32.ChecksumIEEE(b[4:]) != binary.BigEndian.Uint32(b):
		return r, fmt.Errorf("record %d: %w", seq, store.ErrCorrupt)
	}
	r.Time = time.Unix(0, int64(binary.BigEndian.Uint64(b[4:]))).UTC()
	b = b[12:]
	var texts [2]string
	for i := range texts {
		n, m := binary.Uvarint(b)
		if m <= 0 || uint64(len(b)-m) < n {
			return r, fmt.Errorf("record %d: %w", seq, store.ErrCorrupt)
		}
		texts[i], b = string(b[m:m+int(n)]), b[m+int(n):]
	}
	r.Subject, r.Refused, r.Data = events.Subject(texts[0]), texts[1], bytes.Clone(b)
	return r, nil
}

// Generation implements events.Reader: what was read from a copy holds.
func (c *Copy) Generation() uint64 { return 1 }

// Bounds implements events.Reader.
func (c *Copy) Bounds(ctx context.Context) (events.Bounds, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.bounds, ctx.Err()
}

// Get implements events.Reader.
func (c *Copy) Get(ctx context.Context, seq uint64) (events.Record, error) {
	r, err := c.raw(ctx, seq)
	if err != nil {
		return events.Record{}, fmt.Errorf("get record %d: %w", seq, err)
	}
	return r.Record(), nil
}

func (c *Copy) raw(ctx context.Context, seq uint64) (r events.Raw, err error) {
	if err := ctx.Err(); err != nil {
		return r, err
	}
	err = c.view(func(tx *bbolt.Tx) (err error) {
		r, err = decode(seq, tx.Bucket(logBucket).Get(seqKey(seq)))
		return err
	})
	return r, err
}

// Last implements events.Reader.
func (c *Copy) Last(ctx context.Context, subject events.Subject) (events.Record, error) {
	var seq uint64
	err := c.view(func(tx *bbolt.Tx) error {
		cursor := tx.Bucket(subjectBucket).Cursor()
		k, _ := cursor.Seek(append([]byte(subject), 1)) // behind all of the subject
		if k == nil {
			k, _ = cursor.Last()
		} else {
			k, _ = cursor.Prev()
		}
		if bytes.HasPrefix(k, subjectPrefix(subject)) {
			seq = seqOf(k)
		}
		return nil
	})
	if err == nil && seq == 0 {
		err = events.ErrNotFound
	}
	if err != nil {
		return events.Record{}, fmt.Errorf("last of %s: %w", subject, err)
	}
	return c.Get(ctx, seq)
}

// Under implements events.Reader.
func (c *Copy) Under(ctx context.Context, subject events.Subject) iter.Seq2[events.Record, error] {
	return func(yield func(events.Record, error) bool) {
		for r, err := range c.Find(ctx, subject) {
			if err != nil {
				yield(events.Record{}, err)
				return
			}
			if !yield(r.Record(), nil) {
				return
			}
		}
	}
}

// Find yields the records under some subjects, in the order of the log. It ends with the first
// error.
func (c *Copy) Find(ctx context.Context, subjects ...events.Subject) iter.Seq2[events.Raw, error] {
	return func(yield func(events.Raw, error) bool) {
		var found []uint64
		err := c.view(func(tx *bbolt.Tx) error {
			for _, s := range subjects {
				prefix, cursor := subjectPrefix(s), tx.Bucket(subjectBucket).Cursor()
				for k, _ := cursor.Seek(prefix); bytes.HasPrefix(k, prefix); k, _ = cursor.Next() {
					found = append(found, seqOf(k))
				}
			}
			return nil
		})
		if err != nil {
			yield(events.Raw{}, fmt.Errorf("find records: %w", err))
			return
		}
		slices.Sort(found)
		for _, seq := range slices.Compact(found) {
			r, err := c.raw(ctx, seq)
			if errors.Is(err, events.ErrNotFound) {
				continue // it was removed meanwhile
			}
			if !yield(r, err) || err != nil {
				return
			}
		}
	}
}

// Raw implements events.RawReader.
func (c *Copy) Raw(ctx context.Context, first, last uint64) iter.Seq2[events.Raw, error] {
	return func(yield func(events.Raw, error) bool) {
		for at := first; at <= last; {
			records, err := c.run(ctx, at, last)
			if err != nil {
				yield(events.Raw{}, fmt.Errorf("read records %d to %d: %w", first, last, err))
				return
			}
			for _, r := range records {
				if !yield(r, nil) {
					return
				}
			}
			at += uint64(len(records))
		}
	}
}

// run returns some records from one on, one at least.
func (c *Copy) run(ctx context.Context, at, last uint64) (records []events.Raw, err error) {
	bounds, err := c.Bounds(ctx)
	if err == nil {
		err = bounds.Within(at, at)
	}
	if err != nil {
		return nil, err
	}
	err = c.view(func(tx *bbolt.Tx) error {
		log, size := tx.Bucket(logBucket), 0
		for ; at <= last && len(records) < readRecords && size < readBytes; at++ {
			r, err := decode(at, log.Get(seqKey(at)))
			if errors.Is(err, events.ErrNotFound) && len(records) > 0 {
				return nil
			}
			if err != nil {
				return err
			}
			records, size = append(records, r), size+len(r.Data)
		}
		return nil
	})
	return records, err
}

// Follow implements events.Reader. A copy is not followed.
func (c *Copy) Follow(context.Context, uint64, string) (events.Follower, error) {
	return nil, errors.ErrUnsupported
}

// GetBlob implements store.Blobs.
func (c *Copy) GetBlob(ctx context.Context, h ident.Hash) (b []byte, err error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	err = c.view(func(tx *bbolt.Tx) error {
		v := tx.Bucket(blobBucket).Get(h[:])
		if v == nil {
			return store.ErrNotFound
		}
		b = bytes.Clone(v)
		return nil
	})
	if err == nil && ident.HashOf(b) != h {
		err = store.ErrCorrupt
	}
	if err != nil {
		return nil, fmt.Errorf("blob %s: %w", h, err)
	}
	return b, nil
}

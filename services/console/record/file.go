package record

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"os"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
)

// The file has the buckets versions (epoch, Seq: a Version as JSON) and minutes (seconds since
// 1970: a Minute as JSON); numbers are eight bytes, the greatest first.
var (
	versionBucket = []byte("versions")
	minuteBucket  = []byte("minutes")
)

func openFile(path string) (db *bbolt.DB, damage, err error) {
	open := func() (*bbolt.DB, error) {
		db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: time.Second, FreelistType: bbolt.FreelistMapType})
		if err != nil {
			return nil, err
		}
		err = db.Update(func(tx *bbolt.Tx) error {
			for _, name := range [][]byte{versionBucket, minuteBucket} {
				if _, err := tx.CreateBucketIfNotExists(name); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return nil, errors.Join(err, db.Close())
		}
		return db, nil
	}
	db, err = open()
	var machine *os.PathError
	switch {
	case err == nil:
		return db, nil, nil
	case errors.Is(err, bbolterrors.ErrTimeout):
		return nil, nil, store.ErrLocked
	case errors.As(err, &machine):
		return nil, nil, err
	}
	damage = err
	if err := os.Rename(path, path+".damaged"); err != nil {
		return nil, damage, err
	}
	db, err = open()
	return db, damage, err
}

func versionKey(v ident.Position) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, v.Epoch), v.Seq)
}

func minuteKey(t time.Time) []byte { return binary.BigEndian.AppendUint64(nil, uint64(t.Unix())) }

// write writes the versions that have changed, and minutes. A disk that fails costs what was
// recorded, and nothing else.
func (r *Recorder) write(versions []*Version, minutes ...Minute) {
	err := r.db.Update(func(tx *bbolt.Tx) error {
		rows := tx.Bucket(versionBucket)
		for _, v := range versions {
			if !v.dirty {
				continue
			}
			if err := put(rows, versionKey(v.Version), v); err != nil {
				return err
			}
		}
		for _, m := range minutes {
			if err := put(tx.Bucket(minuteBucket), minuteKey(m.Time), m); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		r.log.Warn("what is recorded cannot be written", "error", err)
		return
	}
	for _, v := range versions {
		v.dirty = false
	}
}

func put(b *bbolt.Bucket, key []byte, v any) error {
	value, err := json.Marshal(v)
	if err == nil {
		err = b.Put(key, value)
	}
	return err
}

// prunedAtOnce is how many rows of each sort one prune removes at most.
const prunedAtOnce = 1000

// prune removes what is older than a time, and the oldest versions of too many.
func prune(tx *bbolt.Tx, before time.Time) error {
	var gone [][]byte
	minutes := tx.Bucket(minuteBucket)
	c := minutes.Cursor()
	for k, _ := c.First(); k != nil && len(gone) < prunedAtOnce && string(k) < string(minuteKey(before)); k, _ = c.Next() {
		gone = append(gone, append([]byte(nil), k...))
	}
	for _, k := range gone {
		if err := minutes.Delete(k); err != nil {
			return err
		}
	}
	versions := tx.Bucket(versionBucket)
	many := versions.Stats().KeyN - keptVersions
	gone = nil
	c = versions.Cursor()
	for k, b := c.First(); k != nil && len(gone) < prunedAtOnce; k, b = c.Next() {
		var v Version
		if json.Unmarshal(b, &v) == nil && !v.Published.Before(before) && len(gone) >= many {
			break
		}
		gone = append(gone, append([]byte(nil), k...))
	}
	for _, k := range gone {
		if err := versions.Delete(k); err != nil {
			return err
		}
	}
	return nil
}

func (r *Recorder) read(of ident.Position) (v Version, ok bool) {
	err := r.db.View(func(tx *bbolt.Tx) error {
		if b := tx.Bucket(versionBucket).Get(versionKey(of)); b != nil {
			ok = json.Unmarshal(b, &v) == nil
			v.Version = of
		}
		return nil
	})
	return v, ok && err == nil
}

// Since returns the versions that were published since a time, and the minutes, oldest first.
func (r *Recorder) Since(from time.Time) (versions []Version, minutes []Minute, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.write(r.open)
	err = r.db.View(func(tx *bbolt.Tx) error {
		c := tx.Bucket(versionBucket).Cursor()
		for k, b := c.Last(); k != nil; k, b = c.Prev() {
			var v Version
			if json.Unmarshal(b, &v) != nil {
				continue
			}
			if v.Published.Before(from) {
				break
			}
			v.Version = ident.Position{Epoch: binary.BigEndian.Uint64(k), Seq: binary.BigEndian.Uint64(k[8:])}
			versions = append(versions, v)
		}
		m := tx.Bucket(minuteBucket).Cursor()
		for k, b := m.Seek(minuteKey(from)); k != nil; k, b = m.Next() {
			var one Minute
			if json.Unmarshal(b, &one) == nil && !one.Time.Equal(r.minute.Time) {
				minutes = append(minutes, one)
			}
		}
		return nil
	})
	if !r.minute.Time.IsZero() && !r.minute.Time.Before(from) {
		minutes = append(minutes, r.sampled(r.minute))
	}
	return versions, minutes, err
}

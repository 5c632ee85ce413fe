// Package logcopy keeps a copy of an event log in one bbolt file, with the blobs that folding it
// needs: the checkpoints of folds and the bases of segments. A process that has a copy reads the
// past without the bus.
//
// The file is a cache: all of it was on the bus before. Open sets a damaged file aside, and each
// record and blob is checked when it is read.
package logcopy

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"meshlog.dev/events"
	"meshlog.dev/store"
)

// Limits bound a copy. The oldest records go first.
type Limits struct {
	// Bytes are of records and blobs together; blobs take half of them at most. The file is
	// somewhat larger, and does not become smaller.
	Bytes int64
	// Age is the largest distance to the newest record, by the times of both.
	Age time.Duration
}

// Copy is a copy of a log. It implements events.Reader, events.RawReader and store.Blobs, and is
// safe for concurrent use.
type Copy struct {
	path   string
	limits Limits
	db     *bbolt.DB

	mu      sync.Mutex
	bounds  events.Bounds
	sizes   sizes
	changed chan struct{} // closed and renewed when bounds change
}

// sizes are in bytes.
type sizes struct{ records, blobs int64 }

// The file has the buckets log (Seq: record), subjects (subject, 0, Seq: nothing), blobs (hash:
// bytes) and meta. A Seq is eight bytes, the greatest first.
var (
	logBucket     = []byte("log")
	subjectBucket = []byte("subjects")
	blobBucket    = []byte("blobs")
	metaBucket    = []byte("meta")

	formatKey = []byte("format")
	sizesKey  = []byte("sizes")
	firstKey  = []byte("first") // the Seq of the first record, also of an empty log
	nodesKey  = []byte("nodes")
)

const (
	format          = "meshlog-log-copy-1"
	lockTimeout     = time.Second
	discardedSuffix = ".damaged"
)

// Open opens the copy at path, and creates it if there is none. A damaged file is renamed, which
// replaces one that was renamed earlier; discarded is the damage then. While another process
// uses the file, the error is store.ErrLocked.
func Open(path string, limits Limits) (c *Copy, discarded, err error) {
	c, err = open(path, limits)
	var machine *os.PathError
	switch {
	case err == nil:
		return c, nil, nil
	case errors.Is(err, bbolterrors.ErrTimeout):
		return nil, nil, fmt.Errorf("open %s: %w", path, store.ErrLocked)
	case errors.As(err, &machine):
		return nil, nil, fmt.Errorf("open %s: %w", path, err)
	}
	if renamed := os.Rename(path, path+discardedSuffix); renamed != nil {
		return nil, nil, fmt.Errorf("open %s: it is damaged (%w), and cannot be renamed: %w", path, err, renamed)
	}
	damage := err
	if c, err = open(path, limits); err != nil {
		return nil, damage, fmt.Errorf("open %s: %w", path, err)
	}
	return c, damage, nil
}

func open(path string, limits Limits) (*Copy, error) {
	c := &Copy{path: path, limits: limits, changed: make(chan struct{})}
	err := guard(func() (err error) {
		c.db, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockTimeout, FreelistType: bbolt.FreelistMapType})
		if err != nil {
			return err
		}
		if err = c.db.Update(prepare); err == nil {
			err = c.db.View(c.load)
		}
		return err
	})
	if err != nil && c.db != nil {
		c.db.Close()
	}
	return c, err
}

// prepare makes the buckets of a new file, and checks those of an old one.
func prepare(tx *bbolt.Tx) error {
	if meta := tx.Bucket(metaBucket); meta != nil && string(meta.Get(formatKey)) != format {
		return fmt.Errorf("its format is %q, this build reads %q", meta.Get(formatKey), format)
	}
	for _, name := range [][]byte{logBucket, subjectBucket, blobBucket, metaBucket} {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return fmt.Errorf("bucket %s: %w", name, err)
		}
	}
	return tx.Bucket(metaBucket).Put(formatKey, []byte(format))
}

// load reads bounds and sizes.
func (c *Copy) load(tx *bbolt.Tx) error {
	meta := tx.Bucket(metaBucket)
	c.bounds = events.Bounds{First: 1}
	if b := meta.Get(firstKey); len(b) == 8 {
		c.bounds = events.Bounds{First: binary.BigEndian.Uint64(b), Last: binary.BigEndian.Uint64(b) - 1}
	}
	if b := meta.Get(sizesKey); len(b) == 16 {
		c.sizes = sizes{int64(binary.BigEndian.Uint64(b)), int64(binary.BigEndian.Uint64(b[8:]))}
	}
	cursor := tx.Bucket(logBucket).Cursor()
	if k, _ := cursor.First(); k != nil {
		if seqOf(k) != c.bounds.First {
			return errors.New("it lacks the first record")
		}
		k, _ = cursor.Last()
		c.bounds.Last = seqOf(k)
	}
	return nil
}

// OpenCopy opens a copy of the file at path, which another process may use. Close removes it.
func OpenCopy(path string) (*Copied, error) {
	dir, err := os.MkdirTemp("", "meshlog-log-")
	if err != nil {
		return nil, fmt.Errorf("copy %s: %w", path, err)
	}
	to := dir + "/log.db"
	b, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(to, b, 0o600)
	}
	var c *Copy
	if err == nil {
		c, err = open(to, Limits{})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("copy %s: %w; stop its process and try again", path, err), os.RemoveAll(dir))
	}
	return &Copied{Copy: c, dir: dir}, nil
}

// Copied is a copy of a file.
type Copied struct {
	*Copy
	dir string
}

// Close removes the copy.
func (c *Copied) Close() error { return errors.Join(c.Copy.Close(), os.RemoveAll(c.dir)) }

// Close closes the file. It waits for running calls.
func (c *Copy) Close() error { return c.db.Close() }

// Limits returns what bounds the copy.
func (c *Copy) Limits() Limits { return c.limits }

// Size returns the bytes of records and blobs.
func (c *Copy) Size() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sizes.records + c.sizes.blobs
}

// guard runs f, which uses a mapped file: where a damaged page would crash the process, it
// returns an error.
func guard(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the file is damaged: %v: %w", r, store.ErrCorrupt)
		}
	}()
	return f()
}

func (c *Copy) view(f func(tx *bbolt.Tx) error) error {
	return guard(func() error { return c.db.View(f) })
}

func seqKey(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

func seqOf(k []byte) uint64 {
	if len(k) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(k[len(k)-8:])
}

// subjectKey returns the key of a record under a subject; subjects have no zero byte.
func subjectKey(s events.Subject, seq uint64) []byte {
	return binary.BigEndian.AppendUint64(subjectPrefix(s), seq)
}

func subjectPrefix(s events.Subject) []byte { return append([]byte(s), 0) }

// Nodes returns what SetNodes kept last; nil: nothing.
func (c *Copy) Nodes() (b []byte, err error) {
	err = c.view(func(tx *bbolt.Tx) error {
		b = bytes.Clone(tx.Bucket(metaBucket).Get(nodesKey))
		return nil
	})
	return b, err
}

// SetNodes keeps bytes of the owner beside the log: the nodes of proxies.
func (c *Copy) SetNodes(b []byte) error {
	return guard(func() error {
		return c.db.Update(func(tx *bbolt.Tx) error { return tx.Bucket(metaBucket).Put(nodesKey, b) })
	})
}

package faultsim

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// logPort is one process's connection to the log.
type logPort struct {
	*proc
	// read holds the hash of every record that the process has read, for the run
	// without the rule "cursor".
	read map[uint64]ident.Hash
}

func (l *logPort) Append(ctx context.Context, batch []events.Event, fence events.Fence) (events.Ack, error) {
	batch, fence = l.s.mutateAppend(batch, fence)
	return call(l.proc, "append "+describe(batch), func() (events.Ack, error) {
		if len(batch) > l.s.most {
			return events.Ack{}, events.ErrTooLarge
		}
		if l.s.without["dedupe"] {
			l.s.log.ExpireDedupe()
		}
		return l.s.log.Append(ctx, batch, fence)
	})
}

// AppendEach delivers in any order.
func (l *logPort) AppendEach(ctx context.Context, batch []events.Event) error {
	var failed error
	for _, i := range l.s.rnd.Perm(len(batch)) {
		if _, err := l.Append(ctx, batch[i:i+1], events.Fence{}); err != nil {
			failed = err
		}
	}
	return failed
}

func (l *logPort) Generation() uint64 { return l.s.log.Generation() }

func (l *logPort) Bounds(ctx context.Context) (events.Bounds, error) {
	return ask(l.proc, "bounds of the log", func() (events.Bounds, error) { return l.s.log.Bounds(ctx) })
}

func (l *logPort) Get(ctx context.Context, seq uint64) (events.Record, error) {
	return ask(l.proc, fmt.Sprintf("get record %d", seq), func() (events.Record, error) {
		rec, err := l.s.log.Get(ctx, seq)
		if h, ok := l.read[seq]; ok && l.s.without["cursor"] {
			rec.Hash = h
		}
		return rec, err
	})
}

func (l *logPort) Last(ctx context.Context, subject events.Subject) (events.Record, error) {
	return ask(l.proc, "last of "+string(subject), func() (events.Record, error) { return l.s.log.Last(ctx, subject) })
}

func (l *logPort) Under(ctx context.Context, subject events.Subject) iter.Seq2[events.Record, error] {
	l.pause()
	return l.s.log.Under(ctx, subject)
}

// Follow blocks, and nothing may block here.
func (l *logPort) Follow(context.Context, uint64, string) (events.Follower, error) {
	panic("sim: a driver reads with memlog's ReadAfter")
}

func describe(batch []events.Event) string {
	text := ""
	for i, e := range batch {
		if i > 0 {
			text += " "
		}
		switch b := e.Body.(type) {
		case *events.Object:
			v := value(0)
			if b.Op == events.Put && b.Key != policyKey {
				v = valueFrom(b.Value.Bytes)
			}
			text += fmt.Sprintf("%s/%s/%s=%d p%d low%d", b.Key.Instance, b.Key.Kind, b.Key.Name, v, b.Pseq, b.Low)
			if b.Batch.Total > 0 {
				text += fmt.Sprintf(" [%d/%d]", b.Batch.Index+1, b.Batch.Total)
			}
		case *events.Begin:
			text += "begin " + b.Session
		case *events.Alive:
			text += fmt.Sprintf("alive %s low%d", b.Session, b.Low)
			if b.Partial {
				text += " partial"
			}
			if b.Kinds != nil {
				text += fmt.Sprintf(" of %v", b.Kinds)
			}
		case *events.Overlay:
			text += "overlay " + b.ID
			if b.Remove {
				text += " removed"
			}
		case *events.Segment:
			text += fmt.Sprintf("segment of %s in epoch %d", b.Build, b.Epoch)
		}
	}
	return text
}

// feedPort is one process's connection to the version chain.
type feedPort struct{ *proc }

func (f *feedPort) Generation() uint64 { return f.s.chain.Generation() }

func (f *feedPort) Head(ctx context.Context) (store.Head, error) {
	return ask(f.proc, "head", func() (store.Head, error) { return f.s.chain.Head(ctx) })
}

func (f *feedPort) Publish(ctx context.Context, u store.Update, expect, generation uint64) (uint64, error) {
	v := store.VersionOf(u.Manifest.GetVersion())
	return call(f.proc, "publish "+v.String(), func() (uint64, error) {
		if f.s.without["vfence"] {
			h, err := f.s.chain.Head(ctx)
			if err != nil {
				return 0, err
			}
			expect = h.Seq
		}
		seq, err := f.s.chain.Publish(ctx, u, expect, generation)
		if err == nil {
			f.s.published(u, seq)
		}
		return seq, err
	})
}

func (f *feedPort) PutBlob(ctx context.Context, b []byte) (ident.Hash, error) {
	return call(f.proc, "put blob", func() (ident.Hash, error) { return f.s.chain.PutBlob(ctx, b) })
}

// GetBlob takes no time: store.ReadRows asks from goroutines of its own.
func (f *feedPort) GetBlob(ctx context.Context, h ident.Hash) ([]byte, error) {
	return f.s.chain.GetBlob(ctx, h)
}

func (f *feedPort) Fetch(ctx context.Context, v ident.Position) (store.Stored, error) {
	return ask(f.proc, "fetch "+v.String(), func() (store.Stored, error) { return f.s.chain.Fetch(ctx, v) })
}

func (f *feedPort) History(ctx context.Context) iter.Seq2[*store.Manifest, error] {
	f.pause()
	return f.s.chain.History(ctx)
}

func (f *feedPort) Follow(context.Context) (store.Follower, error) {
	panic("sim: a driver polls memstore's Follower")
}

// disk is the data that survives a process.
type disk struct {
	file  *memstore.File
	stale *memstore.File // the file before the last version
	full  bool
}

func newDisk() *disk { return &disk{file: new(memstore.File), stale: new(memstore.File)} }

func (d *disk) lose()    { d.file = new(memstore.File) }
func (d *disk) restore() { d.file = d.stale.Clone() }

// storePort is a process's own store. Reading it takes no time.
type storePort struct {
	store.Store
	*proc
	disk  *disk
	build string // build of the fold beside the versions; empty if there is none
	// lost counts consecutive commits that expected another latest version than
	// the file has.
	lost int
}

func (p *proc) open(d *disk, build string) *storePort {
	return &storePort{memstore.Open(d.file, store.Retention{Versions: 8}), p, d, build, 0}
}

// filed keeps the fold for the replay at the end of the run.
func (s *storePort) filed(err error) error {
	if err == nil && s.build != "" {
		s.s.replayed = append(s.s.replayed, checkpoint{s.build, s.disk.file.Clone()})
	}
	return err
}

// do runs a step on the disk. A full disk refuses it.
func (s *storePort) do(what string, act func() error) error {
	if !s.disk.full {
		return do(s.proc, what, act)
	}
	s.s.note("%s %s: the disk is full", s.name, what)
	return errDisk
}

func (s *storePort) Commit(ctx context.Context, prev ident.Position, c store.Commit) error {
	return s.do("files "+store.VersionOf(c.Manifest.GetVersion()).String(), func() error {
		s.disk.stale = s.disk.file.Clone()
		err := s.Store.Commit(ctx, prev, c)
		if s.lost++; !errors.Is(err, store.ErrConflict) {
			s.lost = 0
		}
		if s.lost == 3 {
			fail("SIM-4", "%s expects another latest version than its own file has: %v", s.name, err)
		}
		return s.filed(err)
	})
}

func (s *storePort) SaveSide(ctx context.Context, d store.Delta) error {
	return s.do("files its fold", func() error { return s.filed(s.Store.SaveSide(ctx, d)) })
}

func (s *storePort) ClearSide(ctx context.Context) error {
	return s.do("clears its fold", func() error { return s.Store.ClearSide(ctx) })
}

// fleetPort is a builder's connection to the other processes.
type fleetPort struct{ *proc }

func (f fleetPort) Tick(_ context.Context, t *reportv1.Tick) error {
	for _, b := range f.s.builders {
		if f.s.heard() {
			b.ticks = append(b.ticks, t)
		}
	}
	for _, to := range f.s.frontends {
		if !f.s.has("nack") || f.s.heard() {
			to.suspect(t.GetSuspects())
		}
	}
	return nil
}

func (f fleetPort) AskListing(_ context.Context, r *reportv1.ListingRequest) error {
	for _, w := range f.s.watchers {
		if w.shard.Instance == r.GetInstance() && f.s.heard() {
			w.asked(r)
		}
	}
	return nil
}

package suite

import (
	"errors"
	"iter"
	"testing"

	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

type memDisk struct{ file *memstore.File }

func newMemDisk(*testing.T) Disk { return memDisk{new(memstore.File)} }

func (d memDisk) Open(_ *testing.T, r store.Retention) store.Store { return memstore.Open(d.file, r) }

// Crashes has one step, because a write is atomic.
func (d memDisk) Crashes(_ *testing.T, r store.Retention, write func(store.Store)) iter.Seq2[string, Disk] {
	return func(yield func(string, Disk) bool) {
		before := d.file.Clone()
		s := memstore.Open(d.file, r)
		write(s)
		s.Close()
		_ = yield("not persisted", memDisk{before}) && yield("persisted", memDisk{d.file.Clone()})
	}
}

type memBus struct{ chain *memstore.Chain }

func newMemBus(*testing.T) Bus { return memBus{memstore.NewChain()} }

func (b memBus) Open(*testing.T) Feed       { return b.chain }
func (b memBus) Renew(_ *testing.T, f Feed) { f.(*memstore.Chain).Reconnect() }
func (b memBus) Expire(*testing.T)          { b.chain.Expire() }

func (b memBus) Image(t *testing.T) (rewind func()) {
	head, err := b.chain.Head(t.Context())
	must(t, err)
	return func() { b.chain.Rewind(head.Seq) }
}

func (b memBus) Inject(_ *testing.T, u store.Update) { b.chain.Inject(u, nil) }

func (b memBus) Foreign(*testing.T) map[string]func() {
	return map[string]func(){"unreadable": func() { b.chain.Inject(store.Update{}, errors.New("foreign bytes")) }}
}

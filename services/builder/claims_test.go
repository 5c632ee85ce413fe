package builder

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

var lostRoot = ident.HashOf([]byte("content that the chain does not have"))

func (d *driver) segments() uint64 { return d.stats.Segments }

// BUS-3: a report is believed only as far as the leader can check it, and nothing
// that is served changes.
func TestAReportIsBelievedAsFarAsItCanBeChecked(t *testing.T) {
	r, b := servingA(t)
	head, root := b.HeadVersion()
	now := uint64(r.clock().Unix())
	for name, c := range map[string]struct {
		own     ident.Position
		root    ident.Hash
		refused bool
	}{
		"the greatest epoch":           {ident.Position{Epoch: math.MaxUint64, Seq: 1}, lostRoot, true},
		"an epoch of tomorrow":         {ident.Position{Epoch: now + 24*3600, Seq: 1}, lostRoot, true},
		"the head itself":              {head, root, false},
		"a version below the head":     {ident.Position{Epoch: head.Epoch, Seq: head.Seq - 1}, lostRoot, false},
		"a version of an earlier one":  {ident.Position{Epoch: head.Epoch - 1, Seq: math.MaxUint64}, lostRoot, false},
		"a report that names no other": {ident.Position{}, ident.Hash{}, false},
	} {
		segments, refused := b.segments(), b.stats.Doubted
		b.Claim("f1", c.own, c.root)
		b.settle()
		if b.segments() != segments || b.Position().Epoch != head.Epoch {
			t.Errorf("%s: an epoch began, at %s", name, b.Position())
		}
		if got := b.stats.Doubted > refused; got != c.refused {
			t.Errorf("%s: counted as refused: %t, want %t", name, got, c.refused)
		}
	}
	if w := b.Report().GetWarnings(); len(w) != 1 || !strings.Contains(w[0], "frontend f1 reports a version") {
		t.Errorf("warnings %q, want one that names the frontend", w)
	}
	r.put("a", "good 2")
	b.settle()
	wantServed(t, r, map[string]string{"a": "good 2"})
}

// BUS-3: reports that the leader cannot disprove begin one epoch a minute at most.
func TestReportsBeginOneEpochAMinute(t *testing.T) {
	r, b := servingA(t)
	before := b.segments()
	claim := func() {
		head, _ := b.HeadVersion()
		at := b.Position()
		for _, own := range []ident.Position{{Epoch: at.Epoch, Seq: math.MaxUint64}, {Epoch: at.Epoch + 1, Seq: 1}, {Epoch: math.MaxUint64, Seq: 1}} {
			b.Claim("f1", own, lostRoot)
		}
		b.Claim("f1", head, lostRoot)
		b.settle()
	}
	for range 15 { // seconds
		claim()
		r.pass(time.Second)
	}
	if n := b.segments() - before; n != 1 {
		t.Errorf("%d epochs began in 15 s, want 1", n)
	}
	for range 10 { // minutes
		claim()
		r.pass(time.Minute)
	}
	if n := b.segments() - before; n < 2 || n > 11 {
		t.Errorf("%d epochs began in 10 minutes of reports, want 2 to 11", n)
	}
	if most := uint64(r.clock().Add(claimAhead).Unix()); b.Position().Epoch > most {
		t.Errorf("epoch %d, want at most %d", b.Position().Epoch, most)
	}
	if b.stats.Claimed != b.segments()-before {
		t.Errorf("%d epochs are counted as claimed, want %d", b.stats.Claimed, b.segments()-before)
	}
	r.list()
	r.put("a", "good 2")
	b.settle()
	wantServed(t, r, map[string]string{"a": "good 2"})
}

// BUS-4: the newest messages of the chain are no versions. The leader says so and
// publishes after them; a builder that starts then reads the chain as if they were
// not there.
func TestTheLeaderPublishesAfterForeignMessages(t *testing.T) {
	r, b := servingA(t)
	head, _ := b.HeadVersion()
	u := store.Update{Manifest: &store.Manifest{Version: store.VersionProto(ident.Position{Epoch: math.MaxUint64, Seq: 1}), Root: make([]byte, 32)}}
	r.chain.Inject(u, nil)
	for range 3 {
		r.chain.Inject(store.Update{}, errors.New("foreign bytes"))
	}
	standby := r.start(r.config("b1", "one", &memstore.File{}), false)
	standby.settle()
	b.settle()
	if got, _ := b.HeadVersion(); got != head || b.stats.Foreign != 4 {
		t.Errorf("head %s and %d foreign messages, want %s and 4", got, b.stats.Foreign, head)
	}
	if w := b.Report().GetWarnings(); len(w) != 1 || !strings.Contains(w[0], "no version: foreign bytes") {
		t.Errorf("warnings %q, want the reason", w)
	}
	wantServed(t, r, map[string]string{"a": "good 1"})

	r.alive(events.BucketSet{}) // nothing changes, and the chain is whole again
	b.settle()
	after, err := r.chain.Head(t.Context())
	if err != nil || after.Foreign != nil || !head.Less(after.Version()) {
		t.Errorf("head %s, foreign %v, %v; want a version after the foreign messages", after.Version(), after.Foreign, err)
	}
	r.versions() // each follows the one before it
	standby.settle()
	if got := standby.stats.Compared; got == 0 {
		t.Error("the standby compared no root")
	}
	r.put("a", "good 2")
	b.settle()
	wantServed(t, r, map[string]string{"a": "good 2"})
	third := r.start(r.config("b2", "one", &memstore.File{}), true)
	third.settle()
	if third.stats.Foreign != 0 || third.Position().Epoch != b.Position().Epoch {
		t.Errorf("a builder that starts later sees %d foreign messages, at %s", third.stats.Foreign, third.Position())
	}
	r.pass(2 * warnFor)
	if w := b.Report().GetWarnings(); len(w) != 0 {
		t.Errorf("warnings %q two hours later, want none", w)
	}
}

// A record under the segments' subject that no builder wrote does not keep
// builders from connecting, nor sources from being published.
func TestAForeignRecordUnderTheSegments(t *testing.T) {
	r, b := servingA(t)
	epoch := b.Position().Epoch
	r.log.AppendForeign(events.SegmentSubject, nil)
	for i, b := range []*driver{b, r.start(r.config("b1", "one", &memstore.File{}), true)} {
		r.log.Reconnect()
		r.put("a", fmt.Sprint("good ", i))
		b.settle()
		wantServed(t, r, map[string]string{"a": fmt.Sprint("good ", i)})
		if got := b.Position().Epoch; got != epoch {
			t.Errorf("epoch %d, want %d: the log is the same", got, epoch)
		}
	}
}

package builder

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/store"
	"meshlog.dev/store/memstore"
)

// run starts a Builder. When the test ends, it stops the Builder and waits for it.
func (r *rig) run(o Options) *Builder {
	r.t.Helper()
	b := New(o)
	ctx, stop := context.WithCancel(r.t.Context())
	ended := make(chan error, 1)
	go func() { ended <- b.Run(ctx) }()
	r.t.Cleanup(func() {
		stop()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			r.t.Errorf("builder %s ended with %v", o.ID, err)
		}
	})
	return b
}

// next waits for a version newer than what the caller has.
func next(t *testing.T, chain *memstore.Chain, have *store.Manifest) *store.Manifest {
	t.Helper()
	f, err := chain.Follow(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute) // of the bubble's clock
	defer stop()
	links, err := f.Next(ctx, store.VersionOf(have.GetVersion()), store.RootOf(have))
	if err != nil {
		t.Fatal(err)
	}
	return links[len(links)-1].Manifest
}

// segments waits until n segments are on the log.
func (r *rig) segments(n int) {
	r.t.Helper()
	f, err := r.log.Follow(r.t.Context(), 0, "")
	if err != nil {
		r.t.Fatal(err)
	}
	defer f.Close()
	for n > 0 {
		recs, err := f.Next(r.t.Context())
		if err != nil {
			r.t.Fatal(err)
		}
		for _, rec := range recs {
			if _, ok := rec.Event.Body.(*events.Segment); ok {
				n--
			}
		}
	}
}

// leads returns a lease that is held from the start.
func leads() <-chan bool {
	c := make(chan bool, 1)
	c <- true
	return c
}

// TestRunWaitsTheHoldoff checks that successive changes become one version once
// the log has been quiet for the holdoff.
func TestRunWaitsTheHoldoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.run(Options{Config: r.config("b0", "one", &memstore.File{}), Lease: leads()})
		r.segments(1)
		r.list()
		r.put("a", "good 0")
		first := next(t, r.chain, nil)
		start := time.Now()
		for i := range 5 {
			r.put("a", fmt.Sprint("good ", i+1))
			<-time.After(5 * time.Millisecond) // of the bubble's clock
		}
		second := next(t, r.chain, first)
		if took, want := time.Since(start), 40*time.Millisecond; took != want {
			t.Errorf("the version came %v after the first of five changes, want %v: quiet for 20 ms since the last", took, want)
		}
		if second.GetVersion().GetSeq() != r.bounds().Last {
			t.Errorf("version %v, want one that contains the whole log up to %d", second.GetVersion(), r.bounds().Last)
		}
		wantServed(t, r, map[string]string{"a": "good 5"})
	})
}

func (r *rig) bounds() events.Bounds {
	r.t.Helper()
	b, err := r.log.Bounds(r.t.Context())
	if err != nil {
		r.t.Fatal(err)
	}
	return b
}

// TestRunHandsOver moves the lease from one builder to another.
func TestRunHandsOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		leaseA, leaseB := make(chan bool, 1), make(chan bool, 1)
		leaseA <- true
		a := r.run(Options{Config: r.config("b0", "one", &memstore.File{}), Lease: leaseA})
		b := r.run(Options{Config: r.config("b1", "one", &memstore.File{}), Lease: leaseB})
		r.segments(1)
		r.list()
		r.put("a", "good 1")
		v := next(t, r.chain, nil)
		leaseA <- false
		leaseB <- true
		synctest.Wait()
		r.put("a", "good 2")
		v = next(t, r.chain, v)
		synctest.Wait()
		head, err := r.chain.Head(t.Context())
		if err != nil || head.Manifest.GetPublisher() != "b1" {
			t.Errorf("version %v was published by %q (%v), want b1", v.GetVersion(), head.Manifest.GetPublisher(), err)
		}
		if !b.Report().GetLeader() || a.Report().GetLeader() {
			t.Errorf("leaders: b0 %v, b1 %v; want b1 alone", a.Report().GetLeader(), b.Report().GetLeader())
		}
		if got := b.Report().GetCompared(); got == 0 {
			t.Error("the standby compared nothing before it took over")
		}
		wantServed(t, r, map[string]string{"a": "good 2"})
	})
}

// TestRunSurvivesARewoundLog rewinds the log under a running builder.
func TestRunSurvivesARewoundLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		b := r.run(Options{Config: r.config("b0", "one", &memstore.File{}), Lease: leads()})
		r.segments(1)
		r.list()
		r.put("a", "good 1")
		v := next(t, r.chain, nil)
		r.log.Rewind(r.bounds().Last - 1)
		r.segments(2) // the first is the old epoch's
		r.list()
		v = next(t, r.chain, v)
		if v.GetVersion().GetEpoch() < uint64(r.clock().Unix())-60 || b.Report().GetPosition().GetEpoch() != v.GetVersion().GetEpoch() {
			t.Errorf("version %v, builder at %v: want both in a new epoch", v.GetVersion(), b.Report().GetPosition())
		}
		if diff := cmp.Diff(map[string]string{"a": "good 1"}, r.served()); diff != "" {
			t.Errorf("served (-want +got):\n%s", diff)
		}
	})
}

// TestOnlyTheLeaderAnswersForDigests asks a standby, and then the leader.
func TestOnlyTheLeaderAnswersForDigests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		lease := make(chan bool, 1)
		b := r.run(Options{Config: r.config("b0", "one", &memstore.File{}), Lease: lease})
		r.list()
		synctest.Wait()
		if _, ok := b.Digests(t.Context(), shard, r.sessionName(), nil); ok {
			t.Error("a standby answered")
		}
		lease <- true
		r.segments(1)
		// The first epoch has no sessions yet: the source begins again.
		r.list()
		r.put("a", "good")
		synctest.Wait()
		d, ok := b.Digests(t.Context(), shard, r.sessionName(), nil)
		if !ok || d.Sum() != r.digest() {
			t.Errorf("digests known: %v; want the digests of the objects that the source offers", ok)
		}
	})
}

// A standby starts without local data, and the base of an earlier epoch is lost.
// The standby resumes in the newest epoch, however many ticks the leader sends
// meanwhile.
func TestTicksDoNotKeepAStandbyFromConnecting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, leader := servingA(t)
		epoch := func(begin func(ident.Position)) {
			head, _ := leader.HeadVersion()
			begin(head)
			leader.settle()
			r.list()
			leader.settle()
		}
		epoch(func(head ident.Position) { leader.Claim("f1", head, ident.HashOf([]byte("lost"))) })
		r.chain.LoseBlobs()
		epoch(func(head ident.Position) { leader.BlobsLost(head.Epoch) })
		head, _ := leader.HeadVersion()

		ticks := make(chan *reportv1.Tick)
		config := r.config("b1", "one", &memstore.File{})
		config.Now = time.Now
		standby := r.run(Options{Config: config, Ticks: ticks})
		every := time.NewTicker(time.Second) // of the bubble's clock
		defer every.Stop()
		for range 5 {
			<-every.C
			ticks <- &reportv1.Tick{Head: store.VersionProto(head), Position: store.VersionProto(leader.Position())}
		}
		synctest.Wait()
		if got := standby.Report().GetPosition().GetEpoch(); got != head.Epoch {
			t.Errorf("epoch %d after some seconds, want %d", got, head.Epoch)
		}
	})
}

// headless is a chain whose head cannot be read while down is set.
type headless struct {
	Feed
	down atomic.Bool
}

func (h *headless) Head(ctx context.Context) (store.Head, error) {
	if h.down.Load() {
		return store.Head{}, errors.New("the stream has no leader")
	}
	return h.Feed.Head(ctx)
}

// BUS-4: a builder that is not connected says since when, and why.
func TestABuilderSaysSinceWhenItIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		o := Options{Config: r.config("b0", "one", &memstore.File{}), Lease: leads()}
		feed := &headless{Feed: o.Feed}
		o.Feed = feed
		feed.down.Store(true)
		began := time.Now()
		b := r.run(o)
		<-time.After(15 * time.Second) // of the bubble's clock
		report := b.Report()
		if since := report.GetAway().AsTime(); !since.Equal(began) || !strings.Contains(report.GetAwayReason(), "the stream has no leader") {
			t.Errorf("away since %v: %q; want since %v, because the stream has no leader", since, report.GetAwayReason(), began)
		}
		if got := b.o.Metrics.awaySeconds(); got != 15 {
			t.Errorf("the metric says %v s, want 15", got)
		}
		feed.down.Store(false)
		r.segments(1)
		synctest.Wait()
		if report := b.Report(); report.GetAway() != nil || b.o.Metrics.awaySeconds() != 0 {
			t.Errorf("a builder that is connected is away: %v", report.GetAwayReason())
		}
	})
}

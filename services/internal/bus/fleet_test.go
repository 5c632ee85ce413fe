package bus

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
)

// run runs f until the test ends.
func run(t *testing.T, f func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := f(ctx); !errors.Is(err, context.Canceled) {
			t.Errorf("ended with %v", err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
}

func TestDigests(t *testing.T) {
	s := startServer(t, t.TempDir())
	shard := ident.Shard{Source: "file", Instance: "a.b *"}
	var want events.ShardDigests
	want.Toggle(ident.Key{Kind: "Resource", Name: "x"}, ident.Hash{1, 2, 3})

	standby := NewFleet(connect(t, s), "mesh", quiet)
	leader := NewFleet(connect(t, s), "mesh", quiet)
	watcher := NewFleet(connect(t, s), "mesh", quiet)
	other := NewFleet(connect(t, s), "other", quiet)

	run(t, func(ctx context.Context) error {
		return standby.ServeDigests(ctx, func(context.Context, ident.Shard, string, events.Kinds) (*events.ShardDigests, bool) {
			return nil, false
		})
	})
	run(t, func(ctx context.Context) error {
		return other.ServeDigests(ctx, func(context.Context, ident.Shard, string, events.Kinds) (*events.ShardDigests, bool) {
			return new(events.ShardDigests), true
		})
	})
	asked := 0
	run(t, func(ctx context.Context) error {
		return leader.ServeDigests(ctx, func(_ context.Context, s ident.Shard, session string, kinds events.Kinds) (*events.ShardDigests, bool) {
			asked++ // for the first request, the leader has not read the begin yet
			return &want, s == shard && session == "s1" && kinds.Equal(events.KindsOf("Pod", "Resource")) && asked > 1
		})
	})
	got, err := watcher.Digests(t.Context(), shard, "s1", events.KindsOf("Resource", "Pod"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDigestsWithoutLeader(t *testing.T) {
	f := NewFleet(connect(t, startServer(t, t.TempDir())), "mesh", quiet)
	ctx, cancel := context.WithTimeout(t.Context(), digestWait/10)
	defer cancel()
	if _, err := f.Digests(ctx, ident.Shard{Source: "file", Instance: "x"}, "s1", nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Digests = %v, want the context's error", err)
	}
}

// Ticks and listing requests reach the processes that they are meant for.
func TestTicksAndListingRequests(t *testing.T) {
	s := startServer(t, t.TempDir())
	leader := NewFleet(connect(t, s), "mesh", quiet)
	other := NewFleet(connect(t, s), "mesh", quiet)
	shard := ident.Shard{Source: "file", Instance: "demo"}

	ticks := make(chan *reportv1.Tick, 100)
	asked := make(chan *reportv1.ListingRequest, 100)
	run(t, func(ctx context.Context) error { return other.Ticks(ctx, func(k *reportv1.Tick) { ticks <- k }) })
	run(t, func(ctx context.Context) error {
		return other.ListingRequests(ctx, shard, func(r *reportv1.ListingRequest) { asked <- r })
	})
	tick := &reportv1.Tick{Leader: "a", Head: &snapshotv1.Version{Epoch: 1, Seq: 7}}
	request := &reportv1.ListingRequest{Source: shard.Source, Instance: shard.Instance, Session: "s1", Reason: "digest differs"}
	again := time.NewTicker(10 * time.Millisecond)
	defer again.Stop()
	for gotTick, gotRequest := false, false; !gotTick || !gotRequest; {
		select {
		case k := <-ticks:
			if diff := cmp.Diff(tick, k, protocmp.Transform()); diff != "" {
				t.Fatal(diff)
			}
			gotTick = true
		case r := <-asked:
			if diff := cmp.Diff(request, r, protocmp.Transform()); diff != "" {
				t.Fatal(diff)
			}
			gotRequest = true
		case <-again.C:
			stranger := &reportv1.ListingRequest{Source: "file", Instance: "other"}
			if err := errors.Join(leader.Tick(t.Context(), tick), leader.AskListing(t.Context(), stranger),
				leader.AskListing(t.Context(), request)); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// subscribe returns a channel of all later reports.
func subscribe(t *testing.T, s *Server) <-chan *nats.Msg {
	t.Helper()
	nc := connect(t, s)
	reports := make(chan *nats.Msg, 16)
	if _, err := nc.ChanSubscribe("meshlog.fleet.mesh.report.>", reports); err != nil {
		t.Fatal(err)
	}
	if err := nc.Flush(); err != nil {
		t.Fatal(err)
	}
	return reports
}

// A reporter reports at the start. It delays a change that comes soon after a report,
// unless the change is urgent.
func TestReporter(t *testing.T) {
	s := startServer(t, t.TempDir())
	reports := subscribe(t, s)
	var mu sync.Mutex
	report := &reportv1.FrontendReport{Frontend: "f"}
	f := NewFleet(connect(t, s), "mesh", quiet)
	r := f.FrontendReporter("f.1", func(bool) *reportv1.FrontendReport {
		mu.Lock()
		defer mu.Unlock()
		return report
	})
	set := func(next *reportv1.FrontendReport, tell func()) {
		mu.Lock()
		defer mu.Unlock()
		report = next
		tell()
	}
	expect := func(want *reportv1.FrontendReport) {
		t.Helper()
		m := <-reports
		if want := "meshlog.fleet.mesh.report.frontend.f=2E1"; m.Subject != want {
			t.Errorf("subject %s, want %s", m.Subject, want)
		}
		var got reportv1.FrontendReport
		if err := proto.Unmarshal(m.Data, &got); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, &got, protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
	}
	run(t, r.Run)
	expect(&reportv1.FrontendReport{Frontend: "f"})

	started := time.Now()
	mismatch := &reportv1.ChainMismatch{Own: &snapshotv1.Version{Epoch: 1, Seq: 9}}
	set(&reportv1.FrontendReport{Frontend: "f", Persisted: true, ChainMismatch: mismatch}, r.Urgent)
	expect(&reportv1.FrontendReport{Frontend: "f", Persisted: true, ChainMismatch: mismatch})
	if d := time.Since(started); d > reportPause/2 {
		t.Errorf("the mismatch was reported after %v", d)
	}
	started = time.Now()
	set(&reportv1.FrontendReport{Frontend: "f", ChainMismatch: mismatch}, r.Changed)
	expect(&reportv1.FrontendReport{Frontend: "f", ChainMismatch: mismatch})
	if d := time.Since(started); d < reportPause/2 {
		t.Errorf("a change was reported after %v, while the pause is %v", d, reportPause)
	}
}

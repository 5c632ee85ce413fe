package jwks

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/mesh/jwks"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
)

// sink keeps what a run reports.
type sink struct {
	lists    []watcher.Listing
	changes  []watcher.Object
	problems map[string][]problem.Diagnostic
}

func (s *sink) List(_ context.Context, l watcher.Listing) error {
	s.lists = append(s.lists, l)
	return nil
}

func (s *sink) Change(_ context.Context, set []watcher.Object) error {
	s.changes = append(s.changes, set...)
	return nil
}

func (s *sink) Problems(origin string, ds []problem.Diagnostic) { s.problems[origin] = ds }

func offerOf(issuers ...string) *reportv1.Issuers {
	o := &reportv1.Issuers{}
	for _, i := range issuers {
		o.Issuers = append(o.Issuers, &reportv1.Issuer{Issuer: i, NamedBy: "shop/tokens"})
	}
	return o
}

// gauge returns the value of a gauge.
func gauge(t *testing.T, m *Metrics, name string) float64 {
	t.Helper()
	all, err := m.Collector.(*prometheus.Registry).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() == "meshlog_jwks_"+name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// POL-12: keys are listed, a rotation is a change, a failed fetch is none, an issuer that
// is named no more is removed, and one that cannot be fetched makes the listing partial.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		keys, down := set, false
		w := New(&Fetcher{}, 0, NewMetrics())
		w.fetch = func(_ context.Context, i jwks.Issuer) (string, string, error) {
			if down || i.Issuer == "https://away" {
				return "", "", errors.New("away")
			}
			return keys, i.Issuer + "/set", nil
		}
		s := &sink{problems: map[string][]problem.Diagnostic{}}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		run := func() { go func() { ended <- w.Run(ctx, s) }() }
		run()
		if err := <-ended; err == nil {
			t.Fatal("a run without an offer ends without an error")
		}
		first := jwks.Issuer{Issuer: "https://a"}
		w.Offer(offerOf("https://a"))
		run()
		synctest.Wait()
		if len(s.lists) != 1 || s.lists[0].Partial || len(s.lists[0].Objects) != 1 || s.lists[0].Objects[0].Name != first.ObjectName() {
			t.Fatalf("listed %+v", s.lists)
		}
		<-time.After(2 * DefaultEvery)
		synctest.Wait()
		if len(s.changes) != 0 {
			t.Errorf("the same keys are a change: %+v", s.changes)
		}
		down = true
		<-time.After(2 * DefaultEvery)
		synctest.Wait()
		if len(s.changes) != 0 || len(s.problems[origin(first)]) != 1 || s.problems[origin(first)][0].Severity != problem.Warning {
			t.Errorf("a failed fetch: %+v, %+v", s.changes, s.problems)
		}
		<-time.After(4 * DefaultEvery)
		synctest.Wait()
		if ds := s.problems[origin(first)]; len(ds) != 1 || ds[0].Severity != problem.Error {
			t.Errorf("an old fetch: %+v", ds)
		}
		down, keys = false, `{"keys":[{"crv":"P-256","kty":"EC","x":"3","y":"4"}]}`
		<-time.After(2 * DefaultEvery)
		synctest.Wait()
		if len(s.changes) != 1 || s.changes[0].Name != first.ObjectName() || s.changes[0].Delete || len(s.problems[origin(first)]) != 0 {
			t.Fatalf("a rotation: %+v, %+v", s.changes, s.problems)
		}
		w.Offer(offerOf())
		synctest.Wait()
		if len(s.changes) != 2 || !s.changes[1].Delete || s.changes[1].Name != first.ObjectName() {
			t.Errorf("an issuer that is named no more: %+v", s.changes)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}

		ctx, cancel = context.WithCancel(t.Context())
		defer cancel()
		s.lists, s.changes = nil, nil
		o := offerOf("https://a", "https://away")
		o.Unnamed = []string{"old"}
		w.Offer(o)
		run()
		synctest.Wait()
		if len(s.lists) != 1 || !s.lists[0].Partial || len(s.lists[0].Objects) != 1 || len(s.changes) != 1 || s.changes[0].Name != "old" || !s.changes[0].Delete {
			t.Errorf("with an issuer that is away: %+v, %+v", s.lists, s.changes)
		}
		if all, without := gauge(t, w.metrics, "issuers"), gauge(t, w.metrics, "unfetched_issuers"); all != 2 || without != 1 {
			t.Errorf("the metrics have %v issuers, %v of them without keys", all, without)
		}
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	security "istio.io/api/security/v1beta1"

	"meshlog.dev/events/natslog"
	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/watcher"
)

// cluster1 is a watcher that can read only some kinds of its source. Each run sends
// the listing that set was called with last.
type cluster1 struct {
	listings chan watcher.Listing // holds the listing of the next run
	states   chan watcher.State
}

func (c *cluster1) Run(ctx context.Context, sink watcher.Sink) error {
	select {
	case l := <-c.listings:
		c.listings <- l // for the next run, unless set replaces it
		if err := sink.List(ctx, l); err != nil {
			return err
		}
	case <-ctx.Done():
	}
	<-ctx.Done()
	return ctx.Err()
}

// set makes later runs list l.
func (c *cluster1) set(l watcher.Listing) {
	select {
	case <-c.listings:
	default:
	}
	c.listings <- l
}

// follows waits until the watcher follows in a session other than not, and returns
// that session. If not is set and the watcher stands by meanwhile, the test fails.
func (c *cluster1) follows(t *testing.T, not string) string {
	t.Helper()
	for {
		select {
		case s := <-c.states:
			switch {
			case not != "" && s.Phase == watcher.PhaseStandby:
				t.Fatal("the watcher stands by")
			case s.Phase == watcher.PhaseFollowing && s.Session != not:
				return s.Session
			}
		case <-t.Context().Done():
			t.Fatal("no session is followed")
		}
	}
}

// watch runs a watcher of the source on the bus of a mesh.
func (c *cluster1) watch(t *testing.T, m *mesh, shard ident.Shard) (ask func(reason string)) {
	t.Helper()
	quiet := slog.New(slog.DiscardHandler)
	nc, err := bus.Connect(bus.ConnectOptions{
		URL: filepath.Join(m.Data, bus.FileName), Role: bus.Watcher(shard), Name: "test", Log: quiet,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	log, err := natslog.Open(t.Context(), nc, natslog.Options{Shard: &shard})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { log.Close() })
	fleet := bus.NewFleet(nc, process.DefaultDomain, quiet)
	ctx, cancel := context.WithCancel(t.Context())
	requests := make(chan string, 8)
	var wg sync.WaitGroup
	run := func(f func() error) {
		wg.Go(func() {
			if err := f(); !errors.Is(err, context.Canceled) {
				t.Errorf("ended with %v", err)
			}
		})
	}
	run(func() error {
		return fleet.ListingRequests(ctx, shard, func(r *reportv1.ListingRequest) { requests <- r.GetReason() })
	})
	run(func() error {
		return watcher.Run(ctx, watcher.Config{
			Shard: shard, Holder: "watcher-kube", Log: log, Leader: fleet, Logger: quiet, Watcher: c, ListingRequests: requests,
			OnState: func(s watcher.State) { c.states <- s },
		})
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return func(reason string) { requests <- reason }
}

func anObject(t *testing.T, kindName, name string, m proto.Message) watcher.Object {
	t.Helper()
	k, _ := kind.ByName(kindName)
	payload, err := k.Encode(m)
	if err != nil {
		t.Fatal(err)
	}
	return watcher.Object{Kind: kindName, Namespace: "shop", Name: name, Value: ident.Value{Type: k.TypeURL, Bytes: payload}}
}

// `meshlog sources` shows the frozen kinds of a source. They can be removed while the
// watcher runs, and the watcher continues at once. Kinds that the watcher reads cannot
// be removed. An operator signs the removal.
func TestRemoveKind(t *testing.T) {
	t.Parallel()
	ann := operatorsOf(t, "ann")[0]
	m := start(t, map[string]string{"shop.yaml": cluster("shop"), "policy.yaml": policyWith(ann)})
	shard := ident.Shard{Source: "kubernetes", Instance: "c1"}
	policies := watcher.Listing{Objects: []watcher.Object{anObject(t, "MeshPolicy", "p", &configv1.MeshPolicy{})}}
	all := policies
	for i := range 6 {
		all.Objects = append(all.Objects[:i+1:i+1], anObject(t, "PeerAuthentication", fmt.Sprint("a", i), &security.PeerAuthentication{}))
	}
	c := &cluster1{listings: make(chan watcher.Listing, 1), states: make(chan watcher.State, 1000)}
	c.set(all)
	ask := c.watch(t, m, shard)
	first := c.follows(t, "")
	policies.Kinds = []string{"MeshPolicy", "Sidecar"}
	c.set(policies) // the CRD of PeerAuthentication is gone
	ask("other kinds")
	second := c.follows(t, first)
	m.must(t, nil, "wait", "latest", "--for", "0")

	frozen := func() []frozenKindView {
		var views []sourceView
		m.must(t, &views, "sources")
		for _, v := range views {
			if v.Source == shard.Source && v.Instance == shard.Instance {
				return v.FrozenKinds
			}
		}
		t.Fatalf("no source %s in %+v", shard, views)
		return nil
	}
	if diff := cmp.Diff([]frozenKindView{{"PeerAuthentication", 6}}, frozen()); diff != "" {
		t.Errorf("frozen (-want +got):\n%s", diff)
	}
	for _, refused := range []struct {
		name, kinds, want string
		code              int
	}{
		{shard.String(), "PeerAuthentication,MeshPolicy", "kind MeshPolicy is not frozen", 1},
		{shard.String(), "EnvoyFilter", "no objects of kind EnvoyFilter", 3},
		{"file/default", "Resource", "kind Resource is not frozen", 1},
		{"file/none", "Resource", "no watcher has ever published for it", 3},
	} {
		_, _, err := m.meshlog(t, nil, "sources", "remove", refused.name, "--kind", refused.kinds, "--yes")
		if err == nil || !strings.Contains(err.Error(), refused.want) || exitCode(err) != refused.code {
			t.Errorf("sources remove %s --kind %s: %v, want %q and exit code %d", refused.name, refused.kinds, err, refused.want, refused.code)
		}
	}
	var v removeView
	if m.must(t, &v, "sources", "remove", shard.String(), "--kind", "PeerAuthentication"); v.Removed || len(v.Objects) != 6 || v.Unserved != 0 {
		t.Errorf("preview of the removal: %+v", v)
	}
	if m.must(t, &v, "sources", "remove", shard.String(), "--kind", "PeerAuthentication", "--yes", "--operator-key", ann.File); !v.Removed || len(v.Approved) != 1 {
		t.Errorf("after the removal: %+v, want a hold that was approved", v)
	}
	c.follows(t, second)
	m.must(t, nil, "wait", "latest", "--for", "0")
	if left := frozen(); len(left) > 0 {
		t.Errorf("still frozen: %+v", left)
	}
	if left := m.sources(t).Objects(shard); len(left) != 1 || left[0].Kind != "MeshPolicy" {
		t.Errorf("the source still has %v, want its MeshPolicy", left)
	}
}

package samebytes

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/tools/txtar"
	"k8s.io/apimachinery/pkg/types"

	"meshlog.dev/deploy/testkit/kubetest"
	"meshlog.dev/events"
	"meshlog.dev/events/memlog"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/kube"
	"meshlog.dev/store/memstore"
)

// TestRecordKubernetes writes the archive of testdata/kubernetes.txtar, if there
// is none, with a real API server for each cluster.
func TestRecordKubernetes(t *testing.T) {
	w := sample{name: "kubernetes"}
	if _, err := os.Stat(w.file(".archive")); !*record || err == nil {
		return
	}
	story, err := txtar.ParseFile(w.file(".txtar"))
	if err != nil {
		t.Fatal(err)
	}
	c := newClusters(t)
	for _, section := range story.Files {
		words := strings.Fields(section.Name)
		if len(words) != 2 {
			t.Fatalf("section %s: want apply or delete, and a cluster", section.Name)
		}
		c.step(words[0], words[1], string(section.Data))
	}
	chain := memstore.NewChain()
	writeArchive(t, w.file(".archive"), &past.Past{Name: "recorder", Log: c.log, Versions: chain, Blobs: chain}, nil)
}

// clusters are Kubernetes clusters whose watchers publish to one log.
type clusters struct {
	t       *testing.T
	log     *memlog.Log
	now     atomic.Int64 // in ns: one second later at each step
	ids     atomic.Int64
	servers map[string]*kubetest.Server
}

func newClusters(t *testing.T) *clusters {
	c := &clusters{t: t, servers: map[string]*kubetest.Server{}}
	c.now.Store(time.Unix(1_700_000_000, 0).UnixNano())
	c.log = memlog.New(func() time.Time { return time.Unix(0, c.now.Add(int64(time.Microsecond))) })
	segment := events.Event{ID: "samebytes-1", Body: &events.Segment{Epoch: 1, Build: "samebytes"}}
	if _, err := c.log.Append(t.Context(), []events.Event{segment}, events.Fence{}); err != nil {
		t.Fatal(err)
	}
	return c
}

// step writes objects to a cluster, and waits until its watcher has published
// nothing for a while.
func (c *clusters) step(verb, cluster, objects string) {
	c.t.Helper()
	c.now.Add(int64(time.Second))
	s := c.servers[cluster]
	first := s == nil
	if first {
		s = c.start(cluster)
	}
	write := map[string]func(context.Context, ...string) error{"apply": s.Apply, "delete": s.Delete}[verb]
	if write == nil {
		c.t.Fatalf("%s: want apply or delete", verb)
	}
	if err := write(c.t.Context(), objects); err != nil {
		c.t.Fatal(err)
	}
	if first {
		c.watch(cluster, s)
	}
	c.rest()
}

func (c *clusters) start(cluster string) *kubetest.Server {
	c.t.Helper()
	s := kubetest.Start(c.t)
	c.servers[cluster] = s
	ctx := c.t.Context()
	if err := errors.Join(s.InstallIstioCRDs(ctx), s.InstallMeshlogCRDs(ctx)); err != nil {
		c.t.Fatal(err)
	}
	return s
}

// watch publishes the objects of a cluster until the test ends.
func (c *clusters) watch(cluster string, s *kubetest.Server) {
	c.t.Helper()
	logger := slog.New(slog.DiscardHandler)
	w, err := kube.New(kube.Config{
		REST: s.Config(), Cluster: cluster, Logger: logger,
		MeshConfigMap: types.NamespacedName{Namespace: "istio-system", Name: "istio"},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := watcher.Run(ctx, watcher.Config{
			Shard: ident.Shard{Source: kube.Source, Instance: cluster}, Holder: "samebytes",
			Log: c.log, Leader: noLeader{}, Watcher: w, Logger: logger,
			NewID: func() string { return fmt.Sprintf("%s-%d", cluster, c.ids.Add(1)) },
		})
		if ctx.Err() == nil {
			c.t.Errorf("the watcher of %s ended: %v", cluster, err)
		}
	}()
	c.t.Cleanup(func() {
		cancel()
		<-done
	})
}

// noLeader has no digests, so that a watcher publishes all its objects.
type noLeader struct{}

// Digests implements watcher.Leader.
func (noLeader) Digests(context.Context, ident.Shard, string, events.Kinds) (*events.ShardDigests, error) {
	return nil, errors.New("there is no leader")
}

// rest returns when no record was appended for three seconds.
func (c *clusters) rest() {
	c.t.Helper()
	bounds, err := c.log.Bounds(c.t.Context())
	if err != nil {
		c.t.Fatal(err)
	}
	f, err := c.log.Follow(c.t.Context(), bounds.Last, "")
	if err != nil {
		c.t.Fatal(err)
	}
	defer f.Close()
	for {
		ctx, cancel := context.WithTimeout(c.t.Context(), 3*time.Second)
		_, err := f.Next(ctx)
		cancel()
		if errors.Is(err, context.DeadlineExceeded) {
			return
		}
		if err != nil {
			c.t.Fatal(err)
		}
	}
}

// Package kube watches a Kubernetes cluster: the objects of all kinds of
// mesh/kind that its API server serves. What happens when the API server,
// a kind or the right to read it goes is decided in ../README.md.
//
// Each resource has a feed (apiserver), a Reflector of client-go whose objects are
// converted on arrival. One goroutine (loop.go) owns all that is known (index),
// gathers what comes together, and says what changed.
package kube

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"meshlog.dev/services/mesh/kubeconv"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/kube/apiserver"
)

// Source is the source of the shards of clusters; their instance is the
// cluster's name.
const Source = "kubernetes"

// Config says which cluster is watched, and what of it.
type Config struct {
	// REST is how the API server is reached. Its limits on requests do not
	// count.
	REST *rest.Config
	// Renew says that anew before each run, for credentials may have been
	// renewed; nil: REST stays.
	Renew   func() (*rest.Config, error)
	Cluster string
	// DomainSuffix is that of the cluster's Services; empty: the mesh's.
	DomainSuffix string
	// Namespaces are those that are watched; none: all.
	Namespaces []string
	// DiscoverySelectors select namespaces by their labels: objects of one that
	// none of them matches are as if they were not there. None: all count.
	DiscoverySelectors []labels.Selector
	// QPS and Burst limit requests to the API server, of which a watch is one;
	// 0: DefaultQPS and DefaultBurst.
	QPS   float32
	Burst int
	// MeshConfigMap holds the settings of the mesh, as Istio keeps them: the
	// keys mesh and meshNetworks. Without a name they come from elsewhere.
	MeshConfigMap types.NamespacedName
	// ConfigMaps are carried on the log, beside it.
	ConfigMaps []types.NamespacedName
	// SecretKey is the key of the HMACs over Secrets; empty: Secrets are not
	// watched.
	SecretKey []byte

	Logger  *slog.Logger // nil: slog.Default
	Metrics *Metrics     // nil: counted nowhere
}

// Limits on requests where none are given.
const (
	DefaultQPS   = 50
	DefaultBurst = 100
)

// Watcher watches a cluster. One goroutine at a time runs it.
type Watcher struct {
	cfg    Config
	limits limits
	keeper *kubeconv.Keeper
	// held is how many objects each feed had when the last run ended: what a
	// list that has lost most of them is doubted by.
	held map[string]int64

	mu    sync.Mutex
	told  map[string][]problem.Diagnostic // by origin
	wakes chan struct{}                   // has one when told has changed
}

// New returns a watcher of a cluster, whose API server need not answer yet.
func New(cfg Config) (*Watcher, error) {
	if cfg.REST == nil || cfg.Cluster == "" {
		return nil, errors.New("a cluster needs a name and an API server")
	}
	if slices.Contains(cfg.Namespaces, "") {
		return nil, fmt.Errorf("cluster %s: the name of a namespace is empty", cfg.Cluster)
	}
	cfg.QPS, cfg.Burst = cmp.Or(cfg.QPS, DefaultQPS), cmp.Or(cfg.Burst, DefaultBurst)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(cfg.Cluster)
	}
	return &Watcher{cfg: cfg, limits: defaultLimits(), keeper: &kubeconv.Keeper{}, held: map[string]int64{},
		told: map[string][]problem.Diagnostic{}, wakes: make(chan struct{}, 1)}, nil
}

// Tell reports what others have to say about the cluster, of an origin, with
// what the watcher says itself. It may be called from any goroutine.
func (w *Watcher) Tell(origin string, ds []problem.Diagnostic) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.told[origin] = ds
	select {
	case w.wakes <- struct{}{}:
	default:
	}
}

// Run implements watcher.Watcher. The source is down while its API server does
// not answer.
func (w *Watcher) Run(ctx context.Context, sink watcher.Sink) error {
	access, err := w.access()
	if err != nil {
		return err
	}
	client, err := apiserver.New(apiserver.Config{REST: access, QPS: w.cfg.QPS, Burst: w.cfg.Burst})
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithCancel(apiserver.Quietly(ctx, w.cfg.Logger))
	r := newRun(w, client, sink)
	err = r.loop(ctx)
	cancel()
	r.running.Wait()
	for name, f := range r.feeds {
		w.held[name] = f.Held.Load()
	}
	return err
}

func (w *Watcher) access() (*rest.Config, error) {
	if w.cfg.Renew == nil {
		return w.cfg.REST, nil
	}
	return w.cfg.Renew()
}

// limits are times; tests have shorter ones.
type limits struct {
	apiserver.Limits
	// quiet has to pass without another change before changes are told;
	// longest bounds that.
	quiet, longest time.Duration
	// again is how long a run lasts before it ends for other kinds to list.
	again time.Duration
	// rediscover is the first pause before what is served is asked again, where
	// a definition is not served yet; poll is the pause where definitions
	// cannot be watched.
	rediscover, poll time.Duration
	// unmirrored is the time between two looks for Services whose endpoints
	// nobody mirrors.
	unmirrored time.Duration
}

func defaultLimits() limits {
	return limits{
		Limits: apiserver.DefaultLimits(), quiet: 2 * time.Millisecond, longest: 50 * time.Millisecond,
		again: 10 * time.Second, rediscover: time.Second, poll: time.Minute, unmirrored: time.Minute,
	}
}

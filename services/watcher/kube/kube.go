// Package kube watches a Kubernetes cluster: the objects of all kinds of
// mesh/kind that its API server serves. ../README.md describes what happens if
// the API server, a kind or the right to read a kind disappears.
//
// Each resource has a feed (apiserver): a Reflector of client-go whose objects are
// converted when they arrive. One goroutine (loop.go) owns the index of all
// objects, batches the feeds' messages and reports the changes.
package kube

import (
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
	"k8s.io/client-go/util/flowcontrol"

	"meshlog.dev/services/mesh/credential"
	"meshlog.dev/services/mesh/kubeconv"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/kube/apiserver"
)

// Source is the source of the shards of clusters. Their instance is the cluster's
// name.
const Source = "kubernetes"

// Config describes a cluster and which of its objects to watch.
type Config struct {
	// REST configures access to the API server. Its QPS and Burst limit the requests.
	REST *rest.Config
	// Renew returns the configuration for a run, because credentials may have been
	// renewed. If it is nil, all runs use REST.
	Renew   func() (*rest.Config, error)
	Cluster string
	// DomainSuffix is the domain of the cluster's Services; empty means the mesh's.
	DomainSuffix string
	// Namespaces to watch; empty means all.
	Namespaces []string
	// Revision is that of the control plane: objects that are for another one are
	// ignored (kind.InRevision). Empty: none are.
	Revision string
	// DiscoverySelectors select namespaces by their labels. Objects in a namespace
	// that no selector matches are ignored. Without selectors all namespaces count.
	DiscoverySelectors []labels.Selector
	// MeshConfigMap has Istio's settings of the mesh in its keys mesh and
	// meshNetworks. Without a name, the settings come from another source.
	MeshConfigMap types.NamespacedName
	// ConfigMaps are published as well.
	ConfigMaps []types.NamespacedName
	// Secrets say what references to Secrets reveal. Without a key, Secrets are not
	// watched.
	Secrets credential.Options
	// SecretNamespaces and SecretSelector limit the Secrets to read, by namespace and
	// label; without a limit, those of all watched namespaces are read.
	SecretNamespaces []string
	SecretSelector   labels.Selector

	Logger  *slog.Logger // nil means slog.Default
	Metrics *Metrics     // nil discards the metrics
}

// Watcher watches a cluster. Only one goroutine at a time may call Run; Credential may be
// called concurrently.
type Watcher struct {
	cfg    Config
	limits limits
	keeper *kubeconv.Keeper
	// limiter limits the requests of all clients together; nil: there is no limit.
	limiter flowcontrol.RateLimiter
	// held is the number of objects of each feed at the end of the last run. A list
	// that has lost most of them is suspect.
	held map[string]int64

	mu    sync.Mutex
	told  map[string][]problem.Diagnostic // by origin
	wakes chan struct{}                   // signals a change of told
}

// New returns a watcher of a cluster. It does not contact the API server.
func New(cfg Config) (*Watcher, error) {
	if cfg.REST == nil || cfg.Cluster == "" {
		return nil, errors.New("a cluster needs a name and an API server")
	}
	if slices.Contains(slices.Concat(cfg.Namespaces, cfg.SecretNamespaces), "") {
		return nil, fmt.Errorf("cluster %s: the name of a namespace is empty", cfg.Cluster)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics(cfg.Cluster)
	}
	if cfg.Renew == nil {
		cfg.Renew = func() (*rest.Config, error) { return cfg.REST, nil }
	}
	w := &Watcher{cfg: cfg, limits: defaultLimits(), keeper: &kubeconv.Keeper{}, held: map[string]int64{},
		told: map[string][]problem.Diagnostic{}, wakes: make(chan struct{}, 1)}
	if cfg.REST.QPS > 0 {
		w.limiter = flowcontrol.NewTokenBucketRateLimiter(cfg.REST.QPS, cfg.REST.Burst)
	}
	return w, nil
}

// client returns a client with the current credentials. The caller closes it.
func (w *Watcher) client() (*apiserver.Client, error) {
	access, err := w.cfg.Renew()
	if err != nil {
		return nil, err
	}
	access = rest.CopyConfig(access)
	access.RateLimiter = w.limiter
	return apiserver.New(access)
}

// Tell sets the diagnostics of an origin, which the watcher reports with its own.
// It may be called concurrently.
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
	client, err := w.client()
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

// limits are durations, which tests shorten.
type limits struct {
	apiserver.Limits
	// quiet is the time without a further message after which changes are
	// reported; longest limits the whole wait.
	quiet, longest time.Duration
	// again is the minimum length of a run that ends to list other kinds.
	again time.Duration
	// rediscover is the first pause before discovery is repeated because a
	// definition is not served yet; poll is the pause if definitions cannot be
	// watched.
	rediscover, poll time.Duration
	// unmirrored is the time between two searches for Services with unmirrored
	// endpoints.
	unmirrored time.Duration
}

func defaultLimits() limits {
	return limits{
		Limits: apiserver.DefaultLimits(), quiet: 2 * time.Millisecond, longest: 50 * time.Millisecond,
		again: 10 * time.Second, rediscover: time.Second, poll: time.Minute, unmirrored: time.Minute,
	}
}

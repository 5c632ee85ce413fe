// Package apiserver reads a Kubernetes API server: it discovers resources, lists
// and watches their objects, and probes the server's health.
package apiserver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	"github.com/go-logr/logr"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/klog/v2"

	"meshlog.dev/services/watcher/kube/index"
)

// Client reads one API server over one pool of connections.
type Client struct {
	host      string // address of the API server
	http      *http.Client
	discovery *discovery.DiscoveryClient
	objects   dynamic.Interface
	metadata  metadata.Interface
	// typed has the clients of the groups whose resources are read as protobuf. All
	// other resources are read as JSON.
	typed map[schema.GroupVersion]rest.Interface
}

// Secrets is the resource of Secrets.
var Secrets = Resource{corev1.SchemeGroupVersion.WithResource("secrets"), true}

// Definitions is the resource of CustomResourceDefinitions.
var Definitions = Resource{GroupVersionResource: definitions}

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// New returns a client. It sends no request. If c has a RateLimiter or a QPS, it limits
// all requests together; starting a watch is one request.
func New(c *rest.Config) (*Client, error) {
	cfg := rest.CopyConfig(c)
	cfg.WarningHandler = rest.NoWarnings{} // operators cannot act on warnings about deprecated resources
	if c.QPS > 0 && c.RateLimiter == nil {
		cfg.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(c.QPS, c.Burst)
	}
	h, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("API server %s: %w", cfg.Host, err)
	}
	out := &Client{host: cfg.Host, http: h, typed: map[schema.GroupVersion]rest.Interface{}}
	if out.discovery, err = discovery.NewDiscoveryClientForConfigAndClient(cfg, h); err != nil {
		return nil, err
	}
	if out.objects, err = dynamic.NewForConfigAndClient(cfg, h); err != nil {
		return nil, err
	}
	if out.metadata, err = metadata.NewForConfigAndClient(cfg, h); err != nil {
		return nil, err
	}
	for _, gv := range []schema.GroupVersion{corev1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion} {
		if out.typed[gv], err = typedClient(cfg, h, gv); err != nil {
			return nil, err
		}
	}
	return out, nil
}

func typedClient(cfg *rest.Config, h *http.Client, gv schema.GroupVersion) (rest.Interface, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.GroupVersion, cfg.NegotiatedSerializer = &gv, scheme.Codecs.WithoutConversion()
	cfg.APIPath = "/apis"
	if gv.Group == "" {
		cfg.APIPath = "/api"
	}
	cfg.ContentType = runtime.ContentTypeProtobuf
	cfg.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	return rest.RESTClientForConfigAndClient(cfg, h)
}

// Close closes idle connections, so that the next run opens new ones.
func (c *Client) Close() { utilnet.CloseIdleConnectionsFor(c.http.Transport) }

// requests returns the requests that list and watch a resource in a namespace, or in
// all if it is "".
func (c *Client) requests(r schema.GroupVersionResource, namespace string) *cache.ListWatch {
	if typed, ok := c.typed[r.GroupVersion()]; ok {
		return cache.NewFilteredListWatchFromClient(typed, r.Resource, namespace, func(*metav1.ListOptions) {})
	}
	if r == definitions {
		m := c.metadata.Resource(r)
		return listWatch(m.List, m.Watch)
	}
	in := c.objects.Resource(r).Namespace(namespace)
	return listWatch(in.List, in.Watch)
}

func listWatch[L runtime.Object](list func(context.Context, metav1.ListOptions) (L, error), watch cache.WatchFuncWithContext) *cache.ListWatch {
	return &cache.ListWatch{
		ListWithContextFunc:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return list(ctx, o) },
		WatchFuncWithContext: watch,
	}
}

// Definition is the state of a CustomResourceDefinition.
type Definition struct {
	UID      string
	Deleting bool
}

func definitionOf(m metav1.Object) Definition {
	return Definition{UID: string(m.GetUID()), Deleting: m.GetDeletionTimestamp() != nil}
}

// Definition reads the metadata of a CustomResourceDefinition.
func (c *Client) Definition(ctx context.Context, name string) (Definition, error) {
	m, err := c.metadata.Resource(definitions).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return Definition{}, err
	}
	return definitionOf(m), nil
}

// Definitions reads the metadata of all CustomResourceDefinitions, by name.
func (c *Client) Definitions(ctx context.Context) (map[string]Definition, error) {
	l, err := c.metadata.Resource(definitions).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	all := make(map[string]Definition, len(l.Items))
	for i := range l.Items {
		all[l.Items[i].GetName()] = definitionOf(&l.Items[i])
	}
	return all, nil
}

// DefinitionObject converts the metadata of a CustomResourceDefinition to an object
// whose Body is a Definition.
func DefinitionObject(from runtime.Object) (*index.Object, bool) {
	m := from.(metav1.Object)
	return &index.Object{Key: index.Key{Name: m.GetName()}, Version: m.GetResourceVersion(), Body: definitionOf(m)}, true
}

// Endpoints reads an Endpoints object.
func (c *Client) Endpoints(ctx context.Context, namespace, name string) (*corev1.Endpoints, error) { //nolint:staticcheck // unmirrored Endpoints are what the caller looks for
	out := &corev1.Endpoints{} //nolint:staticcheck // see above
	err := c.typed[corev1.SchemeGroupVersion].Get().Namespace(namespace).Resource("endpoints").Name(name).Do(ctx).Into(out)
	return out, err
}

// errUnreadable replaces the error for a Secret that cannot be decoded, which could
// repeat a part of it.
var errUnreadable = errors.New("the API server's answer is not a Secret that can be read")

// Secret reads a Secret from the API server, never from its cache. The caller wipes it.
func (c *Client) Secret(ctx context.Context, namespace, name string) (*corev1.Secret, error) {
	result := c.typed[corev1.SchemeGroupVersion].Get().Namespace(namespace).Resource("secrets").Name(name).Do(ctx)
	body, _ := result.Raw()
	defer clear(body)
	if err := result.Error(); err != nil {
		return nil, err
	}
	out := &corev1.Secret{}
	if _, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, out); err != nil {
		return nil, errUnreadable
	}
	return out, nil
}

// SecretLabels reads the labels of a Secret without its data.
func (c *Client) SecretLabels(ctx context.Context, namespace, name string) (map[string]string, error) {
	m, err := c.metadata.Resource(Secrets.GroupVersionResource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, err
	}
	return m.GetLabels(), nil
}

// Quietly returns a context in which client-go logs to log at level debug, but not the
// content of requests and answers.
func Quietly(ctx context.Context, log *slog.Logger) context.Context {
	return klog.NewContext(ctx, logr.FromSlogHandler(quiet{log.Handler()}))
}

// quiet lowers all records to debug: feeds report client-go's errors with their
// consequences. It drops those of client-go's levels that have the content of answers,
// which may be a Secret: from 8 on, the whole answer.
type quiet struct{ slog.Handler }

// mostDetailed is client-go's level 5, below those with requests and answers.
const mostDetailed = slog.Level(-5)

func (q quiet) Enabled(ctx context.Context, l slog.Level) bool {
	return l >= mostDetailed && q.Handler.Enabled(ctx, slog.LevelDebug)
}

func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return q.Handler.Handle(ctx, r)
}

func (q quiet) WithAttrs(as []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(as)} }

func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name)} }

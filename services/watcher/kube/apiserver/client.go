// Package apiserver reads a Kubernetes API server: it discovers resources, lists
// and watches their objects, and probes the server's health.
package apiserver

import (
	"context"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"meshlog.dev/services/watcher/kube/index"
)

// Config configures access to an API server.
type Config struct {
	// REST has the address and the credentials. QPS and Burst replace its limits.
	REST *rest.Config
	// QPS and Burst limit the requests. Starting a watch is one request.
	QPS   float32
	Burst int
}

// Client reads one API server over one pool of connections.
type Client struct {
	host      string // address of the API server
	http      *http.Client
	discovery *discovery.DiscoveryClient
	objects   dynamic.Interface
	metadata  metadata.Interface
	typed     map[schema.GroupVersion]rest.Interface
	// probe is not throttled.
	probe rest.Interface
}

// typedLists are the list types of the resources that are read as protobuf. All
// other resources are read as JSON.
var typedLists = map[schema.GroupVersionResource]func() runtime.Object{
	corev1.SchemeGroupVersion.WithResource("services"):            func() runtime.Object { return &corev1.ServiceList{} },
	corev1.SchemeGroupVersion.WithResource("pods"):                func() runtime.Object { return &corev1.PodList{} },
	corev1.SchemeGroupVersion.WithResource("nodes"):               func() runtime.Object { return &corev1.NodeList{} },
	corev1.SchemeGroupVersion.WithResource("namespaces"):          func() runtime.Object { return &corev1.NamespaceList{} },
	corev1.SchemeGroupVersion.WithResource("secrets"):             func() runtime.Object { return &corev1.SecretList{} },
	corev1.SchemeGroupVersion.WithResource("configmaps"):          func() runtime.Object { return &corev1.ConfigMapList{} },
	discoveryv1.SchemeGroupVersion.WithResource("endpointslices"): func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
}

// Secrets is the resource of Secrets.
var Secrets = Resource{corev1.SchemeGroupVersion.WithResource("secrets"), true}

// Definitions is the resource of CustomResourceDefinitions.
var Definitions = Resource{GroupVersionResource: definitions}

var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

// New returns a client. It sends no request.
func New(c Config) (*Client, error) {
	cfg := rest.CopyConfig(c.REST)
	cfg.WarningHandler = rest.NoWarnings{} // operators cannot act on warnings about deprecated resources
	cfg.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(c.QPS, c.Burst)
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
	scheme := runtime.NewScheme()
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, discoveryv1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, err
		}
	}
	codecs := serializer.NewCodecFactory(scheme).WithoutConversion()
	for _, gv := range []schema.GroupVersion{corev1.SchemeGroupVersion, discoveryv1.SchemeGroupVersion} {
		if out.typed[gv], err = restClient(cfg, h, gv, codecs); err != nil {
			return nil, err
		}
	}
	unthrottled := rest.CopyConfig(cfg)
	unthrottled.RateLimiter = flowcontrol.NewFakeAlwaysRateLimiter()
	if out.probe, err = restClient(unthrottled, h, corev1.SchemeGroupVersion, codecs); err != nil {
		return nil, err
	}
	return out, nil
}

func restClient(cfg *rest.Config, h *http.Client, gv schema.GroupVersion, codecs runtime.NegotiatedSerializer) (rest.Interface, error) {
	cfg = rest.CopyConfig(cfg)
	cfg.GroupVersion, cfg.NegotiatedSerializer = &gv, codecs
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

// reader lists and watches a resource.
type reader struct {
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// reader returns the reader of a resource in a namespace, or in all if it is "".
func (c *Client) reader(r schema.GroupVersionResource, namespace string) reader {
	if r == definitions {
		m := c.metadata.Resource(r)
		return reader{
			list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return m.List(ctx, o) },
			watch: m.Watch,
		}
	}
	newList, ok := typedLists[r]
	if !ok {
		in := c.objects.Resource(r).Namespace(namespace)
		return reader{
			list:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return in.List(ctx, o) },
			watch: in.Watch,
		}
	}
	client := c.typed[r.GroupVersion()]
	get := func(o metav1.ListOptions) *rest.Request {
		return client.Get().NamespaceIfScoped(namespace, namespace != "").Resource(r.Resource).VersionedParams(&o, metav1.ParameterCodec)
	}
	return reader{
		list: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			l := newList()
			return l, get(o).Do(ctx).Into(l)
		},
		watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			var timeout time.Duration
			if o.TimeoutSeconds != nil {
				timeout = time.Duration(*o.TimeoutSeconds) * time.Second
			}
			return get(o).Timeout(timeout).Watch(ctx)
		},
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
	m, err := meta.Accessor(from)
	if err != nil {
		return &index.Object{}, false
	}
	return &index.Object{Key: index.Key{Name: m.GetName()}, Version: m.GetResourceVersion(), Body: definitionOf(m)}, true
}

// Endpoints reads an Endpoints object.
func (c *Client) Endpoints(ctx context.Context, namespace, name string) (*corev1.Endpoints, error) { //nolint:staticcheck // unmirrored Endpoints are what the caller looks for
	out := &corev1.Endpoints{} //nolint:staticcheck // see above
	err := c.typed[corev1.SchemeGroupVersion].Get().Namespace(namespace).Resource("endpoints").Name(name).Do(ctx).Into(out)
	return out, err
}

package kube

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
)

// client reads one API server, over one pool of connections.
type client struct {
	http      *http.Client
	discovery *discovery.DiscoveryClient
	objects   dynamic.Interface
	metadata  metadata.Interface
	typed     map[schema.GroupVersion]rest.Interface
	// probe is not throttled.
	probe rest.Interface
}

// typedLists are what lists of those resources are read into. They come as
// protobuf; all others come as JSON.
var typedLists = map[schema.GroupVersionResource]func() runtime.Object{
	corev1.SchemeGroupVersion.WithResource("services"):            func() runtime.Object { return &corev1.ServiceList{} },
	corev1.SchemeGroupVersion.WithResource("pods"):                func() runtime.Object { return &corev1.PodList{} },
	corev1.SchemeGroupVersion.WithResource("nodes"):               func() runtime.Object { return &corev1.NodeList{} },
	corev1.SchemeGroupVersion.WithResource("namespaces"):          func() runtime.Object { return &corev1.NamespaceList{} },
	corev1.SchemeGroupVersion.WithResource("secrets"):             func() runtime.Object { return &corev1.SecretList{} },
	corev1.SchemeGroupVersion.WithResource("configmaps"):          func() runtime.Object { return &corev1.ConfigMapList{} },
	discoveryv1.SchemeGroupVersion.WithResource("endpointslices"): func() runtime.Object { return &discoveryv1.EndpointSliceList{} },
}

var secrets = corev1.SchemeGroupVersion.WithResource("secrets")

// definitions is the resource of CustomResourceDefinitions.
var definitions = schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}

func newClient(c Config) (*client, error) {
	cfg := rest.CopyConfig(c.REST)
	cfg.WarningHandler = rest.NoWarnings{} // that something is deprecated is not news to who runs this
	cfg.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(c.QPS, c.Burst)
	h, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return nil, fmt.Errorf("cluster %s: %w", c.Cluster, err)
	}
	out := &client{http: h, typed: map[schema.GroupVersion]rest.Interface{}}
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

// close lets go of the connections, so that the next run makes new ones.
func (c *client) close() { utilnet.CloseIdleConnectionsFor(c.http.Transport) }

// reader lists and watches a resource.
type reader struct {
	list  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
}

// reader of a resource in a namespace; empty: in all.
func (c *client) reader(r schema.GroupVersionResource, namespace string) reader {
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

// definition reads the metadata of a CustomResourceDefinition.
func (c *client) definition(ctx context.Context, name string) (definition, error) {
	m, err := c.metadata.Resource(definitions).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return definition{}, err
	}
	return definition{uid: string(m.GetUID()), deleting: m.GetDeletionTimestamp() != nil}, nil
}

// definitions reads the metadata of all CustomResourceDefinitions.
func (c *client) definitions(ctx context.Context) (map[string]definition, error) {
	l, err := c.metadata.Resource(definitions).List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	all := make(map[string]definition, len(l.Items))
	for i := range l.Items {
		m := &l.Items[i]
		all[m.GetName()] = definition{uid: string(m.GetUID()), deleting: m.GetDeletionTimestamp() != nil}
	}
	return all, nil
}

// items calls f for each item of a list.
func items(list runtime.Object, f func(runtime.Object)) error {
	return meta.EachListItemWithAlloc(list, func(o runtime.Object) error { f(o); return nil })
}

package index

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/kubeconv"
	"meshlog.dev/services/watcher"
)

// cluster feeds an index as the API server would.
type cluster struct {
	t *testing.T
	*Index
}

func newCluster(t *testing.T, selectors ...string) *cluster {
	var parsed []labels.Selector
	for _, s := range selectors {
		p, err := labels.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		parsed = append(parsed, p)
	}
	return &cluster{t, New(parsed)}
}

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (c *cluster) object(name string, from runtime.Object) *Object {
	c.t.Helper()
	k, ok := kind.ByName(name)
	if !ok {
		c.t.Fatalf("no kind %s", name)
	}
	o, ok := Objects(k, kubeconv.Converter{}, &kubeconv.Keeper{})(from)
	if !ok {
		c.t.Fatalf("%s is not to be there", name)
	}
	o.Seen = start
	return o
}

func (c *cluster) add(name string, from runtime.Object) {
	c.t.Helper()
	c.Put(&Feed{Name: name}, c.object(name, from))
}

func (c *cluster) drop(kind, namespace, name string) { c.Remove(Key{kind, namespace, name}, start) }

// says checks the operations and names of the reported changes.
func (c *cluster) says(want ...string) []watcher.Object {
	c.t.Helper()
	set := c.Changes()
	var got []string
	for _, o := range set {
		op := "+"
		if o.Delete {
			op = "-"
		}
		got = append(got, strings.TrimSpace(fmt.Sprintf("%s%s %s/%s", op, o.Kind, o.Namespace, o.Name)))
	}
	if diff := cmp.Diff(want, got); diff != "" {
		c.t.Errorf("reported (-want +got):\n%s", diff)
	}
	return set
}

func named(namespace, name string, labels ...string) metav1.ObjectMeta {
	m := metav1.ObjectMeta{Namespace: namespace, Name: name, ResourceVersion: "1"}
	for i := 0; i+1 < len(labels); i += 2 {
		if m.Labels == nil {
			m.Labels = map[string]string{}
		}
		m.Labels[labels[i]] = labels[i+1]
	}
	return m
}

func namespace(name string, labels ...string) *corev1.Namespace {
	return &corev1.Namespace{ObjectMeta: named("", name, labels...)}
}

func node(name, zone string) *corev1.Node {
	return &corev1.Node{ObjectMeta: named("", name, corev1.LabelTopologyRegion, "eu", corev1.LabelTopologyZone, zone)}
}

func pod(namespace, name, ip string, labels ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: named(namespace, name, labels...)}
	p.Spec.NodeName = "n1"
	if ip != "" {
		p.Status.PodIPs = []corev1.PodIP{{IP: ip}}
	}
	return p
}

func service(namespace, name string) *corev1.Service {
	return &corev1.Service{ObjectMeta: named(namespace, name), Spec: corev1.ServiceSpec{ClusterIP: "10.96.0.1", Selector: map[string]string{"app": name}}}
}

// slice makes a slice with an endpoint for each "pod" or "@address".
func slice(namespace, name, service string, endpoints ...string) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{ObjectMeta: named(namespace, name, discoveryv1.LabelServiceName, service), AddressType: discoveryv1.AddressTypeIPv4}
	n1 := "n1"
	for i, e := range endpoints {
		if address, ok := strings.CutPrefix(e, "@"); ok {
			s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{address}})
			continue
		}
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprint("10.0.0.", i+1)}, NodeName: &n1,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: namespace, Name: e},
		})
	}
	return s
}

// endpoint returns the i-th endpoint of a reported slice.
func endpoint(t *testing.T, set []watcher.Object, i int) *registryv1.Endpoint {
	t.Helper()
	at := slices.IndexFunc(set, func(o watcher.Object) bool { return o.Kind == SliceKind })
	if at < 0 {
		t.Fatal("no slice was reported")
	}
	k, _ := kind.ByName(SliceKind)
	m, err := k.Decode(set[at].Value.Type, set[at].Value.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return m.(*registryv1.Endpoints).GetEndpoints()[i]
}

func TestOnlyConvertedContentIsAChange(t *testing.T) {
	c := newCluster(t)
	s := service("prod", "a")
	c.add("Service", s)
	c.says("+Service prod/a")
	again := s.DeepCopy()
	again.ResourceVersion, again.Status.Conditions = "2", []metav1.Condition{{Type: "Seen"}}
	c.add("Service", again)
	c.says()
	other := s.DeepCopy()
	other.Spec.ClusterIP = "10.96.0.2"
	c.add("Service", other)
	c.says("+Service prod/a")
	c.drop("Service", "prod", "a")
	set := c.says("-Service prod/a")
	if set[0].Value.Type != "" || set[0].Observed.IsZero() {
		t.Errorf("deleted with %+v", set[0])
	}
	c.drop("Service", "prod", "a")
	c.says()
	// An object that came and went in between is not reported.
	c.add("Service", s)
	c.drop("Service", "prod", "a")
	c.says()
}

// TestEndpointsBeforeTheirPod: an endpoint gets the data of a pod that arrives later (EPS-4).
func TestEndpointsBeforeTheirPod(t *testing.T) {
	c := newCluster(t)
	c.add("EndpointSlice", slice("prod", "a-1", "a", "p1", "p2"))
	set := c.says("+EndpointSlice prod/a-1")
	if e := endpoint(t, set, 0); len(e.GetLabels()) != 0 || e.GetLocality() != nil {
		t.Errorf("nothing is known of the pod, but %v", e)
	}
	if got := c.Figures()[SliceKind].Podless; got != 2 {
		t.Errorf("%d endpoints without pod, want 2", got)
	}
	c.add("Node", node("n1", "eu-1"))
	set = c.says("+EndpointSlice prod/a-1", "+Node /n1")
	if e := endpoint(t, set, 1); e.GetLocality().GetZone() != "eu-1" {
		t.Errorf("the node is known, but the endpoint is in %v", e.GetLocality())
	}
	// A pod that is not published yet already provides its data.
	c.add("Pod", pod("prod", "p2", "", "version", "v2"))
	set = c.says("+EndpointSlice prod/a-1")
	if e := endpoint(t, set, 1); e.GetLabels()["version"] != "v2" {
		t.Errorf("the endpoint of p2 has labels %v", e.GetLabels())
	}
	c.add("Pod", pod("prod", "p1", "10.0.0.1", "version", "v1"))
	c.says("+EndpointSlice prod/a-1", "+Pod prod/p1")
	if got := c.Figures()[SliceKind].Podless; got != 0 {
		t.Errorf("%d endpoints without pod, want none", got)
	}
}

// TestNodeMovesWhatIsOnIt: pods and endpoints have the locality of their node, whichever
// arrives first (NOD-1). An endpoint may know its node only through its pod.
func TestNodeMovesWhatIsOnIt(t *testing.T) {
	c := newCluster(t)
	c.add("Pod", pod("prod", "p1", "10.0.0.1"))
	c.add("EndpointSlice", slice("prod", "a-1", "a", "p1"))
	c.add("EndpointSlice", slice("prod", "b-1", "b", "@10.0.0.1"))
	elsewhere := pod("prod", "p2", "10.0.0.2")
	elsewhere.Spec.NodeName = "n2"
	c.add("Pod", elsewhere)
	c.says("+EndpointSlice prod/a-1", "+EndpointSlice prod/b-1", "+Pod prod/p1", "+Pod prod/p2")
	moved := []string{"+EndpointSlice prod/a-1", "+EndpointSlice prod/b-1", "+Node /n1", "+Pod prod/p1"}
	zone := func(set []watcher.Object) string { return endpoint(t, set, 0).GetLocality().GetZone() }
	for _, want := range []string{"eu-1", "eu-2"} {
		c.add("Node", node("n1", want))
		if got := zone(c.says(moved...)); got != want {
			t.Errorf("the endpoint is in %q, want %q", got, want)
		}
	}
	beats := node("n1", "eu-2")
	beats.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, LastHeartbeatTime: metav1.NewTime(start)}}
	c.add("Node", beats)
	c.says()
	c.drop("Node", "", "n1")
	moved[2] = "-Node /n1"
	if got := zone(c.says(moved...)); got != "" {
		t.Errorf("the node is gone, and the endpoint is in %q", got)
	}
}

// TestSlicesOfOneService: each slice is an object; an endpoint that moves between two is in
// exactly one after a change set (EPS-3).
func TestSlicesOfOneService(t *testing.T) {
	c := newCluster(t)
	c.add("EndpointSlice", slice("prod", "a-1", "a", "p1", "p2"))
	c.add("EndpointSlice", slice("prod", "a-2", "a", "p3"))
	c.says("+EndpointSlice prod/a-1", "+EndpointSlice prod/a-2")
	c.add("EndpointSlice", slice("prod", "a-2", "a", "p3", "p2"))
	c.add("EndpointSlice", slice("prod", "a-1", "a", "p1"))
	c.says("+EndpointSlice prod/a-1", "+EndpointSlice prod/a-2")
	c.add("Pod", pod("prod", "p3", "10.0.0.1", "version", "v1"))
	c.says("+EndpointSlice prod/a-2", "+Pod prod/p3")
	c.drop("EndpointSlice", "prod", "a-1")
	c.says("-EndpointSlice prod/a-1")
}

func TestPodChangeIsItsSlicesOnly(t *testing.T) {
	c := newCluster(t)
	c.add("Pod", pod("prod", "p1", "10.0.0.1", "v", "1"))
	c.add("EndpointSlice", slice("prod", "a-1", "a", "p1"))
	c.add("EndpointSlice", slice("prod", "b-1", "b", "p1", "p2"))
	c.add("EndpointSlice", slice("prod", "c-1", "c", "p3"))
	c.add("EndpointSlice", slice("test", "a-1", "a", "p1"))
	c.says("+EndpointSlice prod/a-1", "+EndpointSlice prod/b-1", "+EndpointSlice prod/c-1", "+EndpointSlice test/a-1", "+Pod prod/p1")
	c.add("Pod", pod("prod", "p1", "10.0.0.1", "v", "2"))
	c.says("+EndpointSlice prod/a-1", "+EndpointSlice prod/b-1", "+Pod prod/p1")
	// A pod's readiness does not affect endpoints: their slices have it.
	ready := pod("prod", "p1", "10.0.0.1", "v", "2")
	ready.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	c.add("Pod", ready)
	c.says("+Pod prod/p1")
	c.add("EndpointSlice", slice("prod", "b-1", "b", "p2"))
	c.says("+EndpointSlice prod/b-1")
	c.drop("Pod", "prod", "p1")
	c.says("+EndpointSlice prod/a-1", "-Pod prod/p1")
}

// TestPodsByAddress: an endpoint without a targetRef gets the data of the pod with its
// address, if exactly one pod has this address for itself (POD-3).
func TestPodsByAddress(t *testing.T) {
	c := newCluster(t)
	c.add("EndpointSlice", slice("prod", "a-1", "a", "@10.0.0.7"))
	c.says("+EndpointSlice prod/a-1")
	c.add("Pod", pod("prod", "p1", "10.0.0.7", "v", "1"))
	set := c.says("+EndpointSlice prod/a-1", "+Pod prod/p1")
	if got := endpoint(t, set, 0).GetWorkload(); got != "p1" {
		t.Errorf("the endpoint is %q, want p1", got)
	}
	c.add("Pod", pod("prod", "p1", "10.0.0.8", "v", "1"))
	set = c.says("+EndpointSlice prod/a-1", "+Pod prod/p1")
	if got := endpoint(t, set, 0).GetWorkload(); got != "" {
		t.Errorf("the pod has another address, and the endpoint is %q", got)
	}
	host := pod("prod", "p2", "10.0.0.7")
	host.Spec.HostNetwork = true
	c.add("Pod", host)
	c.says("+Pod prod/p2")
}

// TestEndedPodLeaves: a pod that has ended loses its address (POD-3).
func TestEndedPodLeaves(t *testing.T) {
	c := newCluster(t)
	p := pod("prod", "p1", "10.0.0.1")
	c.add("Pod", p)
	c.says("+Pod prod/p1")
	ended := p.DeepCopy()
	ended.Status.Phase = corev1.PodSucceeded
	c.add("Pod", ended)
	c.says("-Pod prod/p1")
	c.drop("Pod", "prod", "p1")
	c.says()
}

func TestReplaceIsAllOfAFeed(t *testing.T) {
	c := newCluster(t)
	prod, test := &Feed{Name: "Service prod"}, &Feed{Name: "Service test"}
	list := func(feed string, names ...string) (all []*Object) {
		for _, name := range names {
			all = append(all, c.object("Service", service(feed, name)))
		}
		return all
	}
	c.Replace(prod, list("prod", "a", "b", "c"), start)
	c.Replace(test, list("test", "a"), start)
	c.says("+Service prod/a", "+Service prod/b", "+Service prod/c", "+Service test/a")
	if got := c.Missing(prod, list("prod", "b")); len(got) != 2 {
		t.Errorf("a list would lose %v, want two", got)
	}
	c.Replace(prod, list("prod", "b", "d"), start)
	c.says("-Service prod/a", "-Service prod/c", "+Service prod/d")
	if c.Held(prod) != 2 || c.Held(test) != 1 || c.Figures()["Service"].Objects != 3 {
		t.Errorf("held %v, figures %v", c.held, c.Figures())
	}
	c.Replace(prod, nil, start)
	c.says("-Service prod/b", "-Service prod/d")
}

func TestDiscoverySelectors(t *testing.T) {
	c := newCluster(t, "mesh=on", "team in (a, b)")
	c.add("Service", service("prod", "a"))
	c.add("Node", node("n1", "eu-1"))
	c.says("+Node /n1") // has no namespace
	c.add("Namespace", namespace("prod"))
	c.says()
	c.add("Pod", pod("prod", "p1", "10.0.0.1"))
	c.add("EndpointSlice", slice("prod", "a-1", "a", "p1"))
	c.says()
	c.add("Namespace", namespace("prod", "mesh", "on"))
	set := c.says("+EndpointSlice prod/a-1", "+Namespace /prod", "+Pod prod/p1", "+Service prod/a")
	if len(set[3].Value.Bytes) == 0 {
		t.Error("the Service came without its content")
	}
	c.add("Namespace", namespace("prod", "team", "b"))
	c.says("+Namespace /prod")
	c.add("Namespace", namespace("prod"))
	c.says("-EndpointSlice prod/a-1", "-Namespace /prod", "-Pod prod/p1", "-Service prod/a")
	c.add("Service", service("prod", "b"))
	c.says()
	c.add("Namespace", namespace("prod", "team", "a"))
	set = c.says("+EndpointSlice prod/a-1", "+Namespace /prod", "+Pod prod/p1", "+Service prod/a", "+Service prod/b")
	if len(set[3].Value.Bytes) == 0 {
		t.Error("the Service came back without its content")
	}
	c.drop("Namespace", "", "prod")
	c.says("-EndpointSlice prod/a-1", "-Namespace /prod", "-Pod prod/p1", "-Service prod/a", "-Service prod/b")
}

func TestOnlyCoveredKindsAreReported(t *testing.T) {
	c := newCluster(t)
	c.Cover(map[string]bool{"EndpointSlice": true})
	c.add("Pod", pod("prod", "p1", "10.0.0.1"))
	c.add("EndpointSlice", slice("prod", "a-1", "a", "p1"))
	c.says("+EndpointSlice prod/a-1")
}

func TestUndecodedIsCounted(t *testing.T) {
	c := newCluster(t)
	s := slice("prod", "a-1", "a")
	s.AddressType = discoveryv1.AddressTypeFQDN
	c.add("EndpointSlice", s)
	set := c.says("+EndpointSlice prod/a-1")
	if set[0].Value.Type != ident.Undecoded || c.Figures()[SliceKind].Undecoded != 1 {
		t.Errorf("reported type %s, stats %v", set[0].Value.Type, c.Figures())
	}
	c.add("EndpointSlice", slice("prod", "a-1", "a"))
	c.says("+EndpointSlice prod/a-1")
	if got := c.Figures()[SliceKind]; got != (Figures{Objects: 1}) {
		t.Errorf("stats %v", got)
	}
}

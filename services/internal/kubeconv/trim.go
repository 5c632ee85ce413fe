package kubeconv

import (
	"sync"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Trimmer makes of objects, as an API server serves them, what is worth keeping
// in memory: what they and others are converted by, Manager and the trace
// annotation. Texts that many objects have are kept once. The zero Trimmer is
// ready, and safe for concurrent use.
type Trimmer struct {
	mu    sync.Mutex
	texts map[string]string // each to itself
}

// maxTexts bounds what a Trimmer remembers; then it begins anew, and some texts
// are in memory twice until their objects go.
const maxTexts = 1 << 16

// Trim returns what is to be kept in place of a Service, EndpointSlice, Pod,
// Node or Namespace. It converts like the object, and trimmed again it is the
// same; it does not keep the object from being let go. Of a Secret nothing is
// kept: it is wiped, so convert it first. What is of another type is returned as
// it is.
//
// It has the form of client-go's TransformFunc; the error is always nil.
func (t *Trimmer) Trim(object any) (any, error) {
	switch o := object.(type) {
	case *corev1.Service:
		return t.service(o), nil
	case *discoveryv1.EndpointSlice:
		return t.slice(o), nil
	case *corev1.Pod:
		return t.pod(o), nil
	case *corev1.Node:
		n := &corev1.Node{ObjectMeta: t.meta(&o.ObjectMeta)}
		n.Annotations = nil
		n.Status.Addresses = o.Status.Addresses
		return n, nil
	case *corev1.Namespace:
		return &corev1.Namespace{ObjectMeta: t.meta(&o.ObjectMeta)}, nil
	case *corev1.Secret:
		Wipe(o)
		return &corev1.Secret{ObjectMeta: t.meta(&o.ObjectMeta), Type: o.Type}, nil
	}
	return object, nil
}

func (t *Trimmer) meta(m *metav1.ObjectMeta) metav1.ObjectMeta {
	out := metav1.ObjectMeta{
		Name: m.Name, Namespace: t.text(m.Namespace), ResourceVersion: m.ResourceVersion,
		CreationTimestamp: m.CreationTimestamp, DeletionTimestamp: m.DeletionTimestamp,
		Labels: t.shared(m.Labels), Annotations: meaningful(m.Annotations),
	}
	if i := newest(m.ManagedFields); i >= 0 {
		out.ManagedFields = []metav1.ManagedFieldsEntry{{Manager: t.text(m.ManagedFields[i].Manager)}}
	}
	return out
}

func (t *Trimmer) service(s *corev1.Service) *corev1.Service {
	out := &corev1.Service{ObjectMeta: t.meta(&s.ObjectMeta)}
	out.Spec = corev1.ServiceSpec{
		Type: corev1.ServiceType(t.text(string(s.Spec.Type))), ClusterIP: s.Spec.ClusterIP, ClusterIPs: s.Spec.ClusterIPs,
		ExternalIPs: s.Spec.ExternalIPs, ExternalName: s.Spec.ExternalName, Selector: t.shared(s.Spec.Selector),
		PublishNotReadyAddresses: s.Spec.PublishNotReadyAddresses,
		InternalTrafficPolicy:    s.Spec.InternalTrafficPolicy, TrafficDistribution: s.Spec.TrafficDistribution,
	}
	if len(out.Spec.ClusterIPs) > 0 {
		out.Spec.ClusterIP = "" // the first of them
	}
	if value(out.Spec.InternalTrafficPolicy) != corev1.ServiceInternalTrafficPolicyLocal {
		out.Spec.InternalTrafficPolicy = nil // Cluster, the default
	}
	for _, p := range s.Spec.Ports {
		p.Name = t.text(p.Name)
		p.Protocol = corev1.Protocol(t.text(string(p.Protocol)))
		p.TargetPort.StrVal = t.text(p.TargetPort.StrVal)
		out.Spec.Ports = append(out.Spec.Ports, p)
	}
	out.Status.LoadBalancer.Ingress = s.Status.LoadBalancer.Ingress
	return out
}

func (t *Trimmer) pod(p *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{ObjectMeta: t.meta(&p.ObjectMeta)}
	out.Spec.NodeName = t.text(p.Spec.NodeName)
	out.Spec.ServiceAccountName = t.text(p.Spec.ServiceAccountName)
	out.Spec.HostNetwork = p.Spec.HostNetwork
	if ports := namedPorts(p); len(ports) > 0 {
		for i, port := range ports {
			ports[i] = corev1.ContainerPort{Name: t.text(port.Name), ContainerPort: port.ContainerPort}
		}
		out.Spec.Containers = []corev1.Container{{Ports: ports}}
	}
	for _, ip := range Addresses(p) {
		out.Status.PodIPs = append(out.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	if isReady(p) {
		out.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	return out
}

func (t *Trimmer) slice(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	out := &discoveryv1.EndpointSlice{
		ObjectMeta:  t.meta(&s.ObjectMeta),
		AddressType: discoveryv1.AddressType(t.text(string(s.AddressType))),
		Endpoints:   make([]discoveryv1.Endpoint, len(s.Endpoints)),
		Ports:       make([]discoveryv1.EndpointPort, len(s.Ports)),
	}
	// Nobody reads its other labels, and its names are unlike all others.
	out.Labels = nil
	if of := s.Labels[SliceLabel]; of != "" {
		out.Labels = map[string]string{SliceLabel: t.text(of)}
	}
	out.Annotations = nil
	share := sharing{t: t, texts: map[string]*string{}, yes: new(bool), no: new(bool)}
	*share.yes = true
	for i, p := range s.Ports {
		out.Ports[i] = discoveryv1.EndpointPort{
			Name: share.text(p.Name), Port: p.Port, Protocol: p.Protocol, AppProtocol: share.text(p.AppProtocol),
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		o := &out.Endpoints[i]
		o.Addresses = e.Addresses
		o.NodeName, o.Zone = share.text(e.NodeName), share.text(e.Zone)
		o.Conditions = discoveryv1.EndpointConditions{
			Ready: share.bool(e.Conditions.Ready), Serving: share.bool(e.Conditions.Serving), Terminating: share.bool(e.Conditions.Terminating),
		}
		if e.TargetRef != nil {
			o.TargetRef = &corev1.ObjectReference{Kind: t.text(e.TargetRef.Kind), Name: e.TargetRef.Name}
		}
	}
	return out
}

// sharing gives the pointers within one slice equal targets.
type sharing struct {
	t       *Trimmer
	texts   map[string]*string
	yes, no *bool
}

func (s *sharing) bool(b *bool) *bool {
	switch {
	case b == nil:
		return nil
	case *b:
		return s.yes
	}
	return s.no
}

func (s *sharing) text(p *string) *string {
	if p == nil {
		return nil
	}
	if known, ok := s.texts[*p]; ok {
		return known
	}
	text := s.t.text(*p)
	s.texts[text] = &text
	return &text
}

// shared is a copy of labels with shared texts; nil if there are none.
func (t *Trimmer) shared(labels map[string]string) map[string]string {
	if len(labels) == 0 {
		return nil
	}
	out := make(map[string]string, len(labels))
	for k, v := range labels {
		out[t.text(k)] = t.text(v)
	}
	return out
}

// text is s, of equal ones always the same while it is remembered.
func (t *Trimmer) text(s string) string {
	if s == "" {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if known, ok := t.texts[s]; ok {
		return known
	}
	if t.texts == nil || len(t.texts) >= maxTexts {
		t.texts = map[string]string{}
	}
	t.texts[s] = s
	return s
}

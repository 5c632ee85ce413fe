package kubeconv

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
)

// ToJSON returns an object of a kind in the form Converted that FromJSON converts to m
// again, without apiVersion, kind and the metadata that name it. What the conversion
// leaves out is not in it. It is an error if no document has this message, such as one
// of a registry.
func ToJSON(kind string, m proto.Message) (map[string]any, error) {
	var object any
	switch m := m.(type) {
	case *registryv1.Service:
		object = fromService(m)
	case *registryv1.Endpoints:
		object = fromEndpoints(m)
	case *registryv1.Workload:
		object = fromWorkload(m)
	case *registryv1.Object:
		return fromContext(kind, m)
	default:
		return nil, fmt.Errorf("a %s has no document", kind)
	}
	b, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("a %s: %w", kind, err)
	}
	var fields map[string]any
	if err := json.Unmarshal(b, &fields); err != nil {
		return nil, fmt.Errorf("a %s: %w", kind, err)
	}
	if err := sameAgain(kind, b, m); err != nil {
		return nil, err
	}
	prune(fields)
	return fields, nil
}

// sameAgain returns an error unless the object converts to m.
func sameAgain(kind string, object []byte, m proto.Message) error {
	again, err := fromJSON(kind, object)
	if err != nil {
		return err
	}
	if !proto.Equal(again, m) {
		return fmt.Errorf("no Kubernetes %s is equal to it", kind)
	}
	return nil
}

// prune removes fields without a value, which Kubernetes' types write.
func prune(fields map[string]any) {
	for name, v := range fields {
		switch v := v.(type) {
		case map[string]any:
			if prune(v); len(v) == 0 {
				delete(fields, name)
			}
		case []any:
			for _, item := range v {
				if item, ok := item.(map[string]any); ok {
					prune(item)
				}
			}
		case nil:
			delete(fields, name)
		}
	}
}

func fromService(m *registryv1.Service) *corev1.Service {
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Labels: m.GetLabels()}}
	annotate := func(name, text string) {
		if text != "" {
			metav1.SetMetaDataAnnotation(&s.ObjectMeta, name, text)
		}
	}
	annotate(exportToAnnotation, strings.Join(m.GetExportTo(), ","))
	annotate(serviceAccountsAnnotation, strings.Join(m.GetServiceAccounts(), ","))
	annotate(canonicalAccountsAnnotation, strings.Join(m.GetIdentities(), ","))
	s.Spec.Selector, s.Spec.PublishNotReadyAddresses = m.GetSelector(), m.GetPublishNotReadyAddresses()
	s.Spec.ExternalIPs, s.Spec.ClusterIPs = m.GetExternalAddresses(), m.GetAddresses()
	if d := m.GetTrafficDistribution(); d != "" {
		s.Spec.TrafficDistribution = &d
	}
	if m.GetInternalTrafficLocal() {
		local := corev1.ServiceInternalTrafficPolicyLocal
		s.Spec.InternalTrafficPolicy = &local
	}
	if m.GetHeadless() {
		s.Spec.ClusterIP = corev1.ClusterIPNone
	}
	if m.GetExternalName() != "" {
		s.Spec.Type, s.Spec.ExternalName = corev1.ServiceTypeExternalName, m.GetExternalName()
	}
	if n := m.GetNodeSelector(); n != nil {
		labels, err := json.Marshal(n.GetLabels())
		if err != nil {
			panic(fmt.Sprintf("a map of texts cannot fail to encode: %v", err))
		}
		s.Spec.Type = corev1.ServiceTypeNodePort
		annotate(nodeSelectorAnnotation, string(labels))
	}
	for _, p := range m.GetPorts() {
		port := corev1.ServicePort{
			Name: p.GetName(), Port: int32(p.GetNumber()), Protocol: corev1.Protocol(p.GetTransport()), NodePort: int32(p.GetNodePort()),
			TargetPort: intstr.FromInt32(int32(p.GetTargetPort())),
		}
		if p.GetTargetPortName() != "" {
			port.TargetPort = intstr.FromString(p.GetTargetPortName())
		}
		if a := p.GetAppProtocol(); a != "" {
			port.AppProtocol = &a
		}
		s.Spec.Ports = append(s.Spec.Ports, port)
	}
	return s
}

func fromEndpoints(m *registryv1.Endpoints) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{AddressType: discoveryv1.AddressTypeIPv4}
	if m.GetService() != "" {
		s.Labels = map[string]string{SliceLabel: m.GetService()}
	}
	for _, p := range m.GetPorts() {
		number := int32(p.GetNumber())
		s.Ports = append(s.Ports, discoveryv1.EndpointPort{Name: text(p.GetName()), Port: &number, AppProtocol: text(p.GetAppProtocol())})
	}
	yes, no := true, false
	for _, e := range m.GetEndpoints() {
		out := discoveryv1.Endpoint{
			Addresses: e.GetAddresses(), NodeName: text(e.GetNode()), Hostname: text(e.GetHostname()), Zone: text(e.GetLocality().GetZone()),
		}
		if slices.ContainsFunc(e.GetAddresses(), func(a string) bool { return strings.Contains(a, ":") }) {
			s.AddressType = discoveryv1.AddressTypeIPv6
		}
		switch e.GetHealth() {
		case registryv1.Health_HEALTH_DRAINING:
			out.Conditions = discoveryv1.EndpointConditions{Ready: &no, Serving: &yes, Terminating: &yes}
		case registryv1.Health_HEALTH_UNHEALTHY:
			out.Conditions = discoveryv1.EndpointConditions{Ready: &no}
		}
		if e.GetWorkload() != "" {
			out.TargetRef = &corev1.ObjectReference{Kind: podKind, Name: e.GetWorkload()}
		}
		s.Endpoints = append(s.Endpoints, out)
	}
	return s
}

func text(s string) *string {
	if s == "" {
		return nil
	}
	return &s
}

func fromWorkload(m *registryv1.Workload) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Labels: m.GetLabels()}}
	p.Spec.NodeName, p.Spec.ServiceAccountName, p.Spec.HostNetwork = m.GetNode(), m.GetServiceAccount(), m.GetHostNetwork()
	for _, a := range m.GetAddresses() {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a})
	}
	if m.GetHealth() != registryv1.Health_HEALTH_UNHEALTHY {
		p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	}
	if m.GetHealth() == registryv1.Health_HEALTH_DRAINING {
		p.DeletionTimestamp = &metav1.Time{Time: time.Unix(0, 0).UTC()} // only that there is one counts
	}
	if len(m.GetPorts()) > 0 {
		c := corev1.Container{Name: "ports"}
		for _, name := range slices.Sorted(maps.Keys(m.GetPorts())) {
			c.Ports = append(c.Ports, corev1.ContainerPort{Name: name, ContainerPort: int32(m.GetPorts()[name])})
		}
		p.Spec.Containers = []corev1.Container{c}
	}
	return p
}

// fromContext returns the object of a kind that is converted to registry.v1.Object: a
// Node has its external addresses in a field of ours, others are whole.
func fromContext(kind string, m *registryv1.Object) (map[string]any, error) {
	fields := map[string]any{}
	d := json.NewDecoder(strings.NewReader(string(m.GetJson())))
	d.UseNumber()
	if err := d.Decode(&fields); err != nil {
		return nil, fmt.Errorf("a %s: %w", kind, err)
	}
	ips, _ := fields["externalIPs"].([]any)
	if kind != "Node" || len(ips) == 0 {
		return fields, nil
	}
	var addresses []any
	for _, ip := range ips {
		addresses = append(addresses, map[string]any{"type": string(corev1.NodeExternalIP), "address": ip})
	}
	delete(fields, "externalIPs")
	fields["status"] = map[string]any{"addresses": addresses}
	return fields, nil
}

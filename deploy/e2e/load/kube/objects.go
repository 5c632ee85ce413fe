package kube

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Objects are as large as in real clusters: they include fields that a watcher
// does not need.

func service(i int) string { return fmt.Sprintf("svc-%d", i) }

func pod(i int) string { return fmt.Sprintf("app-%d-7d9c5b8f4-x2x%d", i%997, i) }

func node(i int) string { return fmt.Sprintf("node-%d.example.internal", i%nodes) }

func address(pod int) string {
	return fmt.Sprintf("10.%d.%d.%d", 16+pod/62500, pod/250%250, pod%250+1)
}

// podOf returns the j-th of the pods behind a service: a pod in its namespace.
func (m *Mesh) podOf(service, j int) int {
	each := max(1, m.size.Pods/namespaces)
	return (service%namespaces + namespaces*((service/namespaces*m.size.Endpoints+j)%each)) % m.size.Pods
}

func (m *Mesh) writeNamespace(ctx context.Context, i int) error {
	_, err := m.client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{
		ObjectMeta: metav1.ObjectMeta{Name: Namespace(i), Labels: map[string]string{"team": fmt.Sprintf("team-%d", i%10)}},
	}, metav1.CreateOptions{})
	return err
}

func (m *Mesh) writeNode(ctx context.Context, i int) error {
	_, err := m.client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: node(i), Labels: map[string]string{
			corev1.LabelTopologyRegion: "eu", corev1.LabelTopologyZone: fmt.Sprintf("eu-%d", i%3), corev1.LabelHostname: node(i),
		}},
	}, metav1.CreateOptions{})
	return err
}

func (m *Mesh) writeService(ctx context.Context, i int) error {
	_, err := m.client.CoreV1().Services(Namespace(i)).Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: service(i), Labels: map[string]string{"app": service(i), "app.kubernetes.io/managed-by": "Helm"}},
		Spec: corev1.ServiceSpec{
			Selector: map[string]string{"app": service(i)},
			Ports: []corev1.ServicePort{
				{Name: "http", Port: 80, TargetPort: intstr.FromInt32(8080)},
				{Name: "grpc", Port: 9000, TargetPort: intstr.FromInt32(9000)},
			},
		},
	}, metav1.CreateOptions{})
	return err
}

// writePod writes a pod as its Deployment's controller and the scheduler would,
// and then its status as its kubelet would.
func (m *Mesh) writePod(ctx context.Context, i int) error {
	pods := m.client.CoreV1().Pods(Namespace(i))
	version := fmt.Sprintf("v%d", 1+i/namespaces%2)
	p, err := pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Name: pod(i), Labels: map[string]string{"app": fmt.Sprintf("app-%d", i%997), "version": version, "pod-template-hash": "7d9c5b8f4"},
			Annotations: map[string]string{
				"prometheus.io/scrape": "true", "prometheus.io/port": "15020", "checksum/config": "4f1c0b4de2f1e6b0b1d1b1c9d84f2f3a6f6e9a2b9a5c1d7e",
			},
		},
		Spec: corev1.PodSpec{NodeName: node(i), ServiceAccountName: "default", Containers: []corev1.Container{container("app"), container("sidecar")}},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	now := metav1.NewTime(time.Now())
	p.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, HostIP: "10.0.0.1", PodIP: address(i), PodIPs: []corev1.PodIP{{IP: address(i)}}, StartTime: &now,
		Conditions: []corev1.PodCondition{
			{Type: corev1.PodScheduled, Status: corev1.ConditionTrue, LastTransitionTime: now},
			{Type: corev1.PodInitialized, Status: corev1.ConditionTrue, LastTransitionTime: now},
			{Type: corev1.ContainersReady, Status: corev1.ConditionTrue, LastTransitionTime: now},
			{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: now},
		},
	}
	_, err = pods.UpdateStatus(ctx, p, metav1.UpdateOptions{})
	return err
}

func container(name string) corev1.Container {
	c := corev1.Container{
		Name: name, Image: "registry.example.internal/team/" + name + ":1.31.1", Ports: []corev1.ContainerPort{{Name: name, ContainerPort: 8080}},
		Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("100m"), corev1.ResourceMemory: resource.MustParse("128Mi"),
		}},
		ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt32(8080)}}},
	}
	for i := range 5 {
		c.Env = append(c.Env, corev1.EnvVar{Name: fmt.Sprintf("SETTING_%d", i), Value: "https://settings.example.internal/" + name})
	}
	return c
}

// writeSlice writes the endpoints of a service as their controller would.
func (m *Mesh) writeSlice(ctx context.Context, i int) error {
	ready, yes := true, discoveryv1.EndpointConditions{}
	yes.Ready, yes.Serving = &ready, &ready
	port := func(name string, number int32) discoveryv1.EndpointPort {
		return discoveryv1.EndpointPort{Name: &name, Port: &number}
	}
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: service(i) + "-x7k2p", Labels: map[string]string{
			discoveryv1.LabelServiceName: service(i), discoveryv1.LabelManagedBy: "endpointslice-controller.k8s.io",
		}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{port("http", 8080), port("grpc", 9000)},
	}
	for j := range m.size.Endpoints {
		p := m.podOf(i, j)
		zone, on := fmt.Sprintf("eu-%d", p%nodes%3), node(p)
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{address(p)}, Conditions: yes, NodeName: &on, Zone: &zone,
			TargetRef: &corev1.ObjectReference{Kind: "Pod", Namespace: Namespace(p), Name: pod(p)},
		})
	}
	s, err := m.client.DiscoveryV1().EndpointSlices(Namespace(i)).Create(ctx, s, metav1.CreateOptions{})
	if err == nil && i == m.size.Services-1 {
		m.slice = s
	}
	return err
}

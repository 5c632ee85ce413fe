package manifests

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/yaml"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/kubetest"
)

// TestApply applies all manifests to a real API server, which refuses unknown
// fields and pods that their namespace does not admit. It applies one way to
// install after the other, because a user may switch from one to the other.
func TestApply(t *testing.T) {
	render, dir := kustomize(t), tree(t)
	s := kubetest.Start(t)
	must(t, s.InstallIstioCRDs(t.Context()))
	must(t, s.Apply(t.Context(), `{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}`))
	for _, c := range []struct{ name, dir string }{
		{"the whole cluster", dir},
		{"some namespaces", filepath.Join(dir, "namespaces")},
		{"a watched namespace", filepath.Join(dir, "watched")},
		{"another cluster", filepath.Join(dir, "remote")},
		{"with all components", own(t, []string{"."}, components(t))},
		{"example", filepath.Join(dir, "example")},
	} {
		t.Run(c.name, func(t *testing.T) {
			text := render(c.dir)
			must(t, s.Apply(t.Context(), text))
			all := parse(t, text)
			checkNames(t, all)
			for _, u := range all {
				checkSettings(t, u)
				if p, ok := pod(t, u); ok {
					must(t, s.Apply(t.Context(), p))
					must(t, s.Delete(t.Context(), p))
				}
			}
		})
	}
	must(t, s.InstallMeshlogCRDs(t.Context())) // waits until they are served
	t.Run("our kinds", func(t *testing.T) { ownKinds(t, s) })
}

// ownKinds applies objects of meshlog's kinds, and invalid objects.
func ownKinds(t *testing.T, s *kubetest.Server) {
	policy, err := os.ReadFile(filepath.Join(tree(t), "mesh-policy.yaml"))
	must(t, err)
	must(t, s.Apply(t.Context(), string(policy), `
apiVersion: envoy.meshlog.dev/v1
kind: Resource
metadata: {name: backend}
spec:
  nodes: {cluster: edge, metadata: {tier: public, nested: {a: [1]}}, locality: {subZone: rack-7}}
  resource:
    "@type": type.googleapis.com/envoy.config.cluster.v3.Cluster
    name: backend
    edsClusterConfig: {edsConfig: {ads: {}, resourceApiVersion: V3}}
`))
	for _, c := range []struct{ name, object, want string }{
		{"another name", `{apiVersion: meshlog.dev/v1, kind: MeshPolicy, metadata: {name: mine}, spec: {}}`, "only the MeshPolicy named default counts"},
		{"unknown field", `{apiVersion: meshlog.dev/v1, kind: MeshPolicy, metadata: {name: default}, spec: {gard: {}}}`, "gard: field not declared in schema"},
		{"share above all", `{apiVersion: meshlog.dev/v1, kind: MeshPolicy, metadata: {name: default}, spec: {guard: {maxLossPercent: 101}}}`, "should be less than or equal to 100"},
		{"no Resource", `{apiVersion: envoy.meshlog.dev/v1, kind: Resource, metadata: {name: x}, spec: {}}`, "spec.resource: Required value"},
		{"no type of Envoy", `{apiVersion: envoy.meshlog.dev/v1, kind: Resource, metadata: {name: x}, spec: {resource: {"@type": x}}}`, "Unsupported value"},
		{"a privileged pod", `{apiVersion: v1, kind: Pod, metadata: {name: x, namespace: meshlog}, spec: {containers: [{name: x, image: x}]}}`, "violates PodSecurity"},
	} {
		if err := s.Apply(t.Context(), c.object); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", c.name, err, c.want)
		}
	}
}

// components returns all components.
func components(t *testing.T) []string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(tree(t), "components", "*"))
	must(t, err)
	if len(found) == 0 {
		t.Fatal("there are no components")
	}
	for i, path := range found {
		found[i] = filepath.Join("components", filepath.Base(path))
	}
	return found
}

// pod returns a pod that a controller would create for a workload, as YAML.
func pod(t *testing.T, u *unstructured.Unstructured) (string, bool) {
	t.Helper()
	w, ok := workloadOf(t, u)
	if !ok {
		return "", false
	}
	p := corev1.Pod{ObjectMeta: w.Template.ObjectMeta, Spec: w.Template.Spec}
	p.APIVersion, p.Kind, p.Name, p.Namespace = "v1", "Pod", u.GetName(), u.GetNamespace()
	for _, name := range w.claims {
		p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{
			PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
		}})
	}
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&p)
	must(t, err)
	delete(content, "status")
	b, err := yaml.Marshal(content)
	must(t, err)
	return string(b), true
}

// checkSettings demands that the variables of a meshlog program are settings of that
// program.
func checkSettings(t *testing.T, u *unstructured.Unstructured) {
	t.Helper()
	w, ok := workloadOf(t, u)
	if !ok {
		return
	}
	c := w.Template.Spec.Containers[0]
	name, ours := strings.CutPrefix(c.Command[0], "/bin/")
	if !ours || name == "backend" {
		return
	}
	bin, err := rig.Bin(name)
	must(t, err)
	args := []string{"--help"}
	if name == "meshlog" { // it has many; the next word says which
		args = []string{c.Command[1], "--help"}
	}
	help, err := exec.CommandContext(t.Context(), bin, args...).Output()
	must(t, err)
	for _, e := range c.Env {
		setting, ours := strings.CutPrefix(e.Name, "MESHLOG_")
		flag := "--" + strings.ToLower(strings.ReplaceAll(setting, "_", "-")) + " "
		if ours && !strings.Contains(string(help), flag) {
			t.Errorf("%s: %s is not a setting of the program", name, e.Name)
		}
	}
}

// checkNames demands that every selector matches a pod, and that the pods have
// the ports that are named.
func checkNames(t *testing.T, all []*unstructured.Unstructured) {
	t.Helper()
	var pods []*workload
	for _, u := range all {
		if w, ok := workloadOf(t, u); ok {
			pods = append(pods, w)
		}
	}
	for _, u := range all {
		selectors, ports := selects(t, u)
		named := map[string]bool{}
		for i, s := range selectors {
			found := false
			for _, w := range pods {
				if !s.Matches(labels.Set(w.Template.Labels)) {
					continue
				}
				found = true
				for _, p := range w.Template.Spec.Containers[0].Ports {
					named[p.Name] = named[p.Name] || i == 0
				}
			}
			if !found {
				t.Errorf("%s %s: no pod is %s", u.GetKind(), u.GetName(), s)
			}
		}
		for _, p := range ports {
			if p.Type == intstr.String && !named[p.StrVal] {
				t.Errorf("%s %s: no such pod has a port %s", u.GetKind(), u.GetName(), p.StrVal)
			}
		}
	}
}

// selects returns selectors of the pods that an object applies to, then of the pods
// that it admits, and the ports that it names of the pods that it applies to.
func selects(t *testing.T, u *unstructured.Unstructured) (pods []labels.Selector, ports []intstr.IntOrString) {
	t.Helper()
	add := func(s *metav1.LabelSelector) {
		selector, err := metav1.LabelSelectorAsSelector(s)
		must(t, err)
		pods = append(pods, selector)
	}
	switch u.GetKind() {
	case "Service":
		s := as[corev1.Service](t, u.Object)
		add(&metav1.LabelSelector{MatchLabels: s.Spec.Selector})
		for _, p := range s.Spec.Ports {
			ports = append(ports, p.TargetPort)
		}
	case "PodDisruptionBudget":
		add(as[policyv1.PodDisruptionBudget](t, u.Object).Spec.Selector)
	case "NetworkPolicy":
		p := as[networkingv1.NetworkPolicy](t, u.Object)
		add(&p.Spec.PodSelector)
		for _, rule := range p.Spec.Ingress {
			for _, from := range rule.From {
				if from.PodSelector != nil {
					add(from.PodSelector)
				}
			}
			for _, p := range rule.Ports {
				ports = append(ports, *p.Port)
			}
		}
	}
	return pods, ports
}

package manifests

import (
	"context"
	"encoding/base64"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

// kubelet runs the containers of workloads as processes of this machine. It replaces
// each volume's path by a directory, and each port by a free port of loopback,
// wherever the manifests use them.
type kubelet struct {
	*testing.T
	ctx context.Context
	dir string
	// memory is a directory that is on no disk, for Secrets.
	memory string
	// files are the contents of Secrets and ConfigMaps, by kind, namespace and
	// name.
	files map[string]map[string]string
	// ports are the ports of this machine, by pod and the pod's own port. services
	// maps a Service to the one pod that stands for it.
	ports    map[string]int
	services map[string]string
	// accounts are the accounts of pods that may use the API server, by name.
	accounts map[string]account
	run      map[string]*running // by name of the pod
}

// running is a pod that runs.
type running struct {
	*program.Process
	probes []probe
}

// probe returns nil if the pod is healthy.
type probe func(context.Context) error

func newKubelet(ctx context.Context, t *testing.T) *kubelet {
	k := &kubelet{
		T: t, ctx: ctx, dir: t.TempDir(), files: map[string]map[string]string{},
		ports: map[string]int{}, services: map[string]string{}, run: map[string]*running{}, accounts: map[string]account{},
	}
	var err error
	k.memory, err = os.MkdirTemp("/dev/shm", "meshlog-secrets-")
	must(t, err)
	t.Cleanup(func() { must(t, os.RemoveAll(k.memory)) })
	t.Cleanup(func() {
		for _, name := range slices.Sorted(maps.Keys(k.run)) {
			p := k.run[name]
			p.Kill()
			if t.Failed() {
				t.Logf("Last output of %s:\n%s", name, p.Tail(15))
			}
		}
	})
	return k
}

// know reads the Secrets and ConfigMaps.
func (k *kubelet) know(all []*unstructured.Unstructured) {
	k.Helper()
	for _, u := range all {
		var content map[string]string
		switch u.GetKind() {
		case "ConfigMap":
			content, _, _ = unstructured.NestedStringMap(u.Object, "data")
		case "Secret":
			content, _, _ = unstructured.NestedStringMap(u.Object, "data")
			for name, value := range content {
				b, err := base64.StdEncoding.DecodeString(value)
				must(k.T, err)
				content[name] = string(b)
			}
		default:
			continue
		}
		k.files[u.GetKind()+" "+u.GetNamespace()+"/"+u.GetName()] = content
	}
}

// start runs all pods of a workload.
func (k *kubelet) start(w *workload) {
	k.Helper()
	for _, name := range w.podNames() {
		k.startPod(name, w)
	}
}

// ready waits until all pods of a workload are ready.
func (k *kubelet) ready(w *workload) {
	k.Helper()
	for _, name := range w.podNames() {
		p := k.run[name]
		for _, probe := range p.probes {
			must(k.T, p.UntilAlive(k.ctx, name+" to be ready", probe))
		}
	}
}

func (k *kubelet) startPod(name string, w *workload) {
	k.Helper()
	dir, c := filepath.Join(k.dir, name), w.Template.Spec.Containers[0]
	paths := k.mount(dir, name, w, c)
	here := func(s string) string { return k.here(name, paths(s)) }

	env := map[string]string{}
	for _, e := range c.Env {
		switch {
		case e.ValueFrom == nil:
			env[e.Name] = here(expand(e.Value, env))
		case e.ValueFrom.FieldRef.FieldPath == "metadata.name":
			env[e.Name] = name
		case e.ValueFrom.FieldRef.FieldPath == "metadata.namespace":
			env[e.Name] = w.Namespace
		default:
			k.Fatalf("%s: env %s: the test does not know %v", name, e.Name, e.ValueFrom)
		}
	}
	argv := []string{k.program(c.Command[0])}
	for _, a := range append(slices.Clone(c.Command[1:]), c.Args...) {
		argv = append(argv, here(expand(a, env)))
	}
	var all []string
	for _, key := range slices.Sorted(maps.Keys(env)) {
		all = append(all, key+"="+env[key])
	}
	if auto := w.Template.Spec.AutomountServiceAccountToken; auto == nil || *auto {
		argv, all = k.accounts[w.Template.Spec.ServiceAccountName].given(argv, all)
	}
	p, err := program.Start(name, dir, argv, all...)
	must(k.T, err)
	r := &running{Process: p}
	for _, probe := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
		if probe != nil {
			r.probes = append(r.probes, k.probe(name, c, probe))
		}
	}
	k.run[name] = r
}

// mount creates the volumes of a pod. The returned function replaces the
// container's paths by their directories.
func (k *kubelet) mount(dir, name string, w *workload, c corev1.Container) (paths func(string) string) {
	k.Helper()
	must(k.T, os.MkdirAll(dir, 0o700))
	volumes := map[string]corev1.Volume{}
	for _, v := range w.Template.Spec.Volumes {
		volumes[v.Name] = v
	}
	at := func(m corev1.VolumeMount) string {
		if volumes[m.Name].Secret != nil {
			return filepath.Join(k.memory, name, m.Name)
		}
		return filepath.Join(dir, m.Name)
	}
	var pairs []string
	for _, m := range c.VolumeMounts {
		if _, ok := volumes[m.Name]; !ok && !slices.Contains(w.claims, m.Name) {
			k.Fatalf("%s mounts %s, which is no volume", name, m.Name)
		}
		pairs = append(pairs, m.MountPath, at(m))
	}
	paths = strings.NewReplacer(pairs...).Replace
	for _, m := range c.VolumeMounts {
		at := at(m)
		must(k.T, os.MkdirAll(at, 0o700))
		for file, content := range k.content(w.Namespace, volumes[m.Name]) {
			must(k.T, os.WriteFile(filepath.Join(at, file), []byte(k.here(name, paths(content))), 0o600))
		}
	}
	return paths
}

// content returns the texts of a volume's files, by path.
func (k *kubelet) content(namespace string, v corev1.Volume) map[string]string {
	k.Helper()
	all := map[string]string{}
	add := func(kind, name string, optional bool) {
		files, ok := k.files[kind+" "+namespace+"/"+name]
		if !ok && !optional {
			k.Fatalf("there is no %s %s/%s", kind, namespace, name)
		}
		maps.Copy(all, files)
	}
	switch {
	case v.Secret != nil:
		add("Secret", v.Secret.SecretName, v.Secret.Optional != nil && *v.Secret.Optional)
	case v.ConfigMap != nil:
		add("ConfigMap", v.ConfigMap.Name, false)
	case v.Projected != nil:
		for _, s := range v.Projected.Sources {
			if s.Secret != nil {
				add("Secret", s.Secret.Name, false)
			}
			if s.ConfigMap != nil {
				add("ConfigMap", s.ConfigMap.Name, false)
			}
		}
	}
	return all
}

// Addresses in the manifests: HOST:PORT, and Envoy's form.
var (
	address = regexp.MustCompile(`([a-z0-9.-]*):([0-9]{4,5})\b`)
	ofEnvoy = regexp.MustCompile(`address: ([a-z0-9.-]+), port_value: ([0-9]+)`)
)

// here replaces the addresses of pods by addresses on this machine.
func (k *kubelet) here(pod, s string) string {
	s = address.ReplaceAllStringFunc(s, func(a string) string {
		m := address.FindStringSubmatch(a)
		return fmt.Sprintf("127.0.0.1:%d", k.port(k.host(pod, m[1]), m[2]))
	})
	return ofEnvoy.ReplaceAllStringFunc(s, func(a string) string {
		m := ofEnvoy.FindStringSubmatch(a)
		return fmt.Sprintf("address: 127.0.0.1, port_value: %d", k.port(k.host(pod, m[1]), m[2]))
	})
}

// host returns the pod that a name refers to, from the point of view of a pod.
func (k *kubelet) host(pod, name string) string {
	if name == "" || name == "0.0.0.0" || name == "127.0.0.1" {
		return pod
	}
	if of, ok := k.services[name]; ok {
		return of
	}
	of, _, _ := strings.Cut(name, ".") // of a headless Service
	return of
}

// port returns the port of this machine for a pod's own.
func (k *kubelet) port(pod, own string) int {
	k.Helper()
	key := pod + ":" + own
	if k.ports[key] == 0 {
		var err error
		k.ports[key], err = testport.TCP()
		must(k.T, err)
	}
	return k.ports[key]
}

// expand replaces $(NAME) by variables.
func expand(s string, env map[string]string) string {
	for name, value := range env {
		s = strings.ReplaceAll(s, "$("+name+")", value)
	}
	return s
}

// program returns the path of a container's command on this machine.
func (k *kubelet) program(command string) string {
	k.Helper()
	var path string
	var err error
	if own, ok := strings.CutPrefix(command, "/bin/"); ok {
		path, err = rig.Bin(own)
	} else {
		path, err = program.Tool(k.ctx, command)
	}
	must(k.T, err)
	return path
}

// probe returns a function that performs a probe. The only program that a probe may
// run in the container is the one that checks its health.
func (k *kubelet) probe(pod string, c corev1.Container, p *corev1.Probe) probe {
	k.Helper()
	at := func(port intstr.IntOrString) string {
		for _, own := range c.Ports {
			if own.Name == port.StrVal {
				return fmt.Sprintf("127.0.0.1:%d", k.port(pod, fmt.Sprint(own.ContainerPort)))
			}
		}
		k.Fatalf("%s: a probe names a port that does not exist: %s", pod, port.String())
		return ""
	}
	switch {
	case p.HTTPGet != nil:
		return get("http://" + at(p.HTTPGet.Port) + p.HTTPGet.Path)
	case p.TCPSocket != nil:
		a := at(p.TCPSocket.Port)
		return func(ctx context.Context) error {
			var d net.Dialer
			conn, err := d.DialContext(ctx, "tcp", a)
			if err != nil {
				return err
			}
			return conn.Close()
		}
	case p.Exec != nil && p.Exec.Command[0] == "backend":
		return get(k.here(pod, p.Exec.Command[len(p.Exec.Command)-1]))
	}
	k.Fatalf("%s: the test does not know this probe: %v", pod, p)
	return nil
}

func get(url string) probe {
	return func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return err
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", url, resp.Status)
		}
		return nil
	}
}

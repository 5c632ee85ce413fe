package manifests

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"testing"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/dynamic"

	"meshlog.dev/deploy/e2e/cluster"
	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/program"
)

const (
	invalidService = `{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: bad, namespace: default}, spec: {hosts: [a.example], http: [{match: [{uri: {regex: "("}}], redirect: {uri: /}}]}}`
	validService   = `{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: good, namespace: default}, spec: {hosts: [a.example], http: [{redirect: {uri: /}}]}}`
)

// webhook is the component of the webhook: its two replicas behind the address of its
// Service, with the rights of its account, and an API server.
type webhook struct {
	*cluster.Cluster
	k       *kubelet
	w       *workload
	objects dynamic.Interface
	text    string // the manifests
}

// startWebhook installs the component in an API server that has no webhook yet, and waits
// until that refuses what it cannot check. choose is how the Service chooses a replica for
// a connection.
func startWebhook(ctx context.Context, t *testing.T, choose func(all []string) (inOrder []string)) *webhook {
	t.Helper()
	render := kustomize(t)
	c, err := cluster.Start(ctx, t.TempDir(), "default")
	must(t, err)
	t.Cleanup(c.End)
	text := render(own(t, []string{"."}, []string{"components/admission"}))
	must(t, c.Apply(ctx, text))
	objects, err := dynamic.NewForConfig(c.Config())
	must(t, err)

	k := newKubelet(ctx, t)
	ca := certtest.NewCA("admission")
	pair := ca.ForgedPeer("admission", func(c *x509.Certificate) { c.DNSNames = []string{"admission.meshlog.svc"} })
	k.know(parse(t, secret("admission-tls", map[string][]byte{"tls.crt": pair.Cert, "tls.key": pair.Key, "ca.crt": ca.PEM()})))
	k.accounts["admission"] = serviceAccount(ctx, t, c, "admission")
	w := workloads(t, parse(t, text))["admission"]
	k.start(w)
	k.ready(w)
	k.forward(objects, "admission", func() (net.Conn, error) { return k.dial(choose(w.podNames()), "9443") })
	a := &webhook{c, k, w, objects, text}
	a.enforced(ctx, t)
	return a
}

// enforced waits until the API server refuses what it cannot check.
func (a *webhook) enforced(ctx context.Context, t *testing.T) {
	t.Helper()
	hooks := a.objects.Resource(admissionregistrationv1.SchemeGroupVersion.WithResource("validatingwebhookconfigurations"))
	must(t, program.Until(ctx, "the policy Fail", func(ctx context.Context) error {
		u, err := hooks.Get(ctx, "meshlog-admission", metav1.GetOptions{})
		if err != nil {
			return err
		}
		now := as[admissionregistrationv1.ValidatingWebhookConfiguration](t, u.Object)
		if owners := now.OwnerReferences; len(owners) != 1 || owners[0].Kind != "ClusterRole" || owners[0].Name != "meshlog-admission" {
			return fmt.Errorf("its owners are %v", owners)
		}
		if p := now.Webhooks[0].FailurePolicy; *p != admissionregistrationv1.Fail {
			return fmt.Errorf("it is %s", *p)
		}
		return nil
	}))
}

// ADM-3, ADM-5: the webhook's component, with the rights of its account and by its Service.
// The API server that has no webhook yet installs it, and then refuses an invalid object,
// also while one replica is away. Without replicas it refuses what they would check, and
// installs the component again.
func TestAdmission(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	a := startWebhook(ctx, t, func(all []string) []string { return all })
	refused := func(what string) {
		t.Helper()
		if err := a.Apply(ctx, invalidService); err == nil || !strings.Contains(err.Error(), "spec.http[0].match[0].uri") {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("an invalid object")
	must(t, a.Apply(ctx, validService))
	must(t, a.k.run["admission-0"].Stop()) // TestAdmissionReplicas kills one
	refused("an invalid object, with one replica")
	a.k.run["admission-1"].Kill()
	if err := a.Apply(ctx, strings.Replace(validService, "name: good", "name: other", 1)); err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
		t.Errorf("a valid object, without replicas: %v", err)
	}
	must(t, a.Apply(ctx, a.text))
}

// forward gives a Service its address on this machine, as kube-proxy does. dial connects to
// one of its pods; where it fails, the connection is reset.
func (k *kubelet) forward(objects dynamic.Interface, name string, dial func() (net.Conn, error)) {
	k.Helper()
	u, err := objects.Resource(schema.GroupVersionResource{Version: "v1", Resource: "services"}).Namespace("meshlog").Get(k.ctx, name, metav1.GetOptions{})
	must(k.T, err)
	service := as[corev1.Service](k.T, u.Object)
	address := func(ctx context.Context, verb string) {
		k.Helper()
		if out, err := exec.CommandContext(ctx, "ip", "addr", verb, service.Spec.ClusterIP+"/32", "dev", "lo").CombinedOutput(); err != nil {
			k.Fatalf("ip addr %s: %v: %s (install iproute2)", verb, err, out)
		}
	}
	address(k.ctx, "add")
	k.Cleanup(func() { address(context.WithoutCancel(k.ctx), "del") }) // other tests look at the addresses
	l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", service.Spec.ClusterIP, service.Spec.Ports[0].Port))
	must(k.T, err)
	k.Cleanup(func() { must(k.T, l.Close()) })
	go func() {
		for {
			from, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer from.Close()
				to, err := dial()
				if err != nil {
					_ = from.(*net.TCPConn).SetLinger(0)
					return
				}
				defer to.Close()
				go func() { _, _ = io.Copy(to, from); to.Close() }()
				_, _ = io.Copy(from, to)
			}()
		}
	}()
}

// dial connects to the first pod that answers. Its ports are known.
func (k *kubelet) dial(pods []string, port string) (conn net.Conn, err error) {
	err = errors.New("no pods")
	for _, pod := range pods {
		if conn, err = net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", k.ports[pod+":"+port])); err == nil {
			return conn, nil
		}
	}
	return nil, err
}

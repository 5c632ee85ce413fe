package admission

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/spf13/cobra"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	admissionclient "k8s.io/client-go/kubernetes/typed/admissionregistration/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/kubetest"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
	"meshlog.dev/services/internal/kubeaccess"
	"meshlog.dev/services/internal/process"
	operate "meshlog.dev/services/operate/admission"
	"meshlog.dev/services/operate/operatetest"
)

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// cluster is an API server with the definitions of the kinds, and the files of a webhook.
type cluster struct {
	*testing.T
	*kubetest.Server
	settings Settings
	admin    string // kubeconfig of the administrator
	objects  dynamic.Interface
	warnings *collected
	hooks    admissionclient.ValidatingWebhookConfigurationInterface
}

// collected are the warnings that a client got.
type collected struct {
	mu  sync.Mutex
	all []string
}

func (c *collected) HandleWarningHeader(_ int, _ string, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, text)
}

func (c *collected) take() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	text := strings.Join(c.all, "\n")
	c.all = nil
	return text
}

// rights are those of the component's account.
func rights(t *testing.T) (rules []rbacv1.PolicyRule) {
	t.Helper()
	b, err := os.ReadFile("../../../deploy/kubernetes/components/admission/account.yaml")
	must(t, err)
	for doc := range strings.SplitSeq(string(b), "\n---\n") {
		var role rbacv1.ClusterRole
		must(t, yaml.Unmarshal([]byte(doc), &role))
		if role.Kind == "ClusterRole" || role.Kind == "Role" {
			rules = append(rules, role.Rules...)
		}
	}
	if len(rules) == 0 {
		t.Fatal("the account has no rights")
	}
	return rules
}

func start(t *testing.T) *cluster {
	c := &cluster{T: t, Server: kubetest.Start(t), warnings: &collected{}}
	must(t, c.InstallIstioCRDs(t.Context()), c.InstallMeshlogCRDs(t.Context()), c.InstallGatewayCRDs(t.Context()))
	must(t, c.Apply(t.Context(), "{apiVersion: v1, kind: Namespace, metadata: {name: meshlog}}"))
	r := c.Config()
	r.WarningHandler, r.QPS = c.warnings, -1
	var err error
	c.objects, err = dynamic.NewForConfig(r)
	must(t, err)
	hooks, err := admissionclient.NewForConfig(r)
	must(t, err)
	c.hooks = hooks.ValidatingWebhookConfigurations()
	user, err := c.User(t.Context(), "admission", rights(t)...)
	must(t, err)
	dir := t.TempDir()
	file := func(name string, r *rest.Config) string {
		b, err := kubetest.Kubeconfig(r)
		must(t, err)
		return certtest.WriteFile(t, dir, name, b)
	}
	c.admin = file("admin", c.Config())
	port, err := testport.TCP()
	must(t, err)
	c.settings = DefaultSettings()
	c.settings.Listen, c.settings.URL = fmt.Sprintf("127.0.0.1:%d", port), fmt.Sprintf("https://127.0.0.1:%d", port)
	c.settings.Cluster = kubeaccess.Settings{Kubeconfig: file("user", user)}
	c.settings.Cert, c.settings.Key, c.settings.Roots = filepath.Join(dir, "tls.pem"), filepath.Join(dir, "tls-key.pem"), filepath.Join(dir, "roots.pem")
	c.certify(certtest.NewCA("one"))
	must(t, c.settings.Check(), c.settings.Verify())
	return c
}

// certify writes a certificate of a CA, and its root.
func (c *cluster) certify(ca *certtest.CA) {
	dir := filepath.Dir(c.settings.Cert)
	certtest.WriteFile(c.T, dir, "roots.pem", ca.PEM())
	ca.Server("admission", time.Now().Add(time.Hour)).Write(c.T, dir, "tls")
}

// webhook runs a replica until the test or stop ends it.
func (c *cluster) webhook(id string) (lines operatetest.Events, stop func()) {
	c.Helper()
	log, lines := operatetest.NewEvents()
	admin, err := process.NewAdmin("127.0.0.1:0")
	must(c.T, err)
	ctx, cancel := context.WithCancel(c.Context())
	ended := make(chan error, 1)
	s := c.settings
	s.ID = id
	go func() { ended <- s.Run(ctx, &process.Process{Build: "test", Log: log, Admin: admin}) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			c.Errorf("the webhook ended: %v", err)
		}
	})
	c.Cleanup(stop)
	return lines, stop
}

func (c *cluster) until(what string, check func(context.Context) error) {
	c.Helper()
	ctx, cancel := context.WithTimeout(c.Context(), 2*time.Minute)
	defer cancel()
	must(c.T, program.Until(ctx, what, check))
}

// configured waits until the webhook's configuration has a property.
func (c *cluster) configured(what string, has func(*admissionregistrationv1.ValidatingWebhookConfiguration) bool) *admissionregistrationv1.ValidatingWebhookConfiguration {
	c.Helper()
	var now *admissionregistrationv1.ValidatingWebhookConfiguration
	c.until(what, func(ctx context.Context) (err error) {
		if now, err = c.hooks.Get(ctx, "meshlog-admission", metav1.GetOptions{}); err == nil && !has(now) {
			err = fmt.Errorf("it is %v", now.Webhooks)
		}
		return err
	})
	return now
}

func fails(w *admissionregistrationv1.ValidatingWebhookConfiguration) bool {
	return policyOf(w) == "Fail"
}

var virtualServices = schema.GroupVersionResource{Group: "networking.istio.io", Version: "v1", Resource: "virtualservices"}

// put creates an object, as a dry run if its name begins with "dry".
func (c *cluster) put(text string) error {
	c.Helper()
	u := &unstructured.Unstructured{}
	must(c.T, yaml.Unmarshal([]byte(text), &u.Object))
	gv, err := schema.ParseGroupVersion(u.GetAPIVersion())
	must(c.T, err)
	plural := strings.ToLower(u.GetKind()) + "s"
	if strings.HasSuffix(plural, "ys") && u.GetKind() != "Gateway" {
		plural = strings.TrimSuffix(plural, "ys") + "ies"
	}
	var o metav1.CreateOptions
	if strings.HasPrefix(u.GetName(), "dry") {
		o.DryRun = []string{metav1.DryRunAll}
	}
	namespace := u.GetNamespace()
	if namespace == "" {
		namespace = "default"
	}
	_, err = c.objects.Resource(gv.WithResource(plural)).Namespace(namespace).Create(c.Context(), u, o)
	return err
}

// service returns a VirtualService with this regular expression, which its definition does
// not check.
func service(name, expression string) string {
	return "{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: " + name + "}, spec: {hosts: [shop.internal], " +
		"http: [{match: [{uri: {regex: \"" + expression + "\"}}], route: [{destination: {host: shop.internal}}]}]}}"
}

func (c *cluster) refused(what string, err error, want ...string) {
	c.Helper()
	if err == nil {
		c.Fatalf("%s: it is taken", what)
	}
	for _, w := range want {
		if !strings.Contains(err.Error(), w) {
			c.Errorf("%s: refused with %q, want %q in it", what, err, w)
		}
	}
}

// ADM-1 to ADM-6, with a real API server, and the rights of the component's account.
func TestWebhook(t *testing.T) {
	c := start(t)
	// Without the webhook nothing is checked, and nothing waits for it.
	must(t, c.put(service("before", "(")))
	lines, stop := c.webhook("one")
	lines.Wait(t, "created the webhook's configuration", "policy")
	now := c.configured("an API server that refuses what it cannot check", fails)
	lines.Wait(t, "the API server refused an invalid object by this webhook; from now on it refuses what it cannot check", "name")
	if n := len(now.OwnerReferences); n != 0 {
		t.Errorf("%d owners without a ClusterRole of that name", n)
	}
	t.Run("objects", func(t *testing.T) { c.checksObjects(t) })
	t.Run("rotation", func(t *testing.T) { c.rotates(t) })
	t.Run("rights", func(t *testing.T) { c.hasNoOtherRights(t) })
	stop()
	t.Run("away", func(t *testing.T) { c.failsClosed(t) })
	t.Run("pause", func(t *testing.T) { c.pauses(t) })
}

func (c *cluster) checksObjects(t *testing.T) {
	c = c.with(t)
	c.refused("an invalid value", c.put(service("a", "(")), `admission webhook "objects.admission.meshlog.dev" denied the request`, "spec.http[0].match[0].uri.regex: ", "; to do: ")
	c.refused("its dry run", c.put(service("dry-a", "(")), "spec.http[0].match[0].uri.regex: ", "; to do: ")
	must(t, c.put(service("b", "/a.*")), c.put(service("dry-b", "/a.*")))
	c.warnings.take()
	must(t, c.put("{apiVersion: telemetry.istio.io/v1, kind: Telemetry, metadata: {name: a}, spec: {metrics: [{reportingInterval: 5s}]}}"))
	if got := c.warnings.take(); !strings.Contains(got, "has no effect yet") {
		t.Errorf("warnings: %q", got)
	}
	const key = `-----BEGIN PRIVATE KEY-----\nc2VjcmV0c2VjcmV0\n-----END PRIVATE KEY-----\n`
	err := c.put(`{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: a}, spec: {servers: [{hosts: ["*"], port: {number: 443, name: https, protocol: HTTPS}, tls: {mode: SIMPLE, privateKey: "` + key + `"}}]}}`)
	c.refused("a private key", err, "spec.servers[0].tls.privateKey: holds a private key", "; to do: ")
	if strings.Contains(fmt.Sprint(err), "c2VjcmV0") {
		t.Errorf("the answer repeats the key: %v", err)
	}
	// What was stored before the webhook can be labelled, and deleted, but not changed to
	// another invalid value.
	change := func(patch string) error {
		_, err := c.objects.Resource(virtualServices).Namespace("default").Patch(t.Context(), "before", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	must(t, change(`{"metadata":{"labels":{"a":"b"},"finalizers":["meshlog.dev/test"]}}`))
	if got := c.warnings.take(); !strings.Contains(got, "unchanged, and so not refused: spec.http[0].match[0].uri") {
		t.Errorf("warnings: %q", got)
	}
	c.refused("another invalid value", change(`{"spec":{"http":[{"match":[{"uri":{"regex":"["}}],"redirect":{"uri":"/"}}]}}`), "spec.http[0].match[0].uri")
	must(t, c.objects.Resource(virtualServices).Namespace("default").Delete(t.Context(), "before", metav1.DeleteOptions{}), change(`{"metadata":{"finalizers":null}}`))
	if err := change(`{}`); !apierrors.IsNotFound(err) {
		t.Errorf("an invalid object that is deleted: %v", err)
	}
	// Other namespaces than those that are excluded, and other kinds.
	must(t, c.put(strings.Replace(service("own", "("), "{name: own}", "{name: own, namespace: meshlog}", 1)))
	must(t, c.put("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}"))
}

// with returns c for a part of its test.
func (c *cluster) with(t *testing.T) *cluster {
	other := *c
	other.T = t
	return &other
}

// rotates replaces root and certificate while requests go on (ADM-4).
func (c *cluster) rotates(t *testing.T) {
	c = c.with(t)
	next := certtest.NewCA("two")
	ctx, cancel := context.WithCancel(t.Context())
	var requests sync.WaitGroup
	var answered, failed atomic.Int64
	for n := range 4 {
		requests.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				err := c.put(service(fmt.Sprintf("dry-%d-%d", n, i), "("))
				if err != nil && strings.Contains(err.Error(), "spec.http[0].match[0].uri") {
					answered.Add(1)
				} else if ctx.Err() == nil {
					failed.Add(1)
					t.Errorf("a request while the root changes: %v", err)
					return
				}
			}
		})
	}
	c.certify(next)
	c.configured("only the new root", func(w *admissionregistrationv1.ValidatingWebhookConfiguration) bool {
		return string(w.Webhooks[0].ClientConfig.CABundle) == string(next.PEM()) && fails(w)
	})
	before := answered.Load()
	c.until("requests with the new root", func(context.Context) error {
		if failed.Load() > 0 || answered.Load() > before+100 {
			return nil
		}
		return errors.New("too few requests")
	})
	cancel()
	requests.Wait()
	t.Logf("%d requests were answered while root and certificate changed, %d failed", answered.Load(), failed.Load())
}

// hasNoOtherRights tries what the account may not do.
func (c *cluster) hasNoOtherRights(t *testing.T) {
	r, err := c.settings.Cluster.REST()
	must(t, err)
	d, err := dynamic.NewForConfig(r)
	must(t, err)
	maps := d.Resource(schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}).Namespace("meshlog")
	hooks := d.Resource(schema.GroupVersionResource{Group: "admissionregistration.k8s.io", Version: "v1", Resource: "validatingwebhookconfigurations"})
	u := func(kind, name string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "v1", "kind": kind, "metadata": map[string]any{"name": name}}}
	}
	other := u("ValidatingWebhookConfiguration", "other")
	other.SetAPIVersion("admissionregistration.k8s.io/v1")
	for what, try := range map[string]func() error{
		"create a ConfigMap": func() error {
			_, err := maps.Create(t.Context(), u("ConfigMap", "istio"), metav1.CreateOptions{})
			return err
		},
		"apply another ConfigMap": func() error {
			_, err := maps.Apply(t.Context(), "istio", u("ConfigMap", "istio"), metav1.ApplyOptions{FieldManager: "x"})
			return err
		},
		"read ConfigMaps": func() error { _, err := maps.List(t.Context(), metav1.ListOptions{}); return err },
		"apply another webhook": func() error {
			_, err := hooks.Apply(t.Context(), "other", other, metav1.ApplyOptions{FieldManager: "x"})
			return err
		},
		"create a webhook":   func() error { _, err := hooks.Create(t.Context(), other, metav1.CreateOptions{}); return err },
		"delete its webhook": func() error { return hooks.Delete(t.Context(), "meshlog-admission", metav1.DeleteOptions{}) },
		"read objects of the mesh": func() error {
			_, err := d.Resource(virtualServices).List(t.Context(), metav1.ListOptions{})
			return err
		},
	} {
		if err := try(); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// failsClosed looks at an API server whose webhook is away (ADM-3, ADM-5).
func (c *cluster) failsClosed(t *testing.T) {
	c = c.with(t)
	c.refused("a valid object that cannot be checked", c.put(service("c", "/a.*")), "failed calling webhook")
	// Neither the webhook's own namespace nor other kinds wait for it.
	must(t, c.put(strings.Replace(service("mine", "/a.*"), "{name: mine}", "{name: mine, namespace: meshlog}", 1)))
	must(t, c.put("{apiVersion: v1, kind: Service, metadata: {name: c}, spec: {ports: [{port: 80}]}}"))
	must(t, c.objects.Resource(virtualServices).Namespace("default").Delete(t.Context(), "b", metav1.DeleteOptions{}))
}

// pauses has an operator pause the webhook while it is away (ADM-3).
func (c *cluster) pauses(t *testing.T) {
	c = c.with(t)
	meshlog := func(args ...string) error {
		root := &cobra.Command{SilenceErrors: true, SilenceUsage: true}
		root.AddCommand(operate.Command())
		root.SetArgs(append([]string{"admission"}, append(args, "--kubeconfig", c.admin)...))
		root.SetOut(&strings.Builder{})
		return root.ExecuteContext(t.Context())
	}
	if err := meshlog("pause"); err == nil || !strings.Contains(err.Error(), "--reason is missing") {
		t.Errorf("without a reason: %v", err)
	}
	// Without a mesh there is no audit, which the command says; the pause counts.
	if err := meshlog("pause", "--reason", "a test"); err == nil || !strings.Contains(err.Error(), "the webhook is paused, but the audit of the mesh has no record of that") {
		t.Errorf("pause: %v", err)
	}
	c.until("an object that cannot be checked to be taken", func(context.Context) error {
		return errors.Join(c.put(service("dry-d", "(")))
	})
	lines, stop := c.webhook("two")
	if got := lines.Wait(t, "the pause of the webhook changed", "paused"); !strings.Contains(got, "a test") || !strings.Contains(got, "paused by ") {
		t.Errorf("the leader says %q", got)
	}
	lines.Wait(t, "this replica leads", "msg")
	c.until("an invalid object to be refused", func(context.Context) error {
		if err := c.put(service("dry-e", "(")); err == nil {
			return errors.New("it is taken")
		}
		return nil
	})
	if w := c.configured("a webhook", func(*admissionregistrationv1.ValidatingWebhookConfiguration) bool { return true }); fails(w) {
		t.Error("the leader ended the pause")
	}
	_ = meshlog("resume") // as above
	c.configured("the end of the pause", fails)
	stop()
}

// ADM-2: the rules have each kind with a definition, by the names of the API server.
func TestRulesNameResources(t *testing.T) {
	c := start(t)
	_, stop := c.webhook("one")
	defer stop()
	now := c.configured("rules", func(w *admissionregistrationv1.ValidatingWebhookConfiguration) bool { return len(w.Webhooks) == 2 })
	served := map[string]bool{}
	lists, err := c.objects.Resource(schema.GroupVersionResource{Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"}).List(t.Context(), metav1.ListOptions{})
	must(t, err)
	for _, crd := range lists.Items {
		served[crd.GetName()] = true
	}
	n := 0
	for _, rule := range now.Webhooks[0].Rules {
		if !slices.Equal(rule.Operations, []admissionregistrationv1.OperationType{"CREATE", "UPDATE"}) {
			t.Errorf("operations %v", rule.Operations)
		}
		for _, r := range rule.Resources {
			n++
			if !served[r+"."+rule.APIGroups[0]] {
				t.Errorf("the rules name %s.%s, which has no definition", r, rule.APIGroups[0])
			}
		}
	}
	if n < 20 {
		t.Errorf("the rules have %d kinds", n)
	}
}

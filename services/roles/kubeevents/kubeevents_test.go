package kubeevents

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/kubetest"
	"meshlog.dev/deploy/testkit/program"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/internal/process/processtest"
	"meshlog.dev/services/operate/operatetest"
	"meshlog.dev/services/roles/up"
)

func TestMetrics(t *testing.T) {
	m := newMetrics()
	processtest.Metrics(t, processtest.MetricsTable{Name: "kube-events", Package: "roles/kubeevents", Alerts: "alerts-kubernetes.yaml", Prefix: "meshlog_kube_events"}, *operatetest.Update, m.events, m.problems)
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// The Event about a problem: on which object, and of which name.
func TestEvent(t *testing.T) {
	at := time.Date(2026, 1, 1, 12, 30, 0, 0, time.UTC)
	problem := func(object string) *snapshotv1.Diagnostic {
		return &snapshotv1.Diagnostic{
			Severity: snapshotv1.Severity_SEVERITY_ERROR, Code: "not-yet", Object: object,
			Field: "spec.x", Reason: "is wrong", Advice: "correct it", Effect: "it is served", Origin: "default",
		}
	}
	e, ok := eventOf(problem("VirtualService shop/web (kubernetes/eu)"), "eu", at)
	want := corev1.ObjectReference{APIVersion: "networking.istio.io/v1", Kind: "VirtualService", Namespace: "shop", Name: "web", FieldPath: "spec.x"}
	if !ok || e.InvolvedObject != want || e.Namespace != "shop" || e.Reason != "NotYet" || e.Type != "Warning" ||
		e.Message != "spec.x: is wrong; to do: correct it; meanwhile: it is served" {
		t.Errorf("the Event is %+v", e)
	}
	again, _ := eventOf(problem("VirtualService shop/web (kubernetes/eu)"), "eu", at.Add(29*time.Minute))
	later, _ := eventOf(problem("VirtualService shop/web (kubernetes/eu)"), "eu", at.Add(31*time.Minute))
	if again.Name != e.Name || later.Name == e.Name {
		t.Errorf("names %s, %s in the same hour, %s in the next", e.Name, again.Name, later.Name)
	}
	if e, ok := eventOf(problem("MeshPolicy default (kubernetes/eu)"), "eu", at); !ok || e.Namespace != "default" || e.InvolvedObject.Name != "default" || e.InvolvedObject.Namespace != "" {
		t.Errorf("of an object without a namespace: %+v", e)
	}
	if e, ok := eventOf(problem("KubernetesGateway shop/web (kubernetes/eu)"), "eu", at); !ok || e.InvolvedObject.Kind != "Gateway" || e.InvolvedObject.APIVersion != "gateway.networking.k8s.io/v1" {
		t.Errorf("of a Gateway of Kubernetes: %+v", e)
	}
	long := problem("VirtualService shop/web (kubernetes/eu)")
	long.Reason = strings.Repeat("ä", 3000)
	if e, _ := eventOf(long, "eu", at); len(e.Message) > 1024 {
		t.Errorf("a message of %d bytes", len(e.Message))
	}
	for _, other := range []string{
		"VirtualService shop/web (kubernetes/us)", "VirtualService shop/web (file/eu)", "VirtualService shop (kubernetes/eu)", "Listener ingress", "",
		"MeshConfig default (kubernetes/eu)", "TrustBundle cluster.local (kubernetes/eu)", "Unknown shop/web (kubernetes/eu)",
	} {
		if e, ok := eventOf(problem(other), "eu", at); ok {
			t.Errorf("%q: %+v", other, e)
		}
	}
	info := problem("VirtualService shop/web (kubernetes/eu)")
	info.Severity = snapshotv1.Severity_SEVERITY_INFO
	if _, ok := eventOf(info, "eu", at); ok {
		t.Error("an information gets an Event")
	}
}

// rights are those of the component's account.
func rights(t *testing.T) (rules []rbacv1.PolicyRule) {
	t.Helper()
	b, err := os.ReadFile("../../../deploy/kubernetes/components/events/account.yaml")
	must(t, err)
	for doc := range strings.SplitSeq(string(b), "\n---\n") {
		var role rbacv1.ClusterRole
		must(t, yaml.Unmarshal([]byte(doc), &role))
		rules = append(rules, role.Rules...)
	}
	return rules
}

// run runs a process until the test or stop ends it.
func run(t *testing.T, run func(context.Context, *process.Process) error) (lines operatetest.Events, stop func()) {
	t.Helper()
	log, lines := operatetest.NewEvents()
	admin, err := process.NewAdmin("127.0.0.1:0")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, &process.Process{Build: "test", Log: log, Admin: admin}) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("a process ended: %v", err)
		}
	})
	t.Cleanup(stop)
	return lines, stop
}

// A problem that only the fold finds, with the other objects, appears on the object of a
// real API server, once, also after a restart; the account may create Events and nothing
// else, and the bus lets it ask for reports and nothing else.
func TestEvents(t *testing.T) {
	s := kubetest.Start(t)
	must(t, s.InstallIstioCRDs(t.Context()))
	must(t, s.Apply(t.Context(), `
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: default}
spec:
  hosts: [web.example]
  http: [{route: [{destination: {host: web.example, subset: v3}}]}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: web, namespace: default}
spec: {hosts: [web.example], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}
`))
	dir := t.TempDir()
	kubeconfig := func(name string, r *rest.Config) string {
		b, err := kubetest.Kubeconfig(r)
		must(t, err)
		return certtest.WriteFile(t, dir, name, b)
	}
	user, err := s.User(t.Context(), "kube-events", rights(t)...)
	must(t, err)

	u := up.DefaultSettings()
	u.Data, u.Frontend.Listen, u.Kube.Kubeconfig = filepath.Join(dir, "data"), "127.0.0.1:0", kubeconfig("admin", s.Config())
	must(t, u.Check())
	lines, _ := run(t, func(ctx context.Context, p *process.Process) error { return up.Run(ctx, p, u) })
	lines.Wait(t, "serving", "version")

	settings := DefaultSettings()
	settings.Server.Kubeconfig, settings.Every = kubeconfig("user", user), 5*time.Second
	must(t, settings.Check(), settings.Verify())
	connect := func(ctx context.Context) (*bus.Conn, error) {
		return bus.Connect(bus.ConnectOptions{URL: filepath.Join(u.Data, bus.FileName), Role: bus.Observer(), Name: "kube-events", Log: slog.New(slog.DiscardHandler)})
	}
	events := func() (_ func(), err error) {
		_, stop := run(t, func(ctx context.Context, p *process.Process) error {
			return settings.Run(ctx, Options{Domain: "mesh", Connect: connect, Process: p})
		})
		return stop, nil
	}
	core, err := coreclient.NewForConfig(s.Config())
	must(t, err)
	list := func() []corev1.Event {
		l, err := core.Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=VirtualService,involvedObject.name=web"})
		must(t, err)
		return l.Items
	}
	until := func(what string, check func(context.Context) error) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		must(t, program.Until(ctx, what, check))
	}
	stop, _ := events()
	until("an Event", func(context.Context) error {
		if len(list()) == 0 {
			return errors.New("there is none")
		}
		return nil
	})
	e := list()[0]
	if !strings.Contains(e.Message, `no DestinationRule of "web.example" has a subset "v3"`) || !strings.Contains(e.Message, "to do: ") ||
		e.InvolvedObject.FieldPath != "spec.http[0].route[0].destination.subset" || e.Type != "Warning" {
		t.Errorf("the Event is %+v", e)
	}
	stop()
	before := time.Now().Truncate(period)
	stop, _ = events()
	must(t, s.Apply(t.Context(), strings.ReplaceAll(`
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: other, namespace: default}
spec:
  hosts: [other.example]
  http: [{route: [{destination: {host: web.example, subset: v4}}]}]
`, "\t", "")))
	until("an Event of the restarted process", func(context.Context) error {
		l, err := core.Events("default").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.name=other"})
		if err == nil && len(l.Items) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
	stop()
	if n := len(list()); n != 1 && time.Now().Truncate(period).Equal(before) {
		t.Errorf("%d Events about one problem after a restart", n)
	}
	forbidden(t, user)
	nothingOnTheBus(t, connect)
}

// forbidden tries what the account may not do.
func forbidden(t *testing.T, user *rest.Config) {
	core, err := coreclient.NewForConfig(user)
	must(t, err)
	for what, try := range map[string]func() error{
		"list Events":  func() error { _, err := core.Events("default").List(t.Context(), metav1.ListOptions{}); return err },
		"get an Event": func() error { _, err := core.Events("default").Get(t.Context(), "x", metav1.GetOptions{}); return err },
		"delete Events": func() error {
			return core.Events("default").DeleteCollection(t.Context(), metav1.DeleteOptions{}, metav1.ListOptions{})
		},
		"list Secrets": func() error { _, err := core.Secrets("default").List(t.Context(), metav1.ListOptions{}); return err },
		"create Secrets": func() error {
			_, err := core.Secrets("default").Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{})
			return err
		},
		"list pods": func() error { _, err := core.Pods("").List(t.Context(), metav1.ListOptions{}); return err },
	} {
		if err := try(); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// nothingOnTheBus tries to read and to write the streams.
func nothingOnTheBus(t *testing.T, connect func(context.Context) (*bus.Conn, error)) {
	nc, err := connect(t.Context())
	must(t, err)
	defer nc.Close()
	for _, subject := range []string{
		"$JS.API.STREAM.INFO.MESHLOG_EVENTS", "$JS.API.DIRECT.GET.MESHLOG_VERSIONS", "$JS.API.STREAM.NAMES", "meshlog.ver.mesh", "meshlog.key.mesh.kubernetes.default",
	} {
		if answer, err := nc.Request(subject, nil, 2*time.Second); err == nil {
			t.Errorf("%s is answered with %s", subject, answer.Data)
		}
	}
}

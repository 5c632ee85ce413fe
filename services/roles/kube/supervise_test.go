package kube

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/client-go/discovery"
	"meshlog.dev/deploy/testkit/kubetest"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/kube"
	"meshlog.dev/services/watcher/kube/apiserver"
	"meshlog.dev/services/watcher/kube/clusters"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// secret returns a Secret with the kubeconfig of a cluster.
func secret(name, cluster, kubeconfig string) string {
	return fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: %s, namespace: default, labels: {istio/multiCluster: "true"}}
data: {%s: %s}
`, name, cluster, kubeconfig)
}

// TestSupervise adds, rotates and removes clusters by their Secrets.
func TestSupervise(t *testing.T) {
	s := kubetest.Start(t)
	ctx := t.Context()
	access := func(user string) string {
		t.Helper()
		c, err := s.User(ctx, user, rbacv1.PolicyRule{Verbs: []string{"get"}, NonResourceURLs: []string{"/version"}})
		must(t, err)
		b, err := kubetest.Kubeconfig(c)
		must(t, err)
		return base64.StdEncoding.EncodeToString(b)
	}
	cfg := kube.Config{REST: s.Config(), Cluster: "home", Logger: slog.New(slog.DiscardHandler)}
	home, err := kube.New(cfg)
	must(t, err)
	others := clusters.Config{
		API: s.Config(), Home: cfg.Cluster, Namespace: "default",
		Logger: cfg.Logger, Limits: apiserver.DefaultLimits(),
	}
	// Each watch reports its start and end, and uses its credentials.
	said := make(chan string)
	watch := func(ctx context.Context, r clusters.Cluster) error {
		d, err := discovery.NewDiscoveryClientForConfig(r.REST)
		if err == nil {
			_, err = d.ServerVersion()
		}
		said <- fmt.Sprintf("%s begins: %v", r.Name, err)
		<-ctx.Done()
		said <- r.Name + " ends"
		return ctx.Err()
	}
	hears := func(want ...string) {
		t.Helper()
		var got []string
		for range want {
			got = append(got, <-said)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Fatalf("%v, want %v", got, want)
		}
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- newSupervisor(others, home, watch).run(running) }()

	must(t, s.Apply(ctx, secret("a", "west", access("one"))))
	hears("west begins: <nil>")
	must(t, s.Apply(ctx, secret("b", "south", access("two"))))
	hears("south begins: <nil>")
	// A rotation affects one cluster.
	must(t, s.Apply(ctx, secret("a", "west", access("three"))))
	hears("west ends", "west begins: <nil>")
	// A kubeconfig that would run a program is ignored.
	bad := base64.StdEncoding.EncodeToString([]byte(strings.Replace(`
apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {exec: {apiVersion: client.authentication.k8s.io/v1, command: touch, interactiveMode: Never}}}]
`, "\n", "", 1)))
	must(t, s.Apply(ctx, secret("c", "evil", bad), secret("d", "north", access("four"))))
	hears("north begins: <nil>")
	must(t, s.Delete(ctx, secret("b", "south", "")))
	hears("south ends")
	stop()
	hears("north ends", "west ends")
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

// warnings records the warnings of a log.
type warnings chan string

func (w warnings) Enabled(context.Context, slog.Level) bool { return true }
func (w warnings) WithAttrs([]slog.Attr) slog.Handler       { return w }
func (w warnings) WithGroup(string) slog.Handler            { return w }

func (w warnings) Handle(_ context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn {
		w <- r.Message
	}
	return nil
}

// problems is a sink that records only problems.
type problems map[string][]problem.Diagnostic

func (problems) List(context.Context, watcher.Listing) error       { return nil }
func (problems) Change(context.Context, []watcher.Object) error    { return nil }
func (p problems) Problems(origin string, ds []problem.Diagnostic) { p[origin] = ds }

// TestSuperviseWithoutHome checks that, if the API server with the Secrets is down at the
// start, the supervisor reports that other clusters wait, and watches them when the server
// is back.
func TestSuperviseWithoutHome(t *testing.T) {
	s := kubetest.Start(t)
	ctx := t.Context()
	kubeconfig, err := kubetest.Kubeconfig(s.Config())
	must(t, err)
	must(t, s.Apply(ctx, secret("a", "west", base64.StdEncoding.EncodeToString(kubeconfig))))
	s.API.Kill()

	warned := make(warnings, 10)
	cfg := kube.Config{REST: s.Config(), Cluster: "home", Logger: slog.New(warned)}
	home, err := kube.New(cfg)
	must(t, err)
	limits := apiserver.DefaultLimits()
	limits.MaxRetry = remoteRetry
	began, end := make(chan string), make(chan error, 1)
	remote := newSupervisor(clusters.Config{
		API: s.Config(), Home: cfg.Cluster, Namespace: "default", Logger: cfg.Logger, Limits: limits,
	}, home, func(ctx context.Context, r clusters.Cluster) error {
		began <- r.Name
		<-ctx.Done()
		return ctx.Err()
	})
	running, stop := context.WithCancel(ctx)
	go func() { end <- remote.run(running) }()

	const want = "not watched until the Secrets that name them are read"
	if got := <-warned; !strings.Contains(got, want) {
		t.Errorf("the log warns that %s, want %q", got, want)
	}
	if err := remote.known(); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("whether clusters are known: %v, want %q and why", err, want)
	}
	said := problems{}
	if err := home.Run(ctx, said); err == nil {
		t.Error("the cluster can be read although its API server is down")
	}
	if ds := said["other clusters"]; len(ds) != 1 || !strings.Contains(ds[0].Effect, "other clusters are not watched until") || ds[0].Advice == "" {
		t.Errorf("the problem about other clusters is %v", ds)
	}
	must(t, s.API.Start(ctx))
	if name := <-began; name != "west" {
		t.Errorf("cluster %s is watched, want west", name)
	}
	if err := remote.known(); err != nil {
		t.Error(err)
	}
	stop()
	if err := <-end; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

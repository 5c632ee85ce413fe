package kubeup

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

	"meshlog.dev/services/watcher/kube"
	"meshlog.dev/services/watcher/kube/apiserver"
	"meshlog.dev/services/watcher/kube/clusters"
	"meshlog.dev/services/watcher/kube/kubetest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
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
	secret := func(name, cluster, kubeconfig string) string {
		return fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: %s, namespace: default, labels: {istio/multiCluster: "true"}}
data: {%s: %s}
`, name, cluster, kubeconfig)
	}

	cfg := kube.Config{REST: s.Config(), Cluster: "home", Logger: slog.New(slog.DiscardHandler)}
	home, err := kube.New(cfg)
	must(t, err)
	others := clusters.Config{
		API: apiserver.Config{REST: s.Config(), QPS: 100, Burst: 100}, Home: cfg.Cluster, Namespace: "default",
		Logger: cfg.Logger, Limits: apiserver.DefaultLimits(),
	}
	// What a watch does: it says that it begins and ends, and uses its access.
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
	go func() { ended <- supervise(running, others, home, watch) }()

	must(t, s.Apply(ctx, secret("a", "west", access("one"))))
	hears("west begins: <nil>")
	must(t, s.Apply(ctx, secret("b", "south", access("two"))))
	hears("south begins: <nil>")
	// A rotation is that of one cluster.
	must(t, s.Apply(ctx, secret("a", "west", access("three"))))
	hears("west ends", "west begins: <nil>")
	// One that would run a program is as if it were not there.
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

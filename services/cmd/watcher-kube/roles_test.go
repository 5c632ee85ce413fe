package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"meshlog.dev/deploy/testkit/kubetest"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/kube"
	"sigs.k8s.io/yaml"
)

// rolesFile has the ClusterRoles of the watcher. They leave out the kinds in
// namedOnly, because the watcher may read only those of their objects that a setting
// names.
const rolesFile = "../../../deploy/kubernetes/rbac/roles.yaml"

var namedOnly = []string{"Secret", "ConfigMap"}

// pageFile lists the watched kinds between two lines with pageMark.
const (
	pageFile = "../../../deploy/kubernetes/README.md"
	pageMark = "<!-- watched: made of the table of kinds -->\n"
)

// inConfigMap holds the kinds whose objects are in a ConfigMap.
var inConfigMap = []string{"MeshConfig", "MeshNetworks"}

// TestRoles checks that rbac/roles.yaml has exactly the rights for the table of kinds,
// with the resource names of a real API server, and that the watcher can read all
// kinds with these rights alone.
func TestRoles(t *testing.T) {
	s := kubetest.Start(t)
	for _, install := range []func(context.Context, ...string) error{s.InstallIstioCRDs, s.InstallGatewayCRDs, s.InstallMeshlogCRDs} {
		must(t, install(t.Context()))
	}
	d, err := discovery.NewDiscoveryClientForConfig(s.Config())
	must(t, err)
	_, lists, err := d.ServerGroupsAndResourcesWithContext(t.Context())
	must(t, err)
	golden(t, rolesFile, renderRoles(rolesOf(t, lists)))
	page := string(read(t, pageFile))
	before, rest, began := strings.Cut(page, pageMark)
	_, after, ended := strings.Cut(rest, pageMark)
	if !began || !ended {
		t.Fatalf("%s has no two lines %q", pageFile, strings.TrimSpace(pageMark))
	}
	golden(t, pageFile, before+pageMark+renderTable(t, lists)+pageMark+after)

	rules := delivered(t)
	c, err := s.User(t.Context(), "watcher-kube", rules...)
	must(t, err)
	t.Run("reads all", func(t *testing.T) { readsAll(t, s, c) })
	t.Run("may nothing else", func(t *testing.T) { mayNothingElse(t, c) })
}

// role is one of the ClusterRoles: the resources, by group, that it may get, list and
// watch, and other resources that it may only get.
type role struct {
	name, comment string
	resources     map[string][]string
	get           map[string][]string
}

// rolesOf returns the roles that the table of kinds needs.
func rolesOf(t *testing.T, lists []*metav1.APIResourceList) []role {
	t.Helper()
	in := role{
		name: "meshlog-watcher-kube", comment: "Namespaced kinds: bound for all namespaces, or in each watched one.",
		resources: map[string][]string{},
		get:       map[string][]string{"": {"endpoints"}}, // the Endpoints of Services without slices
	}
	of := role{
		name: "meshlog-watcher-kube-cluster", comment: "Cluster-scoped kinds, and definitions.",
		resources: map[string][]string{"apiextensions.k8s.io": {"customresourcedefinitions"}},
	}
	for _, k := range kind.All() {
		if slices.Contains(namedOnly, k.Name) || slices.Contains(inConfigMap, k.Name) || k.Form == kind.Produced {
			continue
		}
		r, ok := resourceOf(lists, k)
		if !ok {
			t.Fatalf("the API server has no %s: which definition is missing?", k.Name)
		}
		to := of
		if k.Namespaced {
			to = in
		}
		if r.Namespaced != k.Namespaced {
			t.Errorf("%s: namespaced is %v in the table, %v in the cluster", k.Name, k.Namespaced, r.Namespaced)
		}
		to.resources[k.Group] = append(to.resources[k.Group], r.Name)
	}
	return []role{in, of}
}

// resourceOf returns the resource of a kind, in any of its versions.
func resourceOf(lists []*metav1.APIResourceList, k *kind.Kind) (metav1.APIResource, bool) {
	for _, l := range lists {
		group, version, found := strings.Cut(l.GroupVersion, "/")
		if !found {
			group, version = "", group
		}
		for _, r := range l.APIResources {
			if group == k.Group && slices.Contains(k.Versions, version) && r.Kind == k.DocumentKind() && !strings.Contains(r.Name, "/") {
				return r, true
			}
		}
	}
	return metav1.APIResource{}, false
}

func renderRoles(roles []role) string {
	var b strings.Builder
	b.WriteString("# All that watcher-kube may read. Generated from the table of kinds by\n" +
		"# `go test ./services/cmd/watcher-kube -update`.\n\n")
	for i, r := range roles {
		if i > 0 {
			b.WriteString("---\n")
		}
		fmt.Fprintf(&b, "# %s\napiVersion: rbac.authorization.k8s.io/v1\nkind: ClusterRole\nmetadata: {name: %s}\nrules:\n", r.comment, r.name)
		renderRules(&b, r.resources, "get, list, watch")
		renderRules(&b, r.get, "get")
	}
	return b.String()
}

func renderRules(b *strings.Builder, resources map[string][]string, verbs string) {
	for _, group := range slices.Sorted(maps.Keys(resources)) {
		fmt.Fprintf(b, "  - apiGroups: [%q]\n    resources: [%s]\n    verbs: [%s]\n",
			group, strings.Join(slices.Sorted(slices.Values(resources[group])), ", "), verbs)
	}
}

// renderTable returns the table of pageFile.
func renderTable(t *testing.T, lists []*metav1.APIResourceList) string {
	t.Helper()
	names := map[kind.Meaning]map[string][]string{} // by group
	for _, k := range kind.All() {
		if r, ok := resourceOf(lists, k); ok && !slices.Contains(namedOnly, k.Name) {
			if names[k.Meaning] == nil {
				names[k.Meaning] = map[string][]string{}
			}
			names[k.Meaning][k.Group] = append(names[k.Meaning][k.Group], r.Name)
		}
	}
	b := "| Watched | Purpose |\n|---|---|\n"
	for _, m := range []struct {
		meaning kind.Meaning
		why     string
	}{
		{kind.Served, "configure proxies"},
		{kind.Context, "context for others: the pod and the locality of an endpoint, and who may name a Secret of another namespace"},
		{kind.NotYet, "published, but without an effect so far"},
	} {
		var groups []string
		for _, group := range slices.Sorted(maps.Keys(names[m.meaning])) {
			in := strings.Join(slices.Sorted(slices.Values(names[m.meaning][group])), ", ")
			if group != "" {
				in = "`" + group + "`: " + in
			}
			groups = append(groups, in)
		}
		b += "| " + strings.Join(groups, "; ") + " | " + m.why + " |\n"
	}
	return b
}

// golden compares a file with want, or writes it with -update.
func golden(t *testing.T, path, want string) {
	t.Helper()
	if *update {
		must(t, os.WriteFile(path, []byte(want), 0o644))
	}
	if diff := cmp.Diff(want, string(read(t, path))); diff != "" {
		t.Errorf("%s differs from the table of kinds; run with -update (-want +got):\n%s", path, diff)
	}
}

// delivered returns the rules in rolesFile.
func delivered(t *testing.T) (rules []rbacv1.PolicyRule) {
	t.Helper()
	for document := range strings.SplitSeq(string(read(t, rolesFile)), "\n---\n") {
		var r rbacv1.ClusterRole
		must(t, yaml.UnmarshalStrict([]byte(document), &r))
		rules = append(rules, r.Rules...)
	}
	return rules
}

// sink records the first listing, and the diagnostics up to the one about a Service
// without slices, which comes last.
type sink struct {
	stop     context.CancelFunc
	kinds    []string
	problems []string
}

func (s *sink) List(_ context.Context, l watcher.Listing) error {
	s.kinds = l.Kinds
	return nil
}

func (s *sink) Change(context.Context, []watcher.Object) error { return nil }

func (s *sink) Problems(_ string, ds []problem.Diagnostic) {
	for _, d := range ds {
		if d.Code == "unmirrored" {
			s.stop()
			return
		}
		s.problems = append(s.problems, d.Code+": "+d.Reason)
	}
}

// readsAll checks that a watcher with these rights lists all kinds, and reads the
// Endpoints of a Service without slices.
func readsAll(t *testing.T, s *kubetest.Server, c *rest.Config) {
	must(t, s.Apply(t.Context(), `
apiVersion: v1
kind: Service
metadata: {name: old}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Endpoints
metadata: {name: old}
subsets: [{addresses: [{ip: 10.9.9.9}], ports: [{port: 80}]}]
`))
	w, err := kube.New(kube.Config{REST: c, Cluster: "east", Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	got := &sink{stop: cancel}
	if err := w.Run(ctx, got); !errors.Is(err, context.Canceled) {
		t.Errorf("the watcher: %v", err)
	}
	var want []string
	for _, k := range kind.All() {
		want = append(want, k.Name)
	}
	if diff := cmp.Diff(want, slices.Sorted(slices.Values(got.kinds))); diff != "" {
		t.Errorf("kinds that can be read (-want +got):\n%s", diff)
	}
	for _, p := range got.problems {
		t.Error(p)
	}
}

// mayNothingElse asks the API server, as the watcher, whether the watcher may do what
// an attacker with its rights would try.
func mayNothingElse(t *testing.T, c *rest.Config) {
	reviews, err := dynamic.NewForConfig(c)
	must(t, err)
	may := func(verb, group, resource string) bool {
		resource, sub, _ := strings.Cut(resource, "/")
		review, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&authorizationv1.SelfSubjectAccessReview{
			TypeMeta: metav1.TypeMeta{APIVersion: "authorization.k8s.io/v1", Kind: "SelfSubjectAccessReview"},
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{
				Verb: verb, Group: group, Version: "*", Resource: resource, Subresource: sub, Namespace: "shop",
			}},
		})
		must(t, err)
		answer, err := reviews.Resource(authorizationv1.SchemeGroupVersion.WithResource("selfsubjectaccessreviews")).
			Create(t.Context(), &unstructured.Unstructured{Object: review}, metav1.CreateOptions{})
		must(t, err)
		allowed, _, _ := unstructured.NestedBool(answer.Object, "status", "allowed")
		return allowed
	}
	if !may("list", "", "services") {
		t.Fatal("the watcher may not list services: this test asks in the wrong way")
	}
	for _, group := range []string{"", "networking.istio.io", "meshlog.dev", "apiextensions.k8s.io"} {
		resource := map[string]string{"": "services", "networking.istio.io": "virtualservices", "meshlog.dev": "meshpolicies", "apiextensions.k8s.io": "customresourcedefinitions"}[group]
		for _, verb := range []string{"create", "update", "patch", "delete", "deletecollection"} {
			if may(verb, group, resource) {
				t.Errorf("the watcher may %s %s", verb, resource)
			}
		}
	}
	for _, what := range [][3]string{
		{"get", "", "secrets"}, {"list", "", "secrets"}, {"watch", "", "secrets"}, {"list", "", "configmaps"}, {"list", "", "endpoints"},
		{"create", "", "pods/exec"}, {"create", "", "pods/portforward"}, {"get", "", "pods/log"}, {"get", "", "nodes/proxy"},
		{"create", "", "serviceaccounts/token"}, {"impersonate", "", "users"}, {"list", "", "events"}, {"list", "", "serviceaccounts"},
		{"list", "apps", "deployments"}, {"list", "coordination.k8s.io", "leases"}, {"bind", "rbac.authorization.k8s.io", "clusterroles"},
		{"list", "*", "*"}, {"*", "", "services"},
	} {
		if may(what[0], what[1], what[2]) {
			t.Errorf("the watcher may %s %s.%s", what[0], what[2], what[1])
		}
	}
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	must(t, err)
	return b
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

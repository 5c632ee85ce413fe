package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/testport"
)

// The story has 200 changes: four actors make ten each in five rounds.
const (
	storyRounds  = 5
	storyObjects = 10
	storyHost    = "cart.example"
)

// operatorKey is a key of an operator, as `bus-auth` prints it.
type operatorKey struct{ Name, Key, File string }

// storyRig is a mesh with four actors: three operators, and the watched directory.
type storyRig struct {
	*fixture
	dir       string
	operators map[string]operatorKey
	port      int // of the cart's second version
}

// cartRoute is alice's: all requests of the cart go to its version v2.
const cartRoute = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: cart, namespace: demo}
spec:
  hosts: [cart.internal]
  location: MESH_INTERNAL
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 127.0.0.1, ports: {http: %[1]d}, labels: {version: v2}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: cart, namespace: demo}
spec:
  hosts: [cart.example]
  gateways: [edge]
  http: [{route: [{destination: {host: cart.internal, subset: v2}}]}]
`

// cartVersions are the versions of the cart that routes can name.
const cartVersions = `---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: cart, namespace: demo}
spec:
  host: cart.internal
  subsets: [%s]
`

// teamServices are services of a team, which differ in each round.
func teamServices(team string, n, round int) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, `---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s-%[2]d, namespace: demo}
spec: {hosts: [%[1]s-%[2]d.internal], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.9.%[3]d.%[2]d}]}
`, team, i, round)
	}
	return b.String()
}

// run runs a command of bin/meshlog, and logs it with its output, for the README.
func (s *storyRig) run(wantErr bool, args ...string) string {
	s.Helper()
	out, err := rig.Meshlog(s.ctx, args...)
	s.Logf("$ meshlog %s\n%s", strings.Join(args, " "), out)
	if (err != nil) != wantErr {
		s.Fatalf("meshlog %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return out
}

func (s *storyRig) has(what, out string, want ...string) {
	s.Helper()
	for _, w := range want {
		if !strings.Contains(out, w) {
			s.Errorf("%s lacks %q:\n%s", what, w, out)
		}
	}
}

// apply applies a file as an operator.
func (s *storyRig) apply(by, name, text string) {
	s.Helper()
	file := filepath.Join(s.dir, name)
	s.must(os.WriteFile(file, []byte(text), 0o600))
	_, err := s.mesh.Show(s.ctx, "apply", "-f", file, "--operator-key", s.operators[by].File)
	s.must(err)
}

// cart sends a request of the cart to the Envoy, and returns its status.
func (s *storyRig) cart() int {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.shop.URL(), nil)
	s.must(err)
	r.Host = storyHost
	a, err := http.DefaultClient.Do(r)
	s.must(err)
	defer a.Body.Close()
	_, err = io.Copy(io.Discard, a.Body)
	s.must(err)
	return a.StatusCode
}

func startStory(t *testing.T) *storyRig {
	t.Helper()
	s := &storyRig{fixture: start(t, rig.Up), dir: t.TempDir(), operators: map[string]operatorKey{}}
	var auth struct{ Operators []operatorKey }
	out, err := rig.Meshlog(s.ctx, "bus-auth", t.TempDir(), "--watcher", "file/default", "--operator", "alice", "--operator", "bob", "--operator", "carol", "-o", "json")
	s.must(err)
	s.must(json.Unmarshal([]byte(out), &auth))
	policy := "apiVersion: meshlog.dev/v1\nkind: MeshPolicy\nmetadata: {name: default}\nspec:\n  operators:\n"
	for _, o := range auth.Operators {
		s.operators[o.Name] = o
		policy += fmt.Sprintf("  - {name: %s, keys: [%q]}\n", o.Name, o.Key)
	}
	_, err = s.shop.Save("policy.yaml", policy)
	s.must(err)
	backend := s.backend("cart-v2")
	s.port = backend.Port
	s.apply("alice", "cart.yaml", fmt.Sprintf(cartRoute, s.port)+fmt.Sprintf(cartVersions, "{name: v2, labels: {version: v2}}"))
	s.wait()
	if status := s.cart(); status != http.StatusOK {
		t.Fatalf("before the story the cart answers %d", status)
	}
	return s
}

// wait waits until every proxy has the newest version.
func (s *storyRig) wait() string {
	s.Helper()
	out, err := s.mesh.Show(s.ctx, "wait", "latest", "--for", "100%", "--timeout", "30s")
	s.must(err)
	s.settle()
	return out
}

// changes makes the 200 changes. In the third round carol gives the label of a version another
// value, which no endpoint has.
func (s *storyRig) changes() {
	s.Helper()
	for round := range storyRounds {
		s.apply("alice", "alice.yaml", teamServices("stock", storyObjects, round))
		s.apply("bob", "bob.yaml", teamServices("pay", storyObjects, round))
		if round == 2 {
			s.apply("carol", "carol.yaml", teamServices("mail", storyObjects-1, round))
			s.apply("carol", "cleanup.yaml", fmt.Sprintf(cartVersions, "{name: v2, labels: {version: \"2\"}}"))
		} else {
			s.apply("carol", "carol.yaml", teamServices("mail", storyObjects, round))
		}
		_, err := s.shop.Save("search.yaml", teamServices("search", storyObjects, round))
		s.must(err)
	}
	s.wait()
}

// puts counts the records on the log that have an object.
func (s *storyRig) puts() int {
	s.Helper()
	out, err := s.mesh.Show(s.ctx, "log", "-n", "-1")
	s.must(err)
	return strings.Count(out, "  PUT  ")
}

// One of 200 changes by four actors makes an Envoy answer 503. The command line alone, on an
// exported archive, finds the record, its author and its line, and what would fix it; then the
// mesh is rolled back, and every proxy has it. The console shows the same.
func TestStory(t *testing.T) {
	s := startStory(t)
	var before []struct{ Version string }
	s.must(s.mesh.CLI(s.ctx, &before, "versions", "-n", "1"))
	good := before[0].Version
	puts := s.puts()
	s.changes()
	if n := s.puts() - puts; n != 4*storyRounds*storyObjects {
		t.Errorf("there were %d changes, want 200", n)
	}
	if status := s.cart(); status != http.StatusServiceUnavailable {
		t.Fatalf("after the changes the cart answers %d, want 503", status)
	}

	archive := filepath.Join(s.dir, "incident.archive")
	_, err := s.mesh.Show(s.ctx, "export", archive)
	s.must(err)
	at := fmt.Sprintf("http://%s:%d/", storyHost, s.shop.Port)
	s.has("why-not", s.run(true, "why-not", "--archive", archive, node, at), "no endpoints", "DestinationRule demo/cart", "carol")
	s.has("bisect", s.run(false, "bisect", "--archive", archive, "--good", good, "--bad", "latest", "--call", node, at, "--expect", "outbound|80|v2|cart.internal"),
		"which act as one", "~ DestinationRule demo/cart (api/default)", "cleanup.yaml:", "by carol", "spec.subsets[0].labels.version: \"v2\" -> \"2\"")
	s.has("history", s.run(false, "history", "--archive", archive, "DestinationRule/demo/cart"), "carol (verified)", "alice (verified)", "cleanup.yaml:")
	s.has("why", s.run(false, "why", "--archive", archive, node, "endpoint/outbound|80|v2|cart.internal"), "DestinationRule demo/cart", "cleanup.yaml:", "carol")
	fix := filepath.Join(s.dir, "fix.yaml")
	s.must(os.WriteFile(fix, fmt.Appendf(nil, cartVersions, "{name: v2, labels: {version: v2}}"), 0o600))
	s.has("what-if", s.run(true, "what-if", "--archive", archive, "-f", fix, "--proxy", node), "outbound|80|v2|cart.internal")

	s.console()

	cli := []string{"--data", s.mesh.Data}
	s.has("rollback", s.run(false, append([]string{"rollback", good, "DestinationRule/demo/cart", "--reason", "the cart answers 503", "--operator-key", s.operators["bob"].File}, cli...)...), "Rolled back to")
	s.has("wait", s.run(false, append([]string{"wait", "latest", "--for", "100%", "--timeout", "30s"}, cli...)...), "is applied by 1 of 1 stream")
	s.settle()
	if status := s.cart(); status != http.StatusOK {
		t.Errorf("after the rollback the cart answers %d", status)
	}
	s.has("log", s.run(false, append([]string{"log", "-n", "1"}, cli...)...), "bob (verified)")
}

// console finds the same in the web console, and that the Envoy has what meshlog says.
func (s *storyRig) console() {
	s.Helper()
	port, err := testport.TCP()
	s.must(err)
	listen := fmt.Sprintf("127.0.0.1:%d", port)
	p, err := rig.StartProgram(s.dir, "meshlog", "console", "console", "--bus", filepath.Join(s.mesh.Data, "bus"), "--console-listen", listen)
	s.must(err)
	s.Cleanup(p.Kill)
	s.must(p.UntilAlive(s.ctx, "the console to have reports", func(context.Context) error {
		r, err := http.Get("http://" + listen + "/fleet")
		if err != nil {
			return err
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err == nil && !strings.Contains(string(b), node) {
			err = fmt.Errorf("no proxy in %s", b)
		}
		return err
	}))
	page := func(path string, parameters url.Values) string {
		status, body := s.get("http://" + listen + path + "?" + parameters.Encode())
		if status != http.StatusOK {
			s.Errorf("%s: status %d:\n%s", path, status, body)
		}
		return body
	}
	s.has("the page of routes", page("/routes", url.Values{"proxy": {node}, "host": {storyHost}}), "no endpoints: 503", "outbound|80|v2|cart.internal")
	s.has("the timeline", page("/timeline", url.Values{"kind": {"DestinationRule"}, "name": {"cart"}, "actor": {"carol"}}), "DestinationRule demo/cart", "cleanup.yaml:")
	s.has("the object", page("/object", url.Values{"key": {"DestinationRule/demo/cart"}}), "cleanup.yaml:", "carol", "Where it is used")
	s.has("the comparison with Envoy", page("/envoy", url.Values{"proxy": {node}, "admin": {s.envoy.Admin()}}), "Everything is the same")
}

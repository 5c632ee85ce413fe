package act

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"meshlog.dev/events"
	"meshlog.dev/events/natslog"
	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/mesh/permit"
	"meshlog.dev/services/operate/operatetest"
	"meshlog.dev/store/natsfeed"
)

// runBusAuth runs bus-auth on a directory, and returns what it prints with DIR for the
// directory.
func runBusAuth(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := BusAuth()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	var out bytes.Buffer
	cmd.SetOut(&out)
	cmd.SetArgs(append([]string{dir}, args...))
	err := cmd.ExecuteContext(t.Context())
	return strings.ReplaceAll(out.String(), dir, "DIR"), err
}

func writePolicy(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// A file may hold other objects, also broken ones and ones of other programs.
const policy = `
apiVersion: v1
kind: Service
metadata: {name: shop}
spec: {prots: []}
---
apiVersion: example.com/v1
kind: Unknown
metadata: {name: x}
---
apiVersion: meshlog.dev/v1
kind: MeshPolicy
metadata: {name: default}
spec:
  sourceRules:
  - {source: consul, kinds: [WorkloadEntry], namespaces: ["shop-*"]}
  - {source: consul, hosts: ["*.consul"]}
  - {source: file, kinds: [Gateway], namespaces: [edge]}
  - {source: file, namespaces: [shop, pay.eu]}
  - {source: nacos, kinds: [Service]}
`

// ACL-3: bus-auth prints what each watcher may publish, what is new about that, and which
// rules only the fold enforces.
func TestBusAuthPolicy(t *testing.T) {
	dir := t.TempDir()
	run := func(golden string, args ...string) {
		t.Helper()
		out, err := runBusAuth(t, dir, args...)
		if err != nil {
			t.Fatal(err)
		}
		operatetest.GoldenFile(t, golden, out)
	}
	watchers := []string{"--watcher", "consul/dc1", "--watcher", "file/default", "--watcher", "kubernetes/*"}
	with := func(text string, more ...string) []string {
		return append(slices.Concat(watchers, []string{"--policy", writePolicy(t, text)}), more...)
	}
	run("bus-auth-policy", with(policy)...)
	run("bus-auth-policy-changed", with(strings.Replace(policy, "[shop, pay.eu]", "[shop, open]", 1))...)
	run("bus-auth-policy-json", with(policy, "-o", "json")...)
	run("bus-auth-policy-ended", watchers...)
	out, err := runBusAuth(t, dir, with(strings.Replace(policy, "kinds: [Service]", "kinds: [Svc]", 1))...)
	if want := `policy.yaml:20: spec.sourceRules[4].kinds[0]: meshlog knows no kind "Svc"`; err != nil || !strings.Contains(out, want) {
		t.Errorf("of a policy with an unknown kind it says (%v):\n%s\nwant a warning: %s", err, out, want)
	}
}

// ACL-3: a file that may not be the policy of the mesh changes nothing.
func TestBusAuthRefusesAPolicy(t *testing.T) {
	const head = "apiVersion: meshlog.dev/v1\nkind: MeshPolicy\nmetadata: {name: default}\nspec:\n"
	for name, test := range map[string]struct{ text, want string }{
		"no policy":          {"# nothing\n", "policy.yaml: holds no MeshPolicy default"},
		"another name":       {strings.Replace(head, "default", "other", 1), "policy.yaml: holds no MeshPolicy default"},
		"two":                {head + "---\n" + head, "policy.yaml:6: holds a second MeshPolicy default; leave one"},
		"an unknown field":   {head + "  sourceRules:\n  - {source: file, kinsd: [Pod]}\n", `policy.yaml:6: spec.sourceRules[0].kinsd: unknown field "kinsd"`},
		"an invalid rule":    {head + "  sourceRules:\n  - {source: file}\n  - {kinds: [Pod]}\n", "policy.yaml:7: spec.sourceRules[1].source: the source is missing; write a source such as consul"},
		"a broken document":  {head + "---\n{", "policy.yaml:6: "},
		"an unknown version": {strings.Replace(head, "/v1", "/v7", 1), "policy.yaml:1: kind: meshlog does not know apiVersion meshlog.dev/v7"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "auth")
			_, err := runBusAuth(t, dir, "--watcher", "file/default", "--policy", writePolicy(t, test.text))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("files were written: %v", err)
			}
		})
	}
}

// ACL-3: whatever the rules and the names of objects, the subjects of a limit match the
// subject of each object that the fold accepts.
func TestLimitsAreNeverNarrower(t *testing.T) {
	permitted, refused := 0, 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 7))
		pick := func(from ...string) string { return from[r.IntN(len(from))] }
		some := func(from ...string) (list []string) {
			for range r.IntN(3) {
				list = append(list, pick(from...))
			}
			return list
		}
		p := &configv1.MeshPolicy{}
		for range r.IntN(5) {
			p.SourceRules = append(p.SourceRules, &configv1.SourceRule{
				Source: pick("consul", "_a.b", "ca", "*"), Instance: pick("", "eu.1", "*", "eu*"),
				Kinds: some("Gateway", "_ctl", "a b", "*", "MeshPolicy", "TrustBundle"), Namespaces: some("shop", "x.y", "_", ">", "*", "s*"), Hosts: some("*.consul"),
			})
		}
		shard := ident.Shard{Source: pick("consul", "_a.b", "ca"), Instance: pick("eu.1", "=", "")}
		role := bus.Watcher(shard)
		l, limited := first(limits(p, []bus.Role{role}))[role]
		if !limited {
			continue
		}
		rules := permit.New(p.SourceRules, "cluster.local", ident.Shard{Source: pick("consul", "_a.b"), Instance: pick("eu.1", "=")})
		for range 40 {
			k := ident.Key{
				Source: shard.Source, Instance: shard.Instance, Name: "x",
				Kind: pick("Gateway", "_ctl", "a b", "Service", "Unheard", "MeshPolicy", "TrustBundle", "Jwks"), Namespace: pick("", "shop", "x.y", "_", ">", "s", "*"),
			}
			if shard.Instance == "" {
				k.Instance = pick("eu.1", "eu", "=")
			}
			s := events.ObjectSubject(k)
			match := func(all []events.Subject) bool {
				return slices.ContainsFunc(all, func(w events.Subject) bool { return matches(string(w), string(s)) })
			}
			may := match(l.Allow) && !match(l.Deny)
			if may {
				permitted++
			} else {
				refused++
			}
			if rules.Forbid(k, nil) == nil && !may {
				t.Fatalf("seed %d: the bus refuses %s, which the fold accepts: rules %v, allow %q, deny %q", seed, s, p.SourceRules, l.Allow, l.Deny)
			}
		}
	}
	if permitted < 1000 || refused < 1000 {
		t.Errorf("%d objects allowed, %d refused: the random policies try too little", permitted, refused)
	}
}

func first[A, B any](a A, _ B) A { return a }

// matches reports whether a permission for a subject, maybe with *, covers a subject.
func matches(wide, subject string) bool {
	w, s := strings.Split(wide, "."), strings.Split(subject, ".")
	for i := range min(len(w), len(s)) {
		if w[i] != "*" && w[i] != s[i] {
			return false
		}
	}
	return len(w) == len(s)
}

// ACL-3: a running watcher obeys the permissions of a policy once the servers have loaded
// them: its changes arrive, and an object that the bus refuses is named and holds no other
// back. Once the bus allows it, it is published without a restart.
func TestBusAuthPolicyOfARunningWatcher(t *testing.T) {
	t.Parallel()
	shard := ident.Shard{Source: "file", Instance: "default"}
	m := startMesh(t, 1, 64, shard, bus.Builder(), bus.Operator(), bus.Watcher(shard))
	m.events.Wait(t, "published", "version")
	operator, err := bus.Connect(m.options(bus.Operator()))
	if err != nil {
		t.Fatal(err)
	}
	defer operator.Close()
	chain, err := natsfeed.Open(t.Context(), operator, natsfeed.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m.served(chain, "10.0.0.1")
	load := func(kinds string) {
		t.Helper()
		rule := "apiVersion: meshlog.dev/v1\nkind: MeshPolicy\nmetadata: {name: default}\nspec: {sourceRules: [{source: file, kinds: [" + kinds + "]}]}\n"
		if _, err := runBusAuth(t, m.dir, "--watcher", shard.String(), "--policy", writePolicy(t, rule)); err != nil {
			t.Fatal(err)
		}
		m.reload()
	}
	load("ServiceEntry")
	m.offer("10.0.0.2")
	m.served(chain, "10.0.0.2")

	const gateway = "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {name: edge, namespace: prod}\n" +
		"spec: {selector: {app: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: [\"*\"]}]}\n"
	operatetest.WriteFiles(t, m.config, map[string]string{"gateway.yaml": gateway})
	if subject := m.events.Wait(t, "the bus refuses an object; the others are published", "subject"); subject != "file.default.Gateway.prod" {
		t.Errorf("the bus refuses %q, want the subject of the Gateway", subject)
	}
	m.offer("10.0.0.3")
	m.served(chain, "10.0.0.3")
	load("ServiceEntry, Gateway")
	if reason := m.events.Wait(t, "session ends", "reason"); reason != "the bus permits objects that it refused" {
		t.Errorf("the session ends: %s", reason)
	}
	m.events.Wait(t, "listed", "sent")
	log, err := natslog.Open(t.Context(), operator, natslog.Options{Domain: process.DefaultDomain})
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if _, err := log.Last(t.Context(), "file.default.Gateway.prod"); err != nil {
		t.Errorf("the Gateway: %v", err)
	}
}

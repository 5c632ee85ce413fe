package apply

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/operate/inspect"
	"meshlog.dev/services/operate/operatetest"
	"meshlog.dev/services/operate/past"
)

func TestMain(m *testing.M) { operatetest.Main(m) }

// result is what a command printed.
type result struct {
	out, warned string
	err         error
}

// meshlog runs a command on a mesh.
func meshlog(t *testing.T, m *operatetest.Mesh, stdin string, args ...string) result {
	t.Helper()
	root := &cobra.Command{SilenceErrors: true, SilenceUsage: true}
	root.AddCommand(Apply(), Get(), Delete(), Validate(), inspect.Sources(), inspect.Status())
	var out, warned bytes.Buffer
	root.SetOut(&out)
	root.SetErr(&warned)
	root.SetIn(strings.NewReader(stdin))
	if m != nil {
		args = append(args, "--data", m.Data)
	}
	root.SetArgs(args)
	err := root.ExecuteContext(t.Context())
	return result{out.String(), warned.String(), err}
}

// must runs a command that must work, and decodes its JSON output into into.
func must(t *testing.T, m *operatetest.Mesh, into any, stdin string, args ...string) {
	t.Helper()
	r := meshlog(t, m, stdin, append(args, "-o", "json")...)
	if r.err != nil {
		t.Fatalf("meshlog %s: %v\n%s", strings.Join(args, " "), r.err, r.out)
	}
	if into == nil {
		return
	}
	if err := json.Unmarshal([]byte(r.out), into); err != nil {
		t.Fatalf("meshlog %s: %v\n%s", strings.Join(args, " "), err, r.out)
	}
}

// says checks that a text has all parts.
func says(t *testing.T, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s: has no %q:\n%s", what, part, text)
		}
	}
}

func code(err error) int {
	var coded interface{ ExitCode() int }
	switch {
	case err == nil:
		return 0
	case asCode(err, &coded):
		return coded.ExitCode()
	}
	return 1
}

const shop = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: shop, namespace: demo}
spec:
  hosts: [shop.internal]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 10.0.0.1}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: demo}
spec:
  hosts: [shop.internal]
  http:
  - timeout: 2s
    route: [{destination: {host: shop.internal, port: {number: 80}}}]
`

// records returns how many records the log has.
func records(t *testing.T, m *operatetest.Mesh) uint64 {
	t.Helper()
	b, err := openLog(t, m).Bounds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return b.Last
}

// written returns how many records of api/default the log has after one.
func written(t *testing.T, m *operatetest.Mesh, after uint64) (n int) {
	t.Helper()
	log := openLog(t, m)
	bounds, err := log.Bounds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for rec, err := range past.Records(t.Context(), log, after+1, bounds.Last) {
		if err != nil {
			t.Fatal(err)
		}
		shard := ident.Shard{}
		switch b := rec.Event.Body.(type) {
		case *events.Begin:
			shard = b.Shard
		case *events.Alive:
			shard = b.Shard
		case *events.Object:
			shard = b.Key.Shard()
		}
		if shard == api {
			n++
		}
	}
	return n
}

var api = ident.Shard{Source: ident.API, Instance: "default"}

// API-1, API-2, API-4: an apply creates objects that get shows; what get prints changes
// nothing; a delete deletes.
func TestApplyGetDelete(t *testing.T) {
	t.Parallel()
	m := operatetest.Start(t, nil)
	file := filepath.Join(t.TempDir(), "shop.yaml")
	if err := os.WriteFile(file, []byte(shop), 0o600); err != nil {
		t.Fatal(err)
	}

	before := records(t, m)
	dry := meshlog(t, m, "", "apply", "-f", file, "--dry-run")
	says(t, "dry run", dry.out, "+ ServiceEntry demo/shop (api/default)", "2 created. Nothing was written")
	if n := written(t, m, before); dry.err != nil || n != 0 {
		t.Fatalf("a dry run wrote %d records, %v", n, dry.err)
	}

	applied := meshlog(t, m, "", "apply", "-f", file)
	says(t, "apply", applied.out, "created  VirtualService demo/shop (api/default)", "2 created, in version ")
	if n := written(t, m, before); applied.err != nil || n != 4 {
		t.Fatalf("an apply of 2 objects wrote %d records, want begin, 2 puts, alive; %v", n, applied.err)
	}

	table := meshlog(t, m, "", "get")
	says(t, "get", table.out, "VirtualService", "demo", file+":", "yes")
	for _, format := range []string{"yaml", "json"} {
		got := meshlog(t, m, "", "get", "-o", format)
		says(t, "get", got.out, "resourceVersion", "timeout")
		again := meshlog(t, m, got.out, "apply", "-f", "-")
		says(t, "apply of what get prints", again.out, "Nothing to write: 2 unchanged.")
		if n := written(t, m, before); again.err != nil || n != 4 {
			t.Errorf("%s: an apply of what get prints wrote %d records, %v", format, n-4, again.err)
		}
	}

	var one struct {
		Metadata struct{ ResourceVersion string }
		Spec     struct{ Hosts []string }
	}
	must(t, m, &one, "", "get", "virtualservice", "shop", "-n", "demo")
	if len(one.Spec.Hosts) != 1 || one.Metadata.ResourceVersion == "" {
		t.Errorf("get KIND NAME: %+v", one)
	}
	if r := meshlog(t, m, "", "get", "VirtualService", "none"); code(r.err) != 3 {
		t.Errorf("get of none: exit code %d, %v", code(r.err), r.err)
	}

	changed := strings.Replace(shop, "timeout: 2s", "timeout: 3s", 1)
	diff := meshlog(t, m, changed, "apply", "-f", "-", "--dry-run")
	says(t, "diff", diff.out, "~ VirtualService demo/shop (api/default)", `spec.http[0].timeout: "2s" -> "3s"`, "1 changed, 1 unchanged. Nothing was written")
	if r := meshlog(t, m, changed, "apply", "-f", "-"); r.err != nil {
		t.Fatal(r.err)
	}

	// The older document would undo the change.
	stale := strings.Replace(shop, "{name: shop, namespace: demo}", "{name: shop, namespace: demo, resourceVersion: "+one.Metadata.ResourceVersion+"}", 2)
	at := records(t, m)
	refused := meshlog(t, m, stale, "apply", "-f", "-")
	if r := meshlog(t, m, stale, "apply", "-f", "-", "--dry-run"); r.err == nil || strings.Contains(r.out, "Nothing was written") {
		t.Errorf("a dry run of an older resourceVersion: %v\n%s", r.err, r.out)
	}
	says(t, "stale", refused.out, "stdin:12: metadata.resourceVersion: the document is made from "+one.Metadata.ResourceVersion, "the object has changed since, at ", "`meshlog get`")
	if n := written(t, m, at); refused.err == nil || n != 0 {
		t.Errorf("an older resourceVersion: %v, %d records", refused.err, n)
	}

	deleted := meshlog(t, m, "", "delete", "VirtualService", "shop", "-n", "demo")
	says(t, "delete", deleted.out, "deleted  VirtualService demo/shop (api/default)", "1 deleted, in version ")
	if r := meshlog(t, m, "", "delete", "VirtualService", "shop", "-n", "demo"); code(r.err) != 3 {
		t.Errorf("delete of none: exit code %d, %v", code(r.err), r.err)
	} else if r.out != "" {
		t.Errorf("delete of none prints %s", r.out)
	}
	rest := meshlog(t, m, "", "delete", "-f", file)
	says(t, "delete -f", rest.out, "1 deleted")
	if r := meshlog(t, m, "", "get"); r.err != nil || !strings.Contains(r.out, "has no such objects") {
		t.Errorf("after the deletes: %v %s", r.err, r.out)
	}
}

// API-3: one bad object stops the whole apply, with file, line, field, reason and advice.
func TestBadObjects(t *testing.T) {
	t.Parallel()
	m := operatetest.Start(t, map[string]string{"policy.yaml": `apiVersion: meshlog.dev/v1
kind: MeshPolicy
metadata: {name: default}
spec:
  requiredSources: [{source: file, instance: default}]
  sourceRules: [{source: api, kinds: [VirtualService, ServiceEntry, MeshConfig, Gateway], namespaces: [demo]}, {source: file}]
`})
	bad := func(header, spec string) string { return "---\napiVersion: " + header + "\n" + spec }
	before := records(t, m)
	for name, test := range map[string]struct {
		doc  string
		want []string
	}{
		"an unknown field": {
			bad("networking.istio.io/v1", "kind: VirtualService\nmetadata: {name: a, namespace: demo}\nspec:\n  hosts: [a]\n  httpp: []\n"),
			[]string{"stdin:24: spec.httpp: unknown field"},
		},
		"an invalid value": {
			bad("networking.istio.io/v1", "kind: VirtualService\nmetadata: {name: a, namespace: demo}\nspec:\n  hosts: [a]\n  http:\n  - route: [{destination: {host: a}, weight: -1}]\n"),
			[]string{"stdin:25: spec.http[0].route[0].weight", "to do"},
		},
		"what only generation finds": {
			bad("networking.istio.io/v1", "kind: VirtualService\nmetadata: {name: a, namespace: demo}\nspec:\n  hosts: [a]\n  http:\n  - match: [{uri: {regex: \"(\"}}]\n    redirect: {uri: /}\n"),
			[]string{"stdin:25: spec.http[0].match[0].uri"},
		},
		"a namespace that the rules forbid": {
			bad("networking.istio.io/v1", "kind: ServiceEntry\nmetadata: {name: a, namespace: other}\nspec: {hosts: [a.example], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS}\n"),
			[]string{"stdin:21: metadata.namespace: api/default may not publish objects of kind ServiceEntry in namespace \"other\"", "sourceRules"},
		},
		"a kind that the rules forbid": {
			bad("networking.istio.io/v1", "kind: Sidecar\nmetadata: {name: a, namespace: demo}\nspec: {egress: [{hosts: [\"*/*\"]}]}\n"),
			[]string{"api/default may not publish objects of kind Sidecar"},
		},
		"a Secret": {
			bad("v1", "kind: Secret\nmetadata: {name: a, namespace: demo}\nstringData: {a: b}\n"),
			[]string{"stdin:19: kind: a Secret does not go on the log"},
		},
		"the roots of the mesh": {
			bad("meshlog.dev/v1", "kind: TrustBundle\nmetadata: {name: default}\nspec: {}\n"),
			[]string{"a TrustBundle is made by meshlog"},
		},
		"a private key": {
			bad("mesh.istio.io/v1alpha1", "kind: MeshConfig\nmetadata: {name: default}\nspec:\n  trustDomain: |\n    -----BEGIN EC PRIVATE KEY-----\n    AAAA\n    -----END EC PRIVATE KEY-----\n"),
			[]string{"stdin:23: spec.trustDomain: holds a private key"},
		},
		"the same object twice": {
			bad("networking.istio.io/v1", "kind: VirtualService\nmetadata: {name: shop, namespace: demo}\nspec: {hosts: [a]}\n"),
			[]string{"stdin:21: metadata.name: stdin:10 has the same object"},
		},
		"a resourceVersion of Kubernetes": {
			bad("networking.istio.io/v1", "kind: VirtualService\nmetadata: {name: a, namespace: demo, resourceVersion: \"123\"}\nspec: {hosts: [a]}\n"),
			[]string{`stdin:21: metadata.resourceVersion: "123" is no version`, "remove it"},
		},
		"an object of which there is none": {
			bad("networking.istio.io/v1", "kind: VirtualService\nmetadata: {name: a, namespace: demo, resourceVersion: \"1.5\"}\nspec: {hosts: [a], http: [{redirect: {uri: /}}]}\n"),
			[]string{"made from 1.5, and the object does not exist"},
		},
		"YAML that is none": {"---\na: [\n", []string{"stdin:19: "}},
	} {
		t.Run(name, func(t *testing.T) {
			r := meshlog(t, m, shop+test.doc, "apply", "-f", "-")
			says(t, name, r.out, append(test.want, "error")...)
			if r.err == nil || !strings.Contains(r.err.Error(), "1 error; nothing was applied") {
				t.Errorf("error %v", r.err)
			}
		})
	}
	if n := written(t, m, before); n != 0 {
		t.Errorf("bad objects wrote %d records", n)
	}

	// A kind of other programs is reported and left alone.
	r := meshlog(t, m, shop+bad("apps/v1", "kind: Deployment\nmetadata: {name: a}\n"), "apply", "-f", "-")
	says(t, "a Deployment", r.out, "warning  stdin:19: kind: meshlog does not know apiVersion apps/v1, kind Deployment", "2 created, in version")
	if r.err != nil {
		t.Error(r.err)
	}
}

// API-1: any number of objects is one version.
func TestManyObjects(t *testing.T) {
	t.Parallel()
	m := operatetest.Start(t, nil)
	var doc strings.Builder
	for i := range 3000 {
		fmt.Fprintf(&doc, "---\napiVersion: networking.istio.io/v1\nkind: WorkloadEntry\nmetadata: {name: e%d, namespace: demo}\nspec: {address: 10.0.%d.%d}\n", i, i/250, i%250+1)
	}
	was := versions(t, m)
	before := records(t, m)
	must(t, m, nil, doc.String(), "apply", "-f", "-")
	if now := versions(t, m); now != was+1 {
		t.Errorf("an apply of 3000 objects made %d versions", now-was)
	}
	if n := written(t, m, before); n != 3002 {
		t.Errorf("it wrote %d records", n)
	}
	// All go at once, and the guard does not hold them back.
	deleted := meshlog(t, m, doc.String(), "delete", "-f", "-")
	says(t, "delete", deleted.out, "3000 deleted, in version ")
	if r := meshlog(t, m, "", "status", "-o", "json"); deleted.err != nil || strings.Contains(r.out, "held\": 1") {
		t.Errorf("after the delete: %v\n%s", deleted.err, r.out)
	}
}

// API-4: a source of operators is at rest, which is no reason for an alert.
func TestAtRest(t *testing.T) {
	t.Parallel()
	m := operatetest.Start(t, nil)
	must(t, m, nil, shop, "apply", "-f", "-", "--instance", "ops")
	var sources []struct {
		Source, Instance, State string
		Frozen, Partial         bool
		Objects                 int
	}
	must(t, m, &sources, "", "sources")
	if got, want := fmt.Sprint(sources[0]), "{api ops at rest false false 2}"; got != want {
		t.Errorf("sources: %s, want %s", got, want)
	}
	says(t, "sources", meshlog(t, m, "", "sources").out, "api/ops", "AT REST")
	if r := meshlog(t, m, "", "status"); strings.Contains(r.out, "api/ops") {
		t.Errorf("status complains:\n%s", r.out)
	}
}

// API-3: --wait fails if too few proxies apply the version; the change stays.
func TestWaitForProxies(t *testing.T) {
	t.Parallel()
	m := operatetest.Start(t, nil)
	r := meshlog(t, m, shop, "apply", "-f", "-", "--wait", "50", "--timeout", "3s")
	says(t, "apply", r.out, "2 created, in version ")
	if r.err == nil || !strings.Contains(r.err.Error(), "but only 0 of 0 proxies have applied it after 3s, and 50% are wanted; `meshlog wait ") {
		t.Errorf("without proxies: %v", r.err)
	}
	if r := meshlog(t, m, "", "get", "VirtualService", "shop"); r.err != nil {
		t.Error(r.err)
	}
}

func TestWrongCommandLines(t *testing.T) {
	t.Parallel()
	m := &operatetest.Mesh{Data: t.TempDir()}
	for line, want := range map[string]string{
		"apply":                             "-f is missing",
		"apply -f none.yaml":                "no such file",
		"apply -f - --wait many":            "--wait",
		"delete":                            "want KIND NAME",
		"delete VirtualService":             "want KIND NAME",
		"delete VirtualServic a":            "did you mean VirtualService?",
		"delete MeshConfig default -n demo": "a MeshConfig has no namespace",
		"delete VirtualService a -f -":      "give one of them",
		"get Virtual":                       "meshlog knows no kind",
		"apply -f -":                        "start `meshlog up`",
	} {
		r := meshlog(t, m, shop, strings.Fields(line)...)
		if r.err == nil || !strings.Contains(r.err.Error(), want) {
			t.Errorf("meshlog %s: %v, want %q", line, r.err, want)
		}
	}
	var usage *process.UsageError
	if r := meshlog(t, m, "", "apply"); !asUsage(r.err, &usage) {
		t.Errorf("apply without -f: %v is no error of the command line", r.err)
	}
}

// ADM-1: validate judges as the fold does, and looks at the objects together, without a
// mesh.
func TestValidate(t *testing.T) {
	t.Parallel()
	if r := meshlog(t, nil, shop, "validate", "-f", "-"); r.err != nil || r.out != "2 objects, no problems.\n" {
		t.Errorf("good objects: %v\n%s", r.err, r.out)
	}
	nowhere := strings.Replace(shop, "{host: shop.internal, port: {number: 80}}", "{host: shop.internal, subset: v3}", 1)
	r := meshlog(t, nil, nowhere, "validate", "-f", "-")
	says(t, "a route to nowhere", r.out, "warning  stdin:10: spec.http[0].route[0].destination.subset: no DestinationRule of \"shop.internal\" has a subset \"v3\"")
	if r.err != nil {
		t.Errorf("a warning: %v", r.err)
	}
	r = meshlog(t, nil, strings.Replace(shop, "timeout: 2s", "timeout: -2s", 1), "validate", "-f", "-")
	says(t, "a bad timeout", r.out, "error  stdin:16: spec.http[0].timeout: ", "to do")
	if r.err == nil || code(r.err) != 1 {
		t.Errorf("an error: %v", r.err)
	}
	r = meshlog(t, nil, shop+"---\napiVersion: v1\nkind: Secret\nmetadata: {name: a}\n", "validate", "-f", "-", "-o", "json")
	says(t, "a Secret", r.out, `"objects": 2`, `"code": "secret"`)
	if r.err == nil {
		t.Error("a Secret is no error")
	}
}

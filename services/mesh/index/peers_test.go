package index_test

import (
	"strings"
	"testing"

	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
)

// The mode of a port comes from the workload's PeerAuthentication, that of its namespace
// or that of the root namespace; UNSET inherits (PA-1, PA-2).
func TestPeerMode(t *testing.T) {
	const (
		permissive, strict, disable = index.PeerPermissive, index.PeerStrict, index.PeerDisable
	)
	policy := func(namespace, name, spec string) string {
		return "\n---\n{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {namespace: " + namespace + ", name: " + name + "}, spec: " + spec + "}"
	}
	created := func(at, document string) string {
		return strings.Replace(document, "name: ", "creationTimestamp: "+at+", name: ", 1)
	}
	const older, newer = `"2020-01-01T00:00:00Z"`, `"2021-01-01T00:00:00Z"`
	mesh := func(spec string) string { return policy("istio-system", "mesh", spec) }
	namespace := func(spec string) string { return policy("shop", "all", spec) }
	workload := func(spec string) string {
		return policy("shop", "web", "{selector: {matchLabels: {app: web}}, "+spec+"}")
	}
	for name, test := range map[string]struct {
		documents   string
		port, other index.PeerMode // of port 8080 and of any other
	}{
		"none":                         {"", permissive, permissive},
		"mesh":                         {mesh("{mtls: {mode: STRICT}}"), strict, strict},
		"namespace":                    {mesh("{mtls: {mode: STRICT}}") + namespace("{mtls: {mode: DISABLE}}"), disable, disable},
		"another namespace":            {policy("other", "all", "{mtls: {mode: STRICT}}"), permissive, permissive},
		"workload":                     {namespace("{mtls: {mode: STRICT}}") + workload("mtls: {mode: PERMISSIVE}"), permissive, permissive},
		"another workload":             {policy("shop", "db", "{selector: {matchLabels: {app: db}}, mtls: {mode: STRICT}}"), permissive, permissive},
		"namespace unset":              {mesh("{mtls: {mode: STRICT}}") + namespace("{}"), strict, strict},
		"workload unset":               {namespace("{mtls: {mode: STRICT}}") + workload("mtls: {mode: UNSET}"), strict, strict},
		"port":                         {namespace("{mtls: {mode: STRICT}}") + workload("portLevelMtls: {8080: {mode: DISABLE}}"), disable, strict},
		"port unset":                   {workload("mtls: {mode: STRICT}, portLevelMtls: {8080: {mode: UNSET}}"), strict, strict},
		"port without selector":        {namespace("{portLevelMtls: {8080: {mode: DISABLE}}}"), permissive, permissive},
		"empty selector":               {namespace("{selector: {}, mtls: {mode: STRICT}}"), strict, strict},
		"root with selector":           {policy("istio-system", "web", "{selector: {matchLabels: {app: web}}, mtls: {mode: STRICT}}"), permissive, permissive},
		"the older one of a namespace": {created(newer, policy("shop", "a", "{mtls: {mode: STRICT}}")) + created(older, policy("shop", "b", "{mtls: {mode: DISABLE}}")), disable, disable},
		"the older one of a workload": {
			created(newer, policy("shop", "a", "{selector: {matchLabels: {app: web}}, portLevelMtls: {8080: {mode: STRICT}}}")) +
				created(older, workload("mtls: {mode: DISABLE}")), disable, disable,
		},
	} {
		t.Run(name, func(t *testing.T) {
			pc := PushContext(t, YAML(t, test.documents)...)
			labels := map[string]string{"app": "web", "version": "v1"}
			if got := pc.Read().PeerMode("shop", labels, 8080); got != test.port {
				t.Errorf("port 8080: %v, want %v", got, test.port)
			}
			if got := pc.Read().PeerMode("shop", labels, 9090); got != test.other {
				t.Errorf("port 9090: %v, want %v", got, test.other)
			}
		})
	}
}

// A PeerAuthentication that never was good demands mutual TLS of what it selects
// (POL-15).
func TestPeerModeFailsClosed(t *testing.T) {
	labels := map[string]string{"app": "web"}
	never := func(namespace string, selector map[string]string) *index.PushContext {
		return PushContext(t, Object("PeerAuthentication", namespace, "p", &registryv1.Closed{MatchLabels: selector}))
	}
	if got := never("shop", nil).Read().PeerMode("shop", labels, 80); got != index.PeerStrict {
		t.Errorf("of the namespace: %v", got)
	}
	if got := never("istio-system", nil).Read().PeerMode("shop", labels, 80); got != index.PeerStrict {
		t.Errorf("of the mesh: %v", got)
	}
	if got := never("shop", labels).Read().PeerMode("shop", labels, 80); got != index.PeerStrict {
		t.Errorf("of the workload: %v", got)
	}
	if got := never("shop", map[string]string{"app": "db"}).Read().PeerMode("shop", labels, 80); got != index.PeerPermissive {
		t.Errorf("of another workload: %v", got)
	}
}

// A PeerAuthentication that does not count is reported.
func TestPeerConflicts(t *testing.T) {
	object := func(namespace, name, spec string) string {
		return "\n---\n{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {namespace: " + namespace + ", name: " + name + "}, spec: " + spec + "}"
	}
	for name, test := range map[string]struct{ documents, want string }{
		"alone":              {object("shop", "a", "{}"), ""},
		"two of a namespace": {object("shop", "a", "{}") + object("shop", "b", "{}"), "warning b selects the same workloads"},
		"namespace and workload": {
			object("shop", "a", "{}") + object("shop", "b", "{selector: {matchLabels: {app: web}}}"), "",
		},
		"other labels": {
			object("shop", "a", "{selector: {matchLabels: {app: db}}}") + object("shop", "b", "{selector: {matchLabels: {app: web}}}"), "",
		},
		"more labels": {
			object("shop", "a", "{selector: {matchLabels: {app: web}}}") + object("shop", "b", "{selector: {matchLabels: {app: web, v: a}}}"), "warning b selects the same workloads",
		},
		"labels of a workload may match both": {
			object("shop", "a", "{selector: {matchLabels: {v: a}}}") + object("shop", "b", "{selector: {matchLabels: {app: web}}}"), "info b a workload may have the labels of this selector",
		},
		"root with selector": {object("istio-system", "a", "{selector: {matchLabels: {app: web}}}"), "warning a selects no workload"},
	} {
		t.Run(name, func(t *testing.T) {
			var got []string
			for _, d := range PushContext(t, YAML(t, test.documents)...).Diagnostics() {
				if d.Code == "conflict" || d.Code == "unused" {
					got = append(got, d.Severity.String()+" "+d.Key.Name+" "+d.Reason)
				}
			}
			switch {
			case test.want == "" && len(got) > 0:
				t.Errorf("reported: %q", got)
			case test.want == "":
			case len(got) != 1:
				t.Errorf("got %q, want one that contains %q", got, test.want)
			default:
				for _, word := range strings.Fields(test.want) {
					if !strings.Contains(got[0], word) {
						t.Errorf("got %q, want %q", got[0], test.want)
					}
				}
			}
		})
	}
}

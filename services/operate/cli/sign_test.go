package cli

import (
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/operatetest"
)

const signedService = `apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: pay, namespace: demo}
spec:
  hosts: [pay.internal]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: STATIC
  endpoints: [{address: 10.0.0.7}]
`

type operator struct{ Name, Key, File string }

// operatorsOf makes keys of operators.
func operatorsOf(t *testing.T, names ...string) []operator {
	t.Helper()
	args := []string{"bus-auth", t.TempDir(), "--watcher", "file/default", "-o", "json"}
	for _, n := range names {
		args = append(args, "--operator", n)
	}
	out, _, err := meshlogAt(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	var auth struct{ Operators []operator }
	if err := json.Unmarshal([]byte(out), &auth); err != nil {
		t.Fatal(err)
	}
	return auth.Operators
}

// policyWith returns a MeshPolicy with an operator.
func policyWith(o operator) string {
	return fmt.Sprintf(`apiVersion: meshlog.dev/v1
kind: MeshPolicy
metadata: {name: default}
spec:
  operators: [{name: %s, keys: [%q]}]
`, o.Name, o.Key)
}

// TestOperatorsSign names an operator in the MeshPolicy. What they append is shown with their
// name; what an attacker appends with the same credentials of the bus changes nothing.
func TestOperatorsSign(t *testing.T) {
	operators := operatorsOf(t, "alice", "eve")
	alice, eve := []string{"--operator-key", operators[0].File}, []string{"--operator-key", operators[1].File}

	m := start(t, map[string]string{"a.yaml": strings.ReplaceAll(signedService, "pay", "shop")})
	file := filepath.Join(t.TempDir(), "pay.yaml")
	operatetest.WriteFiles(t, filepath.Dir(file), map[string]string{"pay.yaml": signedService})
	if out, _, _ := m.meshlog(t, nil, "status"); !strings.Contains(out, "counts without a signature") {
		t.Errorf("status does not warn of a mesh without operators:\n%s", out)
	}
	operatetest.WriteFiles(t, m.Config, map[string]string{"policy.yaml": policyWith(operators[0])})
	m.Events.Wait(t, "serving", "version")
	if out, _, _ := m.meshlog(t, nil, "status"); !strings.Contains(out, "1, who sign") {
		t.Errorf("status does not show the operator:\n%s", out)
	}

	for _, act := range [][]string{{"apply", "-f", file}, {"freeze", "file/default", "--reason", "r"}} {
		if _, _, err := m.meshlog(t, nil, act...); err == nil || !strings.Contains(err.Error(), "--operator-key") {
			t.Errorf("%s without a key: %v", act[0], err)
		}
		if _, _, err := m.meshlog(t, nil, append(act, eve...)...); err == nil || !strings.Contains(err.Error(), "no operator") {
			t.Errorf("%s with another key: %v", act[0], err)
		}
	}
	stream := m.follow(t)
	// An attacker with the operators' user of the bus writes to the log itself.
	s := m.sources(t)
	forged := events.Event{ID: "forged", Actor: "alice", Body: &events.Overlay{
		ID: "freeze-forged", Kind: ident.Freeze, Scope: &ident.Scope{Shard: ident.Shard{Source: "file", Instance: "default"}},
	}}
	if _, err := s.Log.Append(t.Context(), []events.Event{forged}, events.Fence{}); err != nil {
		t.Fatal(err)
	}
	m.must(t, nil, append([]string{"apply", "-f", file}, alice...)...)
	m.must(t, nil, append([]string{"freeze", "api/default", "--reason", "r"}, alice...)...)
	var words []struct{ ID, Actor string }
	m.must(t, &words, "release")
	if len(words) != 1 || words[0].Actor != "alice" {
		t.Fatalf("what holds: %+v, want the freeze of alice alone", words)
	}
	m.must(t, nil, append([]string{"release", words[0].ID}, alice...)...)

	archive := filepath.Join(t.TempDir(), "mesh.archive")
	m.must(t, nil, "export", archive)
	for name, log := range map[string]string{
		"the mesh":   m.must(t, nil, "log", "-n", "-1"),
		"an archive": first(meshlogAt(t, "log", "-n", "-1", "--archive", archive)),
	} {
		if n := strings.Count(log, "alice (verified)"); n != 5 { // begin, put, alive, freeze, release
			t.Errorf("%s: the log shows %d records of alice, want 5:\n%s", name, n, log)
		}
		if !strings.Contains(log, "alice (not verified: it has no signature of an operator)") {
			t.Errorf("%s: the log does not say that the forged record is void:\n%s", name, log)
		}
	}
	for signed, void := 0, 0; signed < 5 || void < 1; { // also of records that come
		var r struct{ Operator, Void string }
		if err := stream.Decode(&r); err != nil {
			t.Fatalf("log --follow shows %d records of alice and %d void ones, want 5 and 1: %v", signed, void, err)
		}
		if r.Operator == "alice" {
			signed++
		}
		if r.Void != "" {
			void++
		}
	}
	if h := m.must(t, nil, "history", "ServiceEntry/demo/pay"); !strings.Contains(h, "alice (verified)") {
		t.Errorf("history:\n%s", h)
	}
	if d, _, _ := m.meshlog(t, nil, "diagnostics"); !strings.Contains(d, "void records of operators") {
		t.Errorf("diagnostics:\n%s", d)
	}
	if out, _, err := meshlogAt(t, "verify", "--archive", archive); err != nil {
		t.Errorf("verify: %v\n%s", err, out)
	}
}

func first(out, _ string, _ error) string { return out }

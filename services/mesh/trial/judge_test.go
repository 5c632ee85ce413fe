package trial_test

import (
	"os"
	"runtime/debug"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/gate"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/trial"
	"meshlog.dev/services/mesh/world"
)

// base is a mesh in which every field of an object can have its effect.
type base struct {
	gate  *gate.Gate
	world *world.World
}

func newBase(t testing.TB, file string) *base {
	t.Helper()
	percent := debug.SetGCPercent(400) // thousands of worlds are made, and few bytes live
	t.Cleanup(func() { debug.SetGCPercent(percent) })
	text, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	b := &base{gate.New(), meshtest.World(t, meshtest.YAML(t, string(text))...)}
	problems, err := b.gate.Build(b.world, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if isRefusal(p) {
			t.Fatalf("the base itself: %s", p.Error())
		}
	}
	return b
}

func isRefusal(p problem.Diagnostic) bool {
	return p.Code == "internal" || p.Code == "refused" && strings.Contains(p.Reason, "refused by Envoy")
}

// refusals returns what generation refuses in the base with m in the place of
// the object of k.
func (b *base) refusals(t testing.TB, k ident.Key, m proto.Message) (all []string) {
	t.Helper()
	w, changed, err := b.world.Apply(world.Change{Rows: []world.RowChange{{Row: k.Row(), Key: k, Object: &world.Object{Key: k, Message: m}}}})
	if err != nil {
		t.Fatal(err)
	}
	problems, err := b.gate.Build(w, changed)
	if err != nil {
		return []string{err.Error()}
	}
	for _, p := range problems {
		if isRefusal(p) {
			all = append(all, p.Error())
		}
	}
	return all
}

// withoutEffect returns the fields of a kind that nothing is generated from.
func withoutEffect(kind string) map[string]bool {
	fields := map[string]bool{}
	for _, row := range validate.NoEffects() {
		if row.Kind == kind && !strings.Contains(row.Field, "=") {
			fields[row.Field] = true
		}
	}
	return fields
}

// TestValidationRefusesWhatGenerationRefuses sets each field of each object of
// the base, one at a time, to values at and beyond the limits of its type and
// of Envoy's API. Whatever the generator would leave out, the judge refuses
// before (section 5, item 2), and it is validation that finds it, with the
// field; the trial is for what no list of values contains.
func TestValidationRefusesWhatGenerationRefuses(t *testing.T) {
	mutateAll(t, "base.yaml", "ServiceEntry", "WorkloadEntry", "VirtualService", "DestinationRule", "Gateway", "Service", "EndpointSlice", "Pod", "MeshConfig", "MeshNetworks", "MeshPolicy")
}

// TL-3, TL-5: the same of access logs and traces.
func TestValidationRefusesWhatObserversRefuse(t *testing.T) {
	mutateAll(t, "observed.yaml", "MeshConfig", "Telemetry")
}

func mutateAll(t *testing.T, file string, kinds ...string) {
	t.Helper()
	all := newBase(t, file).world
	for _, name := range kinds {
		kd, ok := kind.ByName(name)
		if !ok {
			t.Fatal(name)
		}
		for o := range all.Objects(name) {
			if strings.HasPrefix(o.Key.Name, "fixed-") {
				continue
			}
			t.Run(name+"/"+o.Key.Name, func(t *testing.T) {
				t.Parallel()
				b := newBase(t, file)
				n, good, generated := 0, 0, map[string]bool{}
				mutants(o.Message, 1, withoutEffect(name), every, func(path string, m proto.Message) {
					n++
					payload, err := kd.Encode(m)
					if err != nil {
						return // it cannot be on the log
					}
					v := ident.Value{Type: kd.TypeURL, Bytes: payload}
					decoded, _, ok := fold.KindJudge{}.Judge(o.Key, v)
					if !ok {
						return
					}
					good++
					if generated[string(payload)] { // another field had led to it
						return
					}
					generated[string(payload)] = true
					found := trial.Problems(decoded)
					if len(found) > 0 {
						t.Errorf("%s: only the trial finds: %s", path, found[0].Error())
						return
					}
					for _, r := range b.refusals(t, o.Key, decoded) {
						t.Errorf("%s: generation refuses what the judge takes: %s", path, r)
						break
					}
				})
				t.Logf("%d mutants, %d of them valid, %d generated", n, good, len(generated))
			})
		}
	}
}

package draft

import (
	"context"
	"fmt"
	"iter"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"meshlog.dev/events"
	"meshlog.dev/events/memlog"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

var api = ident.Shard{Source: ident.API, Instance: "default"}

func entry(name, address string) string {
	return fmt.Sprintf(`---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %[1]s, namespace: demo}
spec:
  hosts: [%[1]s.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: %[2]s}]
`, name, address)
}

func route(name, timeout string) string {
	return fmt.Sprintf(`---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %[1]s, namespace: demo}
spec:
  hosts: [%[1]s.internal]
  http: [{timeout: %[2]s, route: [{destination: {host: %[1]s.internal}}]}]
`, name, timeout)
}

func documents(text string) *Documents {
	d := &Documents{Shard: api}
	d.Parse("draft", []byte(text))
	return d
}

// rig is a log that goes on.
type rig struct {
	*testing.T
	log *memlog.Log
	n   int
}

func (r *rig) append(all ...events.Event) {
	r.Helper()
	for _, e := range all {
		r.n++
		e.ID, e.Observed = fmt.Sprintf("e%d", r.n), time.Unix(1, 0)
		if _, err := r.log.Append(r.Context(), []events.Event{e}, events.Fence{}); err != nil {
			r.Fatal(err)
		}
	}
}

// apply appends objects, and the ends of objects.
func (r *rig) apply(text string, gone ...ident.Key) {
	r.Helper()
	d := documents(text)
	if len(d.Problems) > 0 {
		r.Fatal(d.Problems)
	}
	var steps []Step
	for _, i := range d.Items {
		steps = append(steps, Step{Item: i, Action: Changed})
	}
	for _, k := range gone {
		steps = append(steps, Step{Item: &Item{Key: k}, Action: Deleted})
	}
	r.append(Session(api, NewSession(), "test", steps)...)
}

func (r *rig) past() *past.Past { return &past.Past{Name: "test", Log: r.log, Versions: none{}} }

// none has no versions.
type none struct{}

func (none) Fetch(context.Context, ident.Position) (store.Stored, error) {
	return store.Stored{}, store.ErrNotFound
}

func (none) History(context.Context) iter.Seq2[*store.Manifest, error] {
	return func(func(*store.Manifest, error) bool) {}
}

func (none) Updates(context.Context, ident.Position) iter.Seq2[store.Update, error] {
	return func(func(store.Update, error) bool) {}
}

// A Warm that has answered other questions, and has moved with the log, answers as a ground does
// that is made anew; and no question changes the answer to the next one.
func TestWarm(t *testing.T) {
	r := &rig{T: t, log: memlog.New(time.Now)}
	r.append(command.NewEvent("test", &events.Segment{Epoch: 1, Build: "A"}))
	var first strings.Builder
	for i := range 8 {
		first.WriteString(entry(fmt.Sprintf("s%d", i), "10.0.0.1") + route(fmt.Sprintf("s%d", i), "1s"))
	}
	r.apply(first.String())
	key := func(kind, name string) ident.Key {
		return ident.Key{Source: api.Source, Instance: api.Instance, Kind: kind, Namespace: "demo", Name: name}
	}
	questions := map[string]func() *Question{
		"nothing":   func() *Question { return &Question{Documents: documents(entry("s0", "10.0.0.1"))} },
		"a timeout": func() *Question { return &Question{Documents: documents(route("s1", "9s"))} },
		"for one proxy": func() *Question {
			return &Question{Documents: documents(route("s1", "8s")), Proxy: &proxy.Proxy{ID: "app", Type: proxy.Sidecar, Namespace: "demo"}}
		},
		"an endpoint":  func() *Question { return &Question{Documents: documents(entry("s2", "10.0.0.9"))} },
		"a new object": func() *Question { return &Question{Documents: documents(entry("new", "10.0.0.3"))} },
		"a refusal": func() *Question {
			return &Question{Documents: documents(strings.Replace(entry("s3", "10.0.0.1"), "STATIC", "DNS", 1) + route("s3", "-1s"))}
		},
		"a loss": func() *Question {
			return &Question{Documents: documents(""), Deletes: []string{"ServiceEntry/demo/s0", "ServiceEntry/demo/s1", "ServiceEntry/demo/s2", "ServiceEntry/demo/s3", "ServiceEntry/demo/s4"}}
		},
		"a policy": func() *Question {
			return &Question{Documents: documents("apiVersion: meshlog.dev/v1\nkind: MeshPolicy\nmetadata: {name: default}\nspec: {guard: {disabled: true}, rollout: {steps: [{percent: 5}]}}\n")}
		},
	}
	w := &Warm{}
	for step, change := range []func(){
		func() {},
		func() { r.apply(entry("s2", "10.0.0.2") + route("s1", "3s")) },
		func() { r.append(command.NewEvent("test", &events.Alive{Shard: api, Session: "other"})) }, // changes nothing
		func() { r.apply(entry("more", "10.0.0.7"), key("VirtualService", "s4")) },
		func() {
			r.apply("apiVersion: meshlog.dev/v1\nkind: MeshPolicy\nmetadata: {name: default}\nspec: {rollout: {steps: [{percent: 5}]}}\n")
		},
		func() {
			r.append(command.NewEvent("test", &events.Segment{Epoch: 2, Build: "A"}))
			r.apply(first.String())
		},
	} {
		change()
		for range 2 { // maps give another order each time
			for name, q := range questions {
				t.Run(fmt.Sprintf("%d %s", step, name), func(t *testing.T) {
					r.same(t, w, q)
				})
			}
		}
	}
	other := &rig{T: t, log: memlog.New(time.Now)} // the log was made again
	other.append(command.NewEvent("test", &events.Segment{Epoch: 1, Build: "A"}))
	for range 12 {
		other.apply(first.String())
	}
	other.same(t, w, questions["a timeout"])
}

// same asks both, and demands the same answer.
func (r *rig) same(t *testing.T, w *Warm, q func() *Question) {
	t.Helper()
	ask := func() *Question {
		n := q()
		n.As = api
		return n
	}
	got, problems, err := w.Ask(t.Context(), r.past(), ask())
	if err != nil {
		t.Fatal(err)
	}
	bounds, err := r.log.Bounds(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	f, err := past.Fold(t.Context(), r.past(), bounds.Last, nil)
	if err != nil {
		t.Fatal(err)
	}
	g, err := NewGround(f)
	if err != nil {
		t.Fatal(err)
	}
	want, wanted, err := g.Ask(ask())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(View{}), cmpopts.SortSlices(func(a, b command.Diagnostic) bool { return a.String() < b.String() })); diff != "" {
		t.Errorf("the answers differ (-anew +warm):\n%s", diff)
	}
	if len(problems) != len(wanted) || want.Failed() != got.Failed() {
		t.Errorf("problems: %v, anew %v", problems, wanted)
	}
}

// A change that a freeze or a rollback withholds changes nothing, and the answer names the
// operator's act.
func TestWithheld(t *testing.T) {
	r := &rig{T: t, log: memlog.New(time.Now)}
	r.append(command.NewEvent("test", &events.Segment{Epoch: 1, Build: "A"}))
	r.apply(entry("s0", "10.0.0.1") + route("s0", "1s"))
	ask := func(want string, named ...string) {
		t.Helper()
		q := &Question{Documents: documents(route("s0", "9s")), As: api}
		v, _, err := (&Warm{}).Ask(t.Context(), r.past(), q)
		if err != nil {
			t.Fatal(err)
		}
		if got := v.Summary(); got != want {
			t.Errorf("the summary is %q, want %q", got, want)
		}
		text := fmt.Sprint(v.Problems)
		for _, n := range named {
			if !strings.Contains(text, n) {
				t.Errorf("the problems are %s, want %q in them", text, n)
			}
		}
		if len(named) == 0 && len(v.Problems) > 0 {
			t.Errorf("the problems are %s, want none", text)
		}
	}
	ask("1 object would differ.")
	r.append(command.NewEvent("test", &events.Overlay{ID: "freeze-1", Kind: ident.Freeze, Reason: "night", Scope: &ident.Scope{Shard: api}}))
	ask("Nothing would change: an operator keeps what the sources offer from being served.", "withheld", "freeze-1", "VirtualService demo/s0", "meshlog release freeze-1")
	r.append(command.NewEvent("test", &events.Overlay{ID: "freeze-1", Remove: true}))
	ask("1 object would differ.")
}

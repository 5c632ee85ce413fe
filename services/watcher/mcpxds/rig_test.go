package mcpxds_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/deploy/testkit/mcptest"
	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/mcpxds"
)

// rig runs a watcher of a scripted source as a publisher does.
type rig struct {
	*testing.T
	source *mcptest.Source
	inbox  watcher.Inbox
	// problems are those that the run reported last, by origin.
	problems map[string][]problem.Diagnostic
}

// The times that tests wait for. A listing that lacks a type takes the first one.
const (
	answerIn, versionsIn, doubtFor = 2 * time.Second, 300 * time.Millisecond, 500 * time.Millisecond
)

// watch starts a watcher; change may change its configuration.
func watch(t *testing.T, s *mcptest.Source, change func(*mcpxds.Config)) *rig {
	t.Helper()
	cfg := mcpxds.Config{Address: s.Address()}
	if change != nil {
		change(&cfg)
	}
	return start(t, s, mcpxds.New(cfg).Hasten(answerIn, versionsIn, doubtFor))
}

func start(t *testing.T, s *mcptest.Source, w *mcpxds.Watcher) *rig {
	r := &rig{T: t, source: s, inbox: watcher.NewInbox(w, nil)}
	r.run()
	t.Cleanup(r.inbox.Rest)
	return r
}

// run runs the watcher from the start.
func (r *rig) run() {
	r.problems = map[string][]problem.Diagnostic{}
	r.inbox.Watch(r.Context())
}

// next returns the next input that is no report of problems.
func (r *rig) next() watcher.Input {
	r.Helper()
	for {
		in, err := r.inbox.Wait(r.Context(), time.Now().Add(time.Minute))
		if err != nil {
			r.Fatal(err)
		}
		if said, is := in.(watcher.Reported); is {
			r.problems[said.Origin] = said.Diagnostics
			continue
		}
		if in == nil {
			r.Fatal("nothing came for a minute")
		}
		return in
	}
}

func (r *rig) list() watcher.Listing {
	r.Helper()
	in := r.next()
	l, ok := in.(watcher.Listed)
	if !ok {
		r.Fatalf("%+v came, want a listing", in)
	}
	return l.Listing
}

func (r *rig) change() []watcher.Object {
	r.Helper()
	in := r.next()
	c, ok := in.(watcher.Changed)
	if !ok {
		r.Fatalf("%+v came, want a change", in)
	}
	return c.Set
}

// ends waits for the end of the run.
func (r *rig) ends() error {
	r.Helper()
	in := r.next()
	e, ok := in.(watcher.Ended)
	if !ok {
		r.Fatalf("%+v came, want the end of the run", in)
	}
	return e.Err
}

// problem waits for a problem with this code, and returns it.
func (r *rig) problem(code string) problem.Diagnostic {
	r.Helper()
	for {
		for _, ds := range r.problems {
			for _, d := range ds {
				if d.Code == code {
					return d
				}
			}
		}
		in, err := r.inbox.Wait(r.Context(), time.Now().Add(time.Minute))
		if err != nil || in == nil {
			r.Fatalf("no problem %q: %v", code, err)
		}
		said, is := in.(watcher.Reported)
		if !is {
			r.Fatalf("%+v came, want the problem %q", in, code)
		}
		r.problems[said.Origin] = said.Diagnostics
	}
}

// entries returns resources with ServiceEntries of these names.
func entries(names ...string) (all []*anypb.Any) {
	for _, n := range names {
		all = append(all, mcptest.Resource("shop/"+n, entry(n+".example.com")))
	}
	return all
}

// numbered returns n names.
func numbered(n int) (names []string) {
	for i := range n {
		names = append(names, fmt.Sprintf("n%03d", i))
	}
	return names
}

// names returns "+name" for each object, and "-name" for each deletion.
func names(set []watcher.Object) string {
	var all []string
	for _, o := range set {
		op := "+"
		if o.Delete {
			op = "-"
		}
		all = append(all, op+o.Name)
	}
	return strings.Join(all, " ")
}

// undecoded returns what is wrong with an object; "" if it is decoded.
func undecoded(t *testing.T, o watcher.Object) (field, reason string) {
	t.Helper()
	if o.Value.Type != ident.Undecoded {
		return "", ""
	}
	var u registryv1.Undecoded
	if err := proto.Unmarshal(o.Value.Bytes, &u); err != nil {
		t.Fatal(err)
	}
	return u.GetField(), u.GetError()
}

// typesOf returns all types of a kind that a source is asked for, the newest first.
func typesOf(name string) (types []string) {
	for _, k := range kind.Istio() {
		if k.Name == name {
			for _, v := range k.Versions {
				types = append(types, k.Group+"/"+v+"/"+k.Name)
			}
		}
	}
	return types
}

// allTypes returns all types that a source is asked for, sorted.
func allTypes() []string {
	all := map[string]bool{}
	for _, k := range kind.Istio() {
		for _, url := range typesOf(k.Name) {
			all[url] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

const alpha = "networking.istio.io/v1alpha3/ServiceEntry"

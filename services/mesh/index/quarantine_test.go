package index_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	. "meshlog.dev/services/mesh/meshtest"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
)

const (
	userAgent = "envoy 1.38.0"
	release   = userAgent + " (state of the world)"
)

// A quarantine affects the clients that it names and no others.
func TestReplacements(t *testing.T) {
	bad := [16]byte{1}
	pc := PushContext(t,
		Quarantine("a", release, ident.CDS, "web", bad, Cluster("web", 1)),
		Quarantine("b", release, ident.CDS, "web", [16]byte{2}, nil),
		Quarantine("c", release, ident.CDS, "web", bad, nil), // the same content as a: the greater ID wins
		Quarantine("d", "envoy 1.37.0 (state of the world)", ident.LDS, "ingress", bad, nil),
	)
	class := index.Classify(pc, &proxy.Proxy{UserAgent: userAgent})
	want := []world.Replacement{{Name: "web", Sum: [16]byte{2}}, {Name: "web", Sum: bad}}
	if diff := cmp.Diff(want, pc.Replacements(ident.CDS, class.Release(ident.CDS))); diff != "" {
		t.Errorf("clusters (-want +got):\n%s", diff)
	}
	if got := pc.Replacements(ident.LDS, class.Release(ident.LDS)); got != nil || class.Release(ident.LDS) != "" {
		t.Errorf("a quarantine for another release replaces listeners: %v", got)
	}
	if got := index.Classify(pc, &proxy.Proxy{UserAgent: "envoy 1.36.0"}); got != index.Classify(PushContext(t), &proxy.Proxy{}) {
		t.Errorf("a release without quarantines has the class %v, want the common one", got)
	}
	if got := class.Only(ident.CDS).Release(ident.CDS); got != release {
		t.Errorf("the class of one type has the release %q", got)
	}
	if !strings.Contains(class.String(), release) {
		t.Errorf("String returns %q, want the release in it", class)
	}
}

// Classes change only when a client gets its first quarantine for a type, or when
// its last one ends.
func TestQuarantineClasses(t *testing.T) {
	w := World(t, Put("a", Cluster("a", 1)))
	pc := index.NewPushContext(w)
	for _, step := range []struct {
		name    string
		changes []Change
		same    bool
	}{
		{"nothing", nil, true},
		{"the first", []Change{Quarantine("q", release, ident.CDS, "a", [16]byte{1}, nil)}, false},
		{"an object", []Change{Put("a", Cluster("a", 2))}, true},
		{"another content", []Change{Quarantine("r", release, ident.CDS, "a", [16]byte{2}, nil)}, true},
		{"another type", []Change{Quarantine("s", release, ident.LDS, "a", [16]byte{2}, nil)}, false},
		{"one of two", []Change{Quarantine("q", "", ident.CDS, "", [16]byte{}, nil).Gone()}, true},
		{"both", []Change{Quarantine("r", "", ident.CDS, "", [16]byte{}, nil).Gone()}, false},
	} {
		next, keys, err := w.Apply(Rows(step.changes...))
		if err != nil {
			t.Fatal(err)
		}
		after, _ := pc.Next(next, keys)
		if same := after.SameClasses(pc); same != step.same {
			t.Errorf("%s: same classes: %t", step.name, same)
		}
		w, pc = next, after
	}
}

func TestQuarantineDiagnostic(t *testing.T) {
	w := World(t, Quarantine("q", release, ident.LDS, "ingress", [16]byte{1}, nil))
	var got []string
	for _, d := range w.Diagnostics() {
		got = append(got, d.Code+" "+d.Proto().GetObject()+": "+d.Reason)
	}
	if diff := cmp.Diff([]string{"quarantined Listener ingress: envoy 1.38.0 (state of the world) rejects it: it cannot be used"}, got); diff != "" {
		t.Errorf("diagnostics (-want +got):\n%s", diff)
	}
}

func TestClassEncoding(t *testing.T) {
	pc := PushContext(t, PutFor("b", Group("m"), Cluster("b", 1)))
	class := index.Classify(pc, &proxy.Proxy{Cluster: "m", UserAgent: userAgent}).Only(ident.CDS)
	got, err := index.DecodeClass(class.Encode())
	if err != nil || got != class {
		t.Errorf("read %v, %v; wrote %v", got, err, class)
	}
	for _, text := range []string{"", "{}", `{"x":1}`, string(class.Encode()) + " ", strings.Replace(string(class.Encode()), "Raw", "Rav", 1)} {
		if _, err := index.DecodeClass([]byte(text)); err == nil {
			t.Errorf("DecodeClass accepts %q", text)
		}
	}
}

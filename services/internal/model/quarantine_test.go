package model_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/services/internal/model"
	. "meshlog.dev/services/internal/model/modeltest"
)

const release = "envoy 1.38.0"

// A quarantine concerns the clients that it names, and no others.
func TestReplacements(t *testing.T) {
	bad := [16]byte{1}
	pc := PushContext(t,
		Quarantine("a", release, model.CDS, "web", bad, Cluster("web", 1)),
		Quarantine("b", release, model.CDS, "web", [16]byte{2}, nil),
		Quarantine("c", release, model.CDS, "web", bad, nil), // says it again: the greater id counts
		Quarantine("d", "envoy 1.37.0", model.LDS, "ingress", bad, nil),
	)
	class := model.Classify(pc, &model.Proxy{UserAgent: release})
	want := []model.Replacement{{Name: "web", Sum: [16]byte{2}}, {Name: "web", Sum: bad}}
	if diff := cmp.Diff(want, pc.Replacements(model.CDS, class.Release(model.CDS))); diff != "" {
		t.Errorf("clusters (-want +got):\n%s", diff)
	}
	if got := pc.Replacements(model.LDS, class.Release(model.LDS)); got != nil || class.Release(model.LDS) != "" {
		t.Errorf("listeners of another release are replaced: %v", got)
	}
	if got := model.Classify(pc, &model.Proxy{UserAgent: "envoy 1.36.0"}); got != model.Classify(PushContext(t), &model.Proxy{}) {
		t.Errorf("a release of which nothing is in quarantine is of class %v", got)
	}
	if got := class.Only(model.CDS).Release(model.CDS); got != release {
		t.Errorf("the class of one type is of release %q", got)
	}
	if !strings.Contains(class.String(), release) {
		t.Errorf("for people, the class is %q", class)
	}
}

// Classes are others only where a quarantine names a client that none named
// before, or the last one of a client goes.
func TestQuarantineClasses(t *testing.T) {
	w := World(t, Put("a", Cluster("a", 1)))
	pc := model.NewPushContext(w)
	for _, step := range []struct {
		name    string
		changes []Change
		same    bool
	}{
		{"nothing", nil, true},
		{"the first", []Change{Quarantine("q", release, model.CDS, "a", [16]byte{1}, nil)}, false},
		{"an object", []Change{Put("a", Cluster("a", 2))}, true},
		{"another content", []Change{Quarantine("r", release, model.CDS, "a", [16]byte{2}, nil)}, true},
		{"another type", []Change{Quarantine("s", release, model.LDS, "a", [16]byte{2}, nil)}, false},
		{"one of two", []Change{Quarantine("q", "", model.CDS, "", [16]byte{}, nil).Gone()}, true},
		{"both", []Change{Quarantine("r", "", model.CDS, "", [16]byte{}, nil).Gone()}, false},
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
	w := World(t, Quarantine("q", release, model.LDS, "ingress", [16]byte{1}, nil))
	var got []string
	for _, d := range w.Diagnostics() {
		got = append(got, d.Code+" "+d.Proto().GetObject()+": "+d.Reason)
	}
	if diff := cmp.Diff([]string{"quarantined Listener ingress: envoy 1.38.0 rejects it: it cannot be used"}, got); diff != "" {
		t.Errorf("diagnostics (-want +got):\n%s", diff)
	}
}

func TestClassEncoding(t *testing.T) {
	pc := PushContext(t, PutFor("b", Group("m"), Cluster("b", 1)))
	class := model.Classify(pc, &model.Proxy{Cluster: "m", UserAgent: release}).Only(model.CDS)
	got, err := model.DecodeClass(class.Encode())
	if err != nil || got != class {
		t.Errorf("read %v, %v; wrote %v", got, err, class)
	}
	for _, text := range []string{"", "{}", `{"x":1}`, string(class.Encode()) + " ", strings.Replace(string(class.Encode()), "Raw", "Rav", 1)} {
		if _, err := model.DecodeClass([]byte(text)); err == nil {
			t.Errorf("%q is a class", text)
		}
	}
}

package events

import (
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/proto/ident"
)

func TestSubjects(t *testing.T) {
	tests := []struct {
		subject Subject
		parts   SubjectParts
	}{
		{"file.default.Resource.shop", SubjectParts{ObjectClass, ident.Shard{Source: "file", Instance: "default"}, "Resource", "shop"}},
		{"file.default.MeshPolicy._", SubjectParts{ObjectClass, ident.Shard{Source: "file", Instance: "default"}, "MeshPolicy", ""}},
		{"kubernetes.eu-1=2Eprod.Service.a_b", SubjectParts{ObjectClass, ident.Shard{Source: "kubernetes", Instance: "eu-1.prod"}, "Service", "a_b"}},
		{"=5Fbuilder.=5Fctl.=5Foperator.=5F", SubjectParts{ObjectClass, ident.Shard{Source: "_builder", Instance: "_ctl"}, "_operator", "_"}},
		{"=.=2A.=3E.=3D", SubjectParts{ObjectClass, ident.Shard{Source: "", Instance: "*"}, ">", "="}},
		{"=20.=00.=C3=A9.=0A", SubjectParts{ObjectClass, ident.Shard{Source: " ", Instance: "\x00"}, "é", "\n"}},
		{"file.default._ctl", SubjectParts{ControlClass, ident.Shard{Source: "file", Instance: "default"}, "", ""}},
		{"=5Fbuilder.=5Fctl._ctl", SubjectParts{ControlClass, ident.Shard{Source: "_builder", Instance: "_ctl"}, "", ""}},
	}
	for _, test := range tests {
		p := test.parts
		got := ControlSubject(p.Shard)
		if p.Class == ObjectClass {
			got = ObjectSubject(ident.Key{Source: p.Shard.Source, Instance: p.Shard.Instance, Kind: p.Kind, Namespace: p.Namespace, Name: "any"})
		}
		if got != test.subject {
			t.Errorf("subject of %+v = %q, want %q", p, got, test.subject)
		}
		parts, err := ParseSubject(test.subject)
		if diff := cmp.Diff(p, parts); err != nil || diff != "" {
			t.Errorf("ParseSubject(%q): %v (-want +got):\n%s", test.subject, err, diff)
		}
	}
}

func TestSubjectOf(t *testing.T) {
	shard := ident.Shard{Source: "file", Instance: "default"}
	tests := []struct {
		body  Body
		want  Subject
		class SubjectClass
	}{
		{&Object{Key: ident.Key{Source: "file", Instance: "default", Kind: "Resource", Namespace: "shop", Name: "web"}}, "file.default.Resource.shop", ObjectClass},
		{&Begin{Shard: shard}, "file.default._ctl", ControlClass},
		{&Alive{Shard: shard}, "file.default._ctl", ControlClass},
		{&Segment{}, SegmentSubject, BuilderClass},
		{&Overlay{Kind: ident.Hold}, BuilderOverlaySubject, BuilderClass},
		{&Overlay{Kind: ident.Rollback}, OperatorOverlaySubject, OperatorClass},
		{&Overlay{Kind: ident.Quarantine}, BuilderOverlaySubject, BuilderClass},
		{&Overlay{Kind: ident.Quarantine, Remove: true}, BuilderOverlaySubject, BuilderClass},
		{&Overlay{Remove: true}, OperatorOverlaySubject, OperatorClass},
	}
	for _, test := range tests {
		got, err := SubjectOf(Event{Body: test.body})
		if got != test.want || err != nil {
			t.Errorf("SubjectOf(%T) = %q, %v, want %q", test.body, got, err, test.want)
		}
		if p, err := ParseSubject(got); p.Class != test.class || err != nil {
			t.Errorf("ParseSubject(%q) = %+v, %v", got, p, err)
		}
	}
	if s, err := SubjectOf(Event{}); err == nil {
		t.Errorf("SubjectOf an event without a body = %q", s)
	}
	long := &Object{Key: ident.Key{Source: strings.Repeat("*", 400)}}
	if s, err := SubjectOf(Event{Body: long}); err == nil {
		t.Errorf("SubjectOf = %d bytes", len(s))
	}
}

func TestParseSubjectRefuses(t *testing.T) {
	for _, s := range []Subject{
		"", ".", "a", "a.b", "a.b.c", "a.b.c.d.e", "a.b._ctl.d", "a._ctl", "_ctl.a.b.c",
		"_builder.segments", "_builder.segment.x", "_operator.segment", "a.b._x", "a.b._.d", "a.b.c._x", "_.b._ctl",
		"a.b..d", ".b.c.d", "a.b.c.", "a.b.c.*", "a.b.c.>", "a.b.c.d e", "a.b.c.é",
		"a.b.c.=", "a.b.c.=2e", "a.b.c.=41", "a.b.c.=4", "a.b.c.=G0", "a.b.c.==", "a.b.c.a=5F", "a.b.c.x=", "=.=._ctl ",
	} {
		if p, err := ParseSubject(s); err == nil {
			t.Errorf("ParseSubject(%q) = %+v", s, p)
		}
	}
}

func TestCutDomain(t *testing.T) {
	if got, want := SegmentSubject.In("mesh"), "meshlog.ev.mesh._builder.segment"; got != want {
		t.Errorf("In = %q, want %q", got, want)
	}
	if got, want := AllSubjects("eu.prod"), "meshlog.ev.eu=2Eprod.>"; got != want {
		t.Errorf("AllSubjects = %q, want %q", got, want)
	}
	domain, s, err := CutDomain("meshlog.ev.eu=2Eprod._builder.segment")
	if domain != "eu.prod" || s != SegmentSubject || err != nil {
		t.Errorf("CutDomain = %q, %q, %v", domain, s, err)
	}
	for _, full := range []string{"", "meshlog.ev.", "meshlog.ev.mesh", "meshlog.ver.mesh.x", "meshlog.ev..x", "meshlog.ev.e*.x"} {
		if d, s, err := CutDomain(full); err == nil {
			t.Errorf("CutDomain(%q) = %q, %q", full, d, s)
		}
	}
}

// natsToken matches what every server and client accepts as one literal token.
var natsToken = regexp.MustCompile(`^[A-Za-z0-9_=-]+$`)

// FuzzSubject encodes any names as valid tokens and decodes them again.
func FuzzSubject(f *testing.F) {
	f.Add("mesh", "file", "default", "Resource", "shop")
	for _, s := range []string{"", "_", "_ctl", "_builder", "_operator", ".", "*", ">", "a.b", " ", "\x00", "é", "\xff", "=", "=2E", "segment", "overlay", "a\nb", "/", "$JS"} {
		f.Add(s, s, s, s, s)
		f.Add("mesh", s, "default", s, "")
	}
	f.Fuzz(func(t *testing.T, domain, source, instance, kind, namespace string) {
		shard := ident.Shard{Source: source, Instance: instance}
		for _, want := range []struct {
			s Subject
			p SubjectParts
		}{
			{ObjectSubject(ident.Key{Source: source, Instance: instance, Kind: kind, Namespace: namespace, Name: ""}), SubjectParts{ObjectClass, shard, kind, namespace}},
			{ControlSubject(shard), SubjectParts{ControlClass, shard, "", ""}},
		} {
			full := want.s.In(domain)
			for token := range strings.SplitSeq(full, ".") {
				if !natsToken.MatchString(token) {
					t.Fatalf("%q: token %q", full, token)
				}
			}
			d, s, err := CutDomain(full)
			if d != domain || s != want.s || err != nil {
				t.Fatalf("CutDomain(%q) = %q, %q, %v", full, d, s, err)
			}
			p, err := ParseSubject(s)
			if diff := cmp.Diff(want.p, p); err != nil || diff != "" {
				t.Fatalf("ParseSubject(%q): %v (-want +got):\n%s", s, err, diff)
			}
		}
	})
}

// FuzzParseSubject checks that an accepted subject is the one for its parts.
func FuzzParseSubject(f *testing.F) {
	for _, s := range []string{"file.default.Resource._", "=.=._ctl", "_builder.segment", "a.b.c.=5F", "a.b.c.="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParseSubject(Subject(s))
		if err != nil {
			return
		}
		var again Subject
		switch p.Class {
		case ObjectClass:
			again = ObjectSubject(ident.Key{Source: p.Shard.Source, Instance: p.Shard.Instance, Kind: p.Kind, Namespace: p.Namespace, Name: ""})
		case ControlClass:
			again = ControlSubject(p.Shard)
		default:
			return
		}
		if again != Subject(s) {
			t.Fatalf("%q was taken, but %+v lies under %q", s, p, again)
		}
	})
}

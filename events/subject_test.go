package events

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"meshlog.dev/proto/ident"
)

func TestSubjects(t *testing.T) {
	tests := []struct {
		subject Subject
		parts   subjectParts
	}{
		{"file.default.Resource.shop", subjectParts{objectClass, ident.Shard{Source: "file", Instance: "default"}, "Resource", "shop"}},
		{"file.default.MeshPolicy._", subjectParts{objectClass, ident.Shard{Source: "file", Instance: "default"}, "MeshPolicy", ""}},
		{"kubernetes.eu-1=2Eprod.Service.a_b", subjectParts{objectClass, ident.Shard{Source: "kubernetes", Instance: "eu-1.prod"}, "Service", "a_b"}},
		{"=5Fbuilder.=5Fctl.=5Foperator.=5F", subjectParts{objectClass, ident.Shard{Source: "_builder", Instance: "_ctl"}, "_operator", "_"}},
		{"=.=2A.=3E.=3D", subjectParts{objectClass, ident.Shard{Source: "", Instance: "*"}, ">", "="}},
		{"=20.=00.=C3=A9.=0A", subjectParts{objectClass, ident.Shard{Source: " ", Instance: "\x00"}, "é", "\n"}},
		{"file.default._ctl", subjectParts{controlClass, ident.Shard{Source: "file", Instance: "default"}, "", ""}},
		{"=5Fbuilder.=5Fctl._ctl", subjectParts{controlClass, ident.Shard{Source: "_builder", Instance: "_ctl"}, "", ""}},
	}
	for _, test := range tests {
		p := test.parts
		got := ControlSubject(p.Shard)
		if p.Class == objectClass {
			got = ObjectSubject(ident.Key{Source: p.Shard.Source, Instance: p.Shard.Instance, Kind: p.Kind, Namespace: p.Namespace, Name: "any"})
		}
		if got != test.subject {
			t.Errorf("subject of %+v = %q, want %q", p, got, test.subject)
		}
		parts, err := parseSubject(test.subject)
		if diff := cmp.Diff(p, parts); err != nil || diff != "" {
			t.Errorf("parseSubject(%q): %v (-want +got):\n%s", test.subject, err, diff)
		}
	}
}

// ACL-3: a selection of objects has the tokens of their subjects, and * for all names.
func TestObjects(t *testing.T) {
	name := func(s string) *string { return &s }
	for want, o := range map[Subject]Objects{
		"file.default.Resource.shop": {"file", name("default"), name("Resource"), name("shop")},
		"file.default.MeshPolicy._":  {"file", name("default"), name("MeshPolicy"), name("")},
		"file.default.Pod.*":         {"file", name("default"), name("Pod"), nil},
		"file.default.*.x=2Ey":       {"file", name("default"), nil, name("x.y")},
		"=5Fx.*.=2A.=5F":             {"_x", nil, name("*"), name("_")},
		"kubernetes.*.*.*":           {"kubernetes", nil, nil, nil},
	} {
		if got := o.Subjects(); got != want {
			t.Errorf("subjects of %+v are %q, want %q", o, got, want)
		}
	}
}

func TestSubjectOf(t *testing.T) {
	shard := ident.Shard{Source: "file", Instance: "default"}
	tests := []struct {
		body  Body
		want  Subject
		class subjectClass
	}{
		{&Object{Key: ident.Key{Source: "file", Instance: "default", Kind: "Resource", Namespace: "shop", Name: "web"}}, "file.default.Resource.shop", objectClass},
		{&Begin{Shard: shard}, "file.default._ctl", controlClass},
		{&Alive{Shard: shard}, "file.default._ctl", controlClass},
		{&Segment{}, SegmentSubject, builderClass},
		{&Overlay{Kind: ident.Hold}, BuilderOverlaySubject, builderClass},
		{&Overlay{Kind: ident.Rollback}, OperatorOverlaySubject, operatorClass},
		{&Overlay{Kind: ident.Quarantine}, BuilderOverlaySubject, builderClass},
		{&Overlay{Kind: ident.Quarantine, Remove: true}, BuilderOverlaySubject, builderClass},
		{&Overlay{Remove: true}, OperatorOverlaySubject, operatorClass},
	}
	for _, test := range tests {
		got, err := SubjectOf(Event{Body: test.body})
		if got != test.want || err != nil {
			t.Errorf("SubjectOf(%T) = %q, %v, want %q", test.body, got, err, test.want)
		}
		if p, err := parseSubject(got); p.Class != test.class || err != nil {
			t.Errorf("parseSubject(%q) = %+v, %v", got, p, err)
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
		if p, err := parseSubject(s); err == nil {
			t.Errorf("parseSubject(%q) = %+v", s, p)
		}
	}
}

func TestIn(t *testing.T) {
	if got, want := SegmentSubject.In("mesh"), "meshlog.ev.mesh._builder.segment"; got != want {
		t.Errorf("In = %q, want %q", got, want)
	}
	if got, want := AllSubjects("eu.prod"), "meshlog.ev.eu=2Eprod.>"; got != want {
		t.Errorf("AllSubjects = %q, want %q", got, want)
	}
	domain, s, err := cutDomain("meshlog.ev.eu=2Eprod._builder.segment")
	if domain != "eu.prod" || s != SegmentSubject || err != nil {
		t.Errorf("cutDomain = %q, %q, %v", domain, s, err)
	}
	for _, full := range []string{"", "meshlog.ev.", "meshlog.ev.mesh", "meshlog.ver.mesh.x", "meshlog.ev..x", "meshlog.ev.e*.x"} {
		if d, s, err := cutDomain(full); err == nil {
			t.Errorf("cutDomain(%q) = %q, %q", full, d, s)
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
			p subjectParts
		}{
			{ObjectSubject(ident.Key{Source: source, Instance: instance, Kind: kind, Namespace: namespace, Name: ""}), subjectParts{objectClass, shard, kind, namespace}},
			{ControlSubject(shard), subjectParts{controlClass, shard, "", ""}},
		} {
			full := want.s.In(domain)
			for token := range strings.SplitSeq(full, ".") {
				if !natsToken.MatchString(token) {
					t.Fatalf("%q: token %q", full, token)
				}
			}
			d, s, err := cutDomain(full)
			if d != domain || s != want.s || err != nil {
				t.Fatalf("cutDomain(%q) = %q, %q, %v", full, d, s, err)
			}
			p, err := parseSubject(s)
			if diff := cmp.Diff(want.p, p); err != nil || diff != "" {
				t.Fatalf("parseSubject(%q): %v (-want +got):\n%s", s, err, diff)
			}
		}
	})
}

// FuzzParseSubject checks that an accepted subject is built again from its parts.
func FuzzParseSubject(f *testing.F) {
	for _, s := range []string{"file.default.Resource._", "=.=._ctl", "_builder.segment", "a.b.c.=5F", "a.b.c.="} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := parseSubject(Subject(s))
		if err != nil {
			return
		}
		var again Subject
		switch p.Class {
		case objectClass:
			again = ObjectSubject(ident.Key{Source: p.Shard.Source, Instance: p.Shard.Instance, Kind: p.Kind, Namespace: p.Namespace, Name: ""})
		case controlClass:
			again = ControlSubject(p.Shard)
		default:
			return
		}
		if again != Subject(s) {
			t.Fatalf("%q was accepted, but its parts %+v have the subject %q", s, p, again)
		}
	})
}

// subjectClass is a form of subjects.
type subjectClass uint8

// The forms of subjects.
const (
	objectClass   subjectClass = iota + 1 // objects of a shard, kind and namespace
	controlClass                          // begin and alive of a shard
	builderClass                          // SegmentSubject, BuilderOverlaySubject
	operatorClass                         // OperatorOverlaySubject
)

// subjectParts are the parts of a subject.
type subjectParts struct {
	Class     subjectClass
	Shard     ident.Shard // of objectClass and controlClass
	Kind      string      // of objectClass
	Namespace string      // of objectClass
}

// parseSubject returns the parts of s. It accepts exactly the subjects that
// SubjectOf and ControlSubject return. Because it can invert both functions, no
// subject has two meanings.
func parseSubject(s Subject) (subjectParts, error) {
	switch s {
	case SegmentSubject, BuilderOverlaySubject:
		return subjectParts{Class: builderClass}, nil
	case OperatorOverlaySubject:
		return subjectParts{Class: operatorClass}, nil
	}
	tokens := strings.Split(string(s), ".")
	control := len(tokens) == 3 && tokens[2] == controlToken
	if !control && len(tokens) != 4 {
		return subjectParts{}, fmt.Errorf("subject %q: want <source>.<instance>.<kind>.<namespace> or <source>.<instance>.%s", s, controlToken)
	}
	names := tokens
	if control || tokens[3] == noNamespace {
		names = tokens[:len(tokens)-1]
	}
	var n [4]string
	for i, token := range names {
		var err error
		if n[i], err = parseToken(token); err != nil {
			return subjectParts{}, fmt.Errorf("subject %q: token %q: %w", s, token, err)
		}
	}
	shard := ident.Shard{Source: n[0], Instance: n[1]}
	if control {
		return subjectParts{Class: controlClass, Shard: shard}, nil
	}
	if len(names) == 4 && n[3] == "" {
		return subjectParts{}, fmt.Errorf("subject %q: write %q for no namespace", s, noNamespace)
	}
	return subjectParts{Class: objectClass, Shard: shard, Kind: n[2], Namespace: n[3]}, nil
}

// cutDomain is the reverse of In.
func cutDomain(full string) (domain string, s Subject, err error) {
	rest, ok := strings.CutPrefix(full, subjectPrefix)
	token, subject, ok2 := strings.Cut(rest, ".")
	if !ok || !ok2 {
		return "", "", fmt.Errorf("subject %q: want %s<domain>.<subject>", full, subjectPrefix)
	}
	if domain, err = parseToken(token); err != nil {
		return "", "", fmt.Errorf("subject %q: domain %q: %w", full, token, err)
	}
	return domain, Subject(subject), nil
}

// parseToken is the reverse of Token. It refuses tokens that Token does not make.
func parseToken(token string) (string, error) {
	if token == "=" {
		return "", nil
	}
	var b strings.Builder
	for i := 0; i < len(token); i++ {
		c := token[i]
		if c != '=' {
			b.WriteByte(c)
			continue
		}
		if i+2 >= len(token) {
			return "", errors.New("ends within an escape")
		}
		hi := strings.IndexByte(upperHex, token[i+1])
		lo := strings.IndexByte(upperHex, token[i+2])
		if hi < 0 || lo < 0 {
			return "", errors.New("has an escape that is not =HH in upper-case hex")
		}
		b.WriteByte(byte(hi<<4 | lo))
		i += 2
	}
	if Token(b.String()) != token {
		return "", errors.New("is reserved, or escaped in another way than Token escapes it")
	}
	return b.String(), nil
}

package validate

import (
	"cmp"
	"fmt"
	"regexp/syntax"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	maglevv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/maglev/v3"
	ringhashv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/ring_hash/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"

	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/protosearch"
)

const (
	maxProblems = 20 // of one object; more help nobody
	maxNesting  = 16 // of Any in Any; real configurations have five
)

// checker gathers the problems of one object.
type checker struct{ problems []problem.Problem }

func (c *checker) add(field, reason, advice string) {
	c.problems = append(c.problems, problem.Problem{Field: field, Reason: reason, Advice: advice})
}

// result is one problem a field, the first that was found there, by field; what
// is only a warning comes last.
func (c *checker) result() []problem.Problem {
	slices.SortStableFunc(c.problems, func(a, b problem.Problem) int {
		return cmp.Or(cmp.Compare(a.Field, b.Field), compareBool(a.Warning, b.Warning))
	})
	c.problems = slices.CompactFunc(c.problems, func(a, b problem.Problem) bool { return a.Field == b.Field })
	slices.SortStableFunc(c.problems, func(a, b problem.Problem) int { return compareBool(a.Warning, b.Warning) })
	if more := len(c.problems) - maxProblems; more > 0 {
		last := problem.Problem{Reason: fmt.Sprintf("and %d more problems", more)}
		last.Warning = c.problems[maxProblems].Warning
		c.problems = append(c.problems[:maxProblems:maxProblems], last)
	}
	return c.problems
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// fieldPath leads to a message. It is written out only where there is a problem.
type fieldPath struct {
	up    *fieldPath
	name  string // of a field
	index int    // of an element, where key and name are empty
	key   string // of a map's value, quoted
}

// String is as the user writes it: spec.list[2].map["key"].
func (p *fieldPath) String() string {
	switch {
	case p.up == nil:
		return p.name
	case p.name != "":
		return p.up.String() + "." + p.name
	case p.key != "":
		return p.up.String() + "[" + p.key + "]"
	}
	return fmt.Sprintf("%s[%d]", p.up, p.index)
}

// check is what Envoy refuses late in messages of one type, which the validation
// that was generated with the type does not find.
type check struct {
	of  protoreflect.FullName
	run func(*checker, *fieldPath, proto.Message)
}

// checks has the checks of every type that has one.
var checks = []check{
	on((*checker).duration), on((*checker).routes), on((*checker).weights), on((*checker).cluster),
	on(func(c *checker, at *fieldPath, m *matcherv3.RegexMatcher) { c.regex(at, m.GetRegex()) }),
	on(func(c *checker, at *fieldPath, m *ringhashv3.RingHash) {
		c.ring(at, m.GetMinimumRingSize(), m.GetMaximumRingSize())
	}),
	on(func(c *checker, at *fieldPath, m *clusterv3.Cluster_MaglevLbConfig) {
		c.prime(at, m.GetTableSize().GetValue())
	}),
	on(func(c *checker, at *fieldPath, m *maglevv3.Maglev) { c.prime(at, m.GetTableSize().GetValue()) }),
}

func on[M proto.Message](run func(*checker, *fieldPath, M)) check {
	var m M
	return check{m.ProtoReflect().Descriptor().FullName(), func(c *checker, at *fieldPath, m proto.Message) {
		if m, ok := m.(M); ok {
			run(c, at, m)
		}
	}}
}

// checkOf returns the check of a type; -1: it has none.
func checkOf(d protoreflect.MessageDescriptor) int {
	return slices.IndexFunc(checks, func(c check) bool { return c.of == d.FullName() })
}

// checked finds the messages for which there are checks.
var checked = protosearch.For(func(d protoreflect.MessageDescriptor) bool { return checkOf(d) >= 0 })

// message runs the checks on m and all messages in it, those in Any included.
func (c *checker) message(at *fieldPath, m protoreflect.Message, nesting int) {
	if a, ok := m.Interface().(*anypb.Any); ok {
		c.any(at, a, nesting)
		return
	}
	if i := checkOf(m.Descriptor()); i >= 0 {
		checks[i].run(c, at, m.Interface())
	}
	checked.Each(m, func(fd protoreflect.FieldDescriptor, index int, key protoreflect.MapKey, m protoreflect.Message) {
		field := &fieldPath{up: at, name: string(fd.Name())}
		switch {
		case fd.IsMap():
			field = &fieldPath{up: field, key: strconv.Quote(key.String())}
		case fd.IsList():
			field = &fieldPath{up: field, index: index}
		}
		c.message(field, m, nesting)
	})
}

// any checks what is in a; its path stays that of a, as in JSON.
func (c *checker) any(at *fieldPath, a *anypb.Any, nesting int) {
	if nesting == maxNesting {
		c.add(at.String(), fmt.Sprintf("more than %d messages within each other", maxNesting), "nest less deeply")
		return
	}
	m, err := a.UnmarshalNew()
	if err != nil {
		c.add(at.String(), fmt.Sprintf("type %q: %v", a.GetTypeUrl(), err),
			"use a type of Envoy's v3 API as @type; for one that meshlog does not know, wrap it in type.googleapis.com/xds.type.v3.TypedStruct")
		return
	}
	c.generated(at, m)
	c.message(at, m.ProtoReflect(), nesting+1)
}

// validator is what protoc-gen-validate generates.
type validator interface{ ValidateAll() error }

// generated runs the validation that was generated with m's type, which covers
// all messages in m but those in an Any.
func (c *checker) generated(at *fieldPath, m proto.Message) {
	if v, ok := m.(validator); ok {
		if err := v.ValidateAll(); err != nil {
			c.flatten(at.String(), err)
		}
	}
}

// flatten turns the errors of protoc-gen-validate into problems with paths.
func (c *checker) flatten(path string, err error) {
	if list, ok := err.(interface{ AllErrors() []error }); ok {
		for _, e := range list.AllErrors() {
			c.flatten(path, e)
		}
		return
	}
	e, ok := err.(interface {
		Field() string
		Reason() string
		Cause() error
	})
	if !ok {
		c.add(path, err.Error(), "")
		return
	}
	path += "." + snake(e.Field())
	if e.Cause() != nil {
		c.flatten(path, e.Cause())
		return
	}
	c.add(path, e.Reason(), "see this field in Envoy's API reference")
}

// snake turns the name of a Go field, "LbEndpoints[2]", into that of the
// protobuf field, "lb_endpoints[2]".
func snake(field string) string {
	name, index, _ := strings.Cut(field, "[")
	var b strings.Builder
	for i, r := range name {
		if unicode.IsUpper(r) && i > 0 {
			b.WriteByte('_')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	if index != "" {
		b.WriteString("[" + index)
	}
	return b.String()
}

func (c *checker) duration(at *fieldPath, d *durationpb.Duration) {
	if err := d.CheckValid(); err != nil {
		c.add(at.String(), err.Error(), "write it in seconds, like 1.5s")
	} else if d.AsDuration() < 0 {
		c.add(at.String(), fmt.Sprintf("%s is negative", d.AsDuration()), "use 0s or more")
	}
}

func (c *checker) regex(at *fieldPath, expr string) {
	if _, err := syntax.Parse(expr, syntax.Perl); err != nil {
		c.add(at.String()+".regex", err.Error(), "write it in RE2 syntax, which has no look-around and no back references")
	}
}

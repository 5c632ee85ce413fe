package validate

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"

	"meshlog.dev/services/mesh/problem"
)

const maxProblems = 20 // of one object; a user fixes the first ones first

// checker collects the problems of one object. The checks of a good object
// allocate nothing: a message is formatted, and a path written out, only where
// there is a problem.
type checker struct {
	kind     string // selects the rows of noEffects
	problems []problem.Diagnostic
}

func (c *checker) add(severity problem.Severity, code string, at *fieldPath, advice, reason string) {
	c.problems = append(c.problems, problem.Diagnostic{Severity: severity, Code: code, Field: at.String(), Reason: reason, Advice: advice})
}

// errorf adds an error: the object is invalid. Its arguments allocate; call it
// only if there is one.
func (c *checker) errorf(at *fieldPath, advice, reason string, args ...any) {
	c.add(problem.Error, "invalid", at, advice, fmt.Sprintf(reason, args...))
}

// warnf adds a warning: the object takes effect all the same.
func (c *checker) warnf(at *fieldPath, advice, reason string, args ...any) {
	c.add(problem.Warning, "invalid", at, advice, fmt.Sprintf(reason, args...))
}

// errorIf adds an error if wrong is true. It costs nothing otherwise. values are
// the arguments of reason.
func (c *checker) errorIf(wrong bool, at *fieldPath, advice, reason string, values ...string) {
	if wrong {
		args := make([]any, len(values))
		for i, v := range values {
			args[i] = v
		}
		c.errorf(at, advice, reason, args...)
	}
}

// result returns the first problem of each field, sorted by field, errors before
// warnings.
func (c *checker) result() []problem.Diagnostic {
	if len(c.problems) == 0 {
		return nil
	}
	worstFirst := func(a, b problem.Diagnostic) int { return cmp.Compare(b.Severity, a.Severity) }
	slices.SortStableFunc(c.problems, func(a, b problem.Diagnostic) int { return cmp.Or(cmp.Compare(a.Field, b.Field), worstFirst(a, b)) })
	c.problems = slices.CompactFunc(c.problems, func(a, b problem.Diagnostic) bool { return a.Field == b.Field })
	slices.SortStableFunc(c.problems, worstFirst)
	if more := len(c.problems) - maxProblems; more > 0 {
		c.problems = append(c.problems[:maxProblems:maxProblems], problem.Diagnostic{
			Severity: c.problems[maxProblems].Severity, Code: "invalid", Reason: fmt.Sprintf("and %d more problems", more),
		})
	}
	return c.problems
}

// fieldPath is the path of a field: a list that ends at the object. It stays on
// the stack until a problem writes it out.
type fieldPath struct {
	up    *fieldPath
	name  string // of a field, or several with dots between; or the key of an entry
	index int
	step  step
}

type step uint8

const (
	stepField step = iota
	stepItem       // of a list: index
	stepEntry      // of a map: name
)

// root is the path of an object's spec.
var root = &fieldPath{name: "spec"}

func (p *fieldPath) field(name string) *fieldPath { return &fieldPath{up: p, name: name} }
func (p *fieldPath) item(i int) *fieldPath        { return &fieldPath{up: p, index: i, step: stepItem} }
func (p *fieldPath) entry(key string) *fieldPath {
	return &fieldPath{up: p, name: key, step: stepEntry}
}

// String returns the path as users write it: spec.list[2].map["key"].
func (p *fieldPath) String() string { return string(p.append(nil)) }

// append appends the path to b. It copies the names: otherwise every path would
// escape to the heap.
func (p *fieldPath) append(b []byte) []byte {
	if p.up == nil {
		return append(b, p.name...)
	}
	b = p.up.append(b)
	switch p.step {
	case stepItem:
		return append(strconv.AppendInt(append(b, '['), int64(p.index), 10), ']')
	case stepEntry:
		return append(strconv.AppendQuote(append(b, '['), p.name), ']')
	}
	return append(append(b, '.'), p.name...)
}

// appendPlain appends the path below the root, without indices and keys, and a
// dot after each field.
func (p *fieldPath) appendPlain(b []byte) []byte {
	if p.up == nil {
		return b
	}
	if b = p.up.appendPlain(b); p.step == stepField {
		b = append(append(b, p.name...), '.')
	}
	return b
}

var leadingFields sync.Map // []protoreflect.FieldDescriptor by protoreflect.MessageDescriptor

// leading returns the fields of a message that can hold a checked type, at any
// depth: message needs to walk no others.
func leading(of protoreflect.MessageDescriptor) []protoreflect.FieldDescriptor {
	if fields, ok := leadingFields.Load(of); ok {
		return fields.([]protoreflect.FieldDescriptor)
	}
	var fields []protoreflect.FieldDescriptor
	for i := range of.Fields().Len() {
		fd := of.Fields().Get(i)
		if m := messageIn(fd); m != nil && leads(m, checked, map[protoreflect.FullName]bool{}) {
			fields = append(fields, fd)
		}
	}
	leadingFields.Store(of, fields)
	return fields
}

// leads reports whether a message can hold one of the types to, or is one.
func leads(of protoreflect.MessageDescriptor, to, seen map[protoreflect.FullName]bool) bool {
	if to[of.FullName()] {
		return true
	}
	seen[of.FullName()] = true
	for i := range of.Fields().Len() {
		if m := messageIn(of.Fields().Get(i)); m != nil && !seen[m.FullName()] && leads(m, to, seen) {
			return true
		}
	}
	return false
}

// messageIn returns the type of the messages that a field holds; nil: none.
func messageIn(fd protoreflect.FieldDescriptor) protoreflect.MessageDescriptor {
	if fd.IsMap() {
		return fd.MapValue().Message()
	}
	return fd.Message()
}

// field checks the messages in a field of messages.
func (c *checker) field(at *fieldPath, fd protoreflect.FieldDescriptor, v protoreflect.Value, nesting int) {
	switch {
	case fd.IsMap():
		v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
			c.message(&fieldPath{up: at, key: strconv.Quote(k.String())}, v.Message(), nesting)
			return true
		})
	case fd.IsList():
		for i := range v.List().Len() {
			c.message(&fieldPath{up: at, index: i}, v.List().Get(i).Message(), nesting)
		}
	default:
		c.message(at, v.Message(), nesting)
	}
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

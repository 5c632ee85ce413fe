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
// warnings, and these before what is merely unsupported.
func (c *checker) result() []problem.Diagnostic {
	if len(c.problems) == 0 {
		return nil
	}
	unsupported := func(p problem.Diagnostic) int {
		if p.Code == Unsupported {
			return 1
		}
		return 0
	}
	worstFirst := func(a, b problem.Diagnostic) int {
		return cmp.Or(cmp.Compare(b.Severity, a.Severity), unsupported(a)-unsupported(b))
	}
	slices.SortStableFunc(c.problems, func(a, b problem.Diagnostic) int { return cmp.Or(cmp.Compare(a.Field, b.Field), worstFirst(a, b)) })
	c.problems = slices.CompactFunc(c.problems, func(a, b problem.Diagnostic) bool { return a.Field == b.Field })
	slices.SortStableFunc(c.problems, worstFirst)
	if more := len(c.problems) - maxProblems; more > 0 {
		c.problems = append(c.problems[:maxProblems:maxProblems], problem.Diagnostic{
			Severity: c.problems[maxProblems].Severity, Code: c.problems[maxProblems].Code, Reason: fmt.Sprintf("and %d more problems", more),
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

// first reports whether v is new, and remembers it.
func first[T comparable](seen map[T]bool, v T) bool {
	was := seen[v]
	seen[v] = true
	return !was
}

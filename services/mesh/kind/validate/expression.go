package validate

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/parser"

	"meshlog.dev/services/mesh/re2"
)

// The most that an expression may have: Envoy's parser refuses what is nested more deeply.
const (
	maxExpression = 4096 // bytes
	maxExprDepth  = 24
)

// celFunctions are the functions that a stock Envoy has in expressions, with the numbers of
// their arguments: called as f(x), and as x.f(). Envoy refuses the whole listener for another
// one. Operators are functions too, with any number.
var celFunctions = map[string]struct{ global, member []int }{
	"size":       {[]int{1}, []int{0}},
	"contains":   {[]int{2}, []int{1}},
	"startsWith": {[]int{2}, []int{1}},
	"endsWith":   {[]int{2}, []int{1}},
	"matches":    {[]int{2}, []int{1}},
	"int":        {[]int{1}, nil}, "uint": {[]int{1}, nil}, "double": {[]int{1}, nil}, "bytes": {[]int{1}, nil}, "bool": {[]int{1}, nil},
	"timestamp": {[]int{1}, nil}, "duration": {[]int{1}, nil}, "type": {[]int{1}, nil}, "dyn": {[]int{1}, nil},
	"getFullYear": {nil, []int{0, 1}}, "getMonth": {nil, []int{0, 1}}, "getDate": {nil, []int{0, 1}}, "getDayOfMonth": {nil, []int{0, 1}},
	"getDayOfWeek": {nil, []int{0, 1}}, "getDayOfYear": {nil, []int{0, 1}}, "getHours": {nil, []int{0, 1}}, "getMinutes": {nil, []int{0, 1}},
	"getSeconds": {nil, []int{0, 1}}, "getMilliseconds": {nil, []int{0, 1}},
}

// celNames are what an expression may begin a name with: Envoy's attributes, and types.
var celNames = []string{
	"request", "response", "connection", "upstream", "source", "destination", "metadata", "filter_state", "upstream_filter_state", "xds",
	"int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type",
}

// expression checks a CEL expression that a stock Envoy evaluates (TL-5).
func (c *checker) expression(at *fieldPath, text string) {
	c.errorIf(text == "", at, "write a CEL expression such as response.code >= 400", isMissing)
	if c.tooLong(at, text, maxExpression); text == "" || len(text) > maxExpression {
		return
	}
	// Envoy refuses the other macros, which are over lists; without them they are functions
	// that it does not have.
	p, err := parser.NewParser(parser.Macros(parser.HasMacro), parser.MaxRecursionDepth(maxExprDepth))
	if err != nil {
		c.errorf(at, "write a CEL expression", "%v", err)
		return
	}
	parsed, errs := p.Parse(common.NewTextSource(text))
	if found := errs.GetErrors(); len(found) > 0 {
		first := found[0]
		where := ""
		if line := first.Location.Line(); line > 0 {
			where = fmt.Sprintf("line %d, column %d: ", line, first.Location.Column()+1)
		}
		c.errorf(at, "write a CEL expression such as response.code >= 400", "Envoy cannot read it: %s%s", where, oneClause(first.Message))
		return
	}
	w := celWalk{}
	ast.PostOrderVisit(parsed.Expr(), ast.NewExprVisitor(w.expr))
	switch {
	case w.refused != "":
		c.errorf(at, w.advice, "%s", w.refused)
	case w.unknown != "":
		c.warnf(at, "begin names with "+strings.Join(celNames[:slices.Index(celNames, "int")], ", "),
			"Envoy has no attribute %q: where it is read, the expression fails, and nothing is logged", w.unknown)
	}
}

// oneClause returns the beginning of a parser's message, which may list every token.
func oneClause(s string) string {
	s, _, _ = strings.Cut(s, " expecting ")
	return firstOf(strings.ToValidUTF8(s, ""))
}

// celWalk finds the first part of an expression that a stock Envoy refuses, and the first
// name that it does not know.
type celWalk struct{ refused, advice, unknown string }

func (w *celWalk) refuse(advice, reason string, args ...any) {
	if w.refused == "" {
		w.refused, w.advice = fmt.Sprintf(reason, args...), advice
	}
}

func (w *celWalk) expr(e ast.Expr) {
	switch e.Kind() {
	case ast.StructKind:
		w.refuse("compare attributes with texts, numbers and lists", "Envoy knows no message %q in an expression", e.AsStruct().TypeName())
	case ast.IdentKind:
		name := strings.TrimPrefix(e.AsIdent(), ".")
		if !slices.Contains(celNames, name) && w.unknown == "" && !strings.HasPrefix(name, "@") {
			w.unknown = name
		}
	case ast.CallKind:
		w.call(e.AsCall())
	}
}

func (w *celWalk) call(call ast.CallExpr) {
	name := call.FunctionName()
	f, known := celFunctions[name]
	counts := f.global
	if call.IsMemberFunction() {
		counts = f.member
	}
	switch {
	case isOperator(name):
	case !known:
		w.refuse("use "+strings.Join(slices.Sorted(maps.Keys(celFunctions)), ", "), "a stock Envoy has no function %q in expressions", name)
	case !slices.Contains(counts, len(call.Args())):
		w.refuse("correct the call", "Envoy has no %s with so many arguments", name)
	case name == "matches":
		w.pattern(call.Args()[len(call.Args())-1])
	}
}

// isOperator reports whether a function is how the parser writes an operator.
func isOperator(name string) bool {
	return slices.Contains([]string{
		"_&&_", "_||_", "!_", "_?_:_", "_==_", "_!=_", "_<_", "_<=_", "_>_", "_>=_", "_+_", "_-_", "_*_", "_/_", "_%_", "-_", "_[_]", "@in",
	}, name)
}

// pattern checks the regular expression of matches, if the text of the expression has it.
func (w *celWalk) pattern(e ast.Expr) {
	if e.Kind() != ast.LiteralKind {
		return
	}
	expr, ok := e.AsLiteral().Value().(string)
	if !ok {
		return
	}
	switch size, err := re2.Size(expr); {
	case err != nil:
		w.refuse(useRE2, "%q is no regular expression", expr)
	case size > re2.Stock:
		w.refuse("write a shorter one", "%q is a program of %d instructions for RE2; Envoy takes %d in an expression", expr, size, re2.Stock)
	}
}

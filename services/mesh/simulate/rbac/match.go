package rbac

import (
	"fmt"
	"regexp"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
)

// Text reports whether a matcher matches a text. It returns an error for a pattern that
// it does not know.
func Text(m *matcherv3.StringMatcher, s string) (bool, error) {
	fold := func(s string) string {
		if m.GetIgnoreCase() {
			return strings.ToLower(s)
		}
		return s
	}
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.StringMatcher_Exact:
		return fold(s) == fold(p.Exact), nil
	case *matcherv3.StringMatcher_Prefix:
		return strings.HasPrefix(fold(s), fold(p.Prefix)), nil
	case *matcherv3.StringMatcher_Suffix:
		return strings.HasSuffix(fold(s), fold(p.Suffix)), nil
	case *matcherv3.StringMatcher_Contains:
		return strings.Contains(fold(s), fold(p.Contains)), nil
	case *matcherv3.StringMatcher_SafeRegex:
		return Regex(p.SafeRegex.GetRegex(), s)
	}
	return false, fmt.Errorf("unknown pattern %T", m.GetMatchPattern())
}

// Regex reports whether an expression matches the whole of a text.
func Regex(expr, s string) (bool, error) {
	re, err := regexp.Compile("^(?:" + expr + ")$")
	if err != nil {
		return false, fmt.Errorf("unknown expression %q", expr)
	}
	return re.MatchString(s), nil
}

// Header reports whether a matcher matches a header with this value. there: the request
// has the header.
func Header(m *routev3.HeaderMatcher, value string, there bool) (bool, error) {
	there = there || m.GetTreatMissingHeaderAsEmpty()
	ok, err := there, error(nil)
	switch s := m.GetHeaderMatchSpecifier().(type) {
	case nil:
	case *routev3.HeaderMatcher_PresentMatch:
		ok = there == s.PresentMatch
	case *routev3.HeaderMatcher_StringMatch:
		if !there {
			return false, nil // a missing header does not match, inverted or not
		}
		ok, err = Text(s.StringMatch, value)
	default:
		err = fmt.Errorf("unknown matcher of headers %T", s)
	}
	return ok != m.GetInvertMatch() && err == nil, err
}

// Metadata reports whether a matcher matches metadata, by the name of the filter that
// wrote it. Its values are those of encoding/json.
func Metadata(m *matcherv3.MetadataMatcher, of map[string]map[string]any) (bool, error) {
	var value any = of[m.GetFilter()]
	there := of[m.GetFilter()] != nil
	for _, s := range m.GetPath() {
		fields, isStruct := value.(map[string]any)
		if value, there = fields[s.GetKey()]; !isStruct || !there {
			there = false
			break
		}
	}
	ok, err := match(m.GetValue(), value, there)
	return ok != m.GetInvert() && err == nil, err
}

// match reports whether a matcher matches a value.
func match(m *matcherv3.ValueMatcher, v any, there bool) (bool, error) {
	switch p := m.GetMatchPattern().(type) {
	case *matcherv3.ValueMatcher_StringMatch:
		text, ok := v.(string)
		if !there || !ok {
			return false, nil
		}
		return Text(p.StringMatch, text)
	case *matcherv3.ValueMatcher_BoolMatch:
		is, ok := v.(bool)
		return there && ok && is == p.BoolMatch, nil
	case *matcherv3.ValueMatcher_PresentMatch:
		return there == p.PresentMatch, nil
	case *matcherv3.ValueMatcher_NullMatch_:
		return there && v == nil, nil
	case *matcherv3.ValueMatcher_ListMatch:
		list, ok := v.([]any)
		if !there || !ok {
			return false, nil
		}
		return some(list, func(v any) (bool, error) { return match(p.ListMatch.GetOneOf(), v, true) })
	case *matcherv3.ValueMatcher_OrMatch:
		return some(p.OrMatch.GetValueMatchers(), func(m *matcherv3.ValueMatcher) (bool, error) { return match(m, v, there) })
	}
	return false, fmt.Errorf("unknown matcher of values %T", m.GetMatchPattern())
}

// The characters that the operators of a path template take.
const (
	pathChars = `a-zA-Z0-9\-._~%!$&'()*+,;:@=`
	oneOf     = "[" + pathChars + "]+"
	anyOf     = "[" + pathChars + "/]*"
)

// Template reports whether a path template matches a path.
func Template(template, path string) (bool, error) {
	if strings.ContainsAny(template, "{}") {
		return false, fmt.Errorf("unknown template %q: it has variables", template)
	}
	var expr strings.Builder
	for template != "" {
		before, after, found := strings.Cut(template, "*")
		expr.WriteString(regexp.QuoteMeta(before))
		template = ""
		if rest, double := strings.CutPrefix(after, "*"); found && double {
			expr.WriteString(anyOf)
			template = rest
		} else if found {
			expr.WriteString(oneOf)
			template = after
		}
	}
	return Regex(expr.String(), path)
}

package row

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/proto/ident"
)

// indexed finds the path of a field in the message of a failed validation, such
// as RouteConfigurationValidationError.VirtualHosts[3].
var indexed = regexp.MustCompile(`ValidationError\.(?:VirtualHosts|FilterChains)\[(\d+)\]`)

// minText is the least length of a text of a piece that counts as its mark in a
// message: shorter ones are words of the message itself too often.
const minText = 3

// maxText is how many bytes of a text are looked for: a message is cut somewhere.
const maxText = 128

// named returns the suspects that the message names: by index, or by the longest
// text that occurs in the message and not in every suspect. Envoy quotes a regular
// expression, a cluster, a domain or the name of a virtual host or filter chain,
// depending on what it does not accept.
func (c *Case) named(all []*suspect) []*suspect {
	if m := indexed.FindStringSubmatch(c.Message); m != nil {
		if i, err := strconv.Atoi(m[1]); err == nil {
			if s := at(c.Type, all, i); s != nil {
				return []*suspect{s}
			}
		}
	}
	if changed := slices.DeleteFunc(slices.Clone(all), func(s *suspect) bool { return !s.changed }); len(changed) > 0 {
		all = changed // clients do not reject what they have
	}
	texts := make([]map[string]bool, len(all))
	with := map[string]int{} // the number of pieces with a text
	for i, s := range all {
		texts[i] = map[string]bool{}
		textsOf(s.sent.ProtoReflect(), 0, func(text string) {
			text = text[:min(len(text), maxText)]
			if len(text) >= minText && text != c.Name && !texts[i][text] && mentions(c.Message, text) {
				texts[i][text] = true
				with[text]++
			}
		})
	}
	longest := 0
	var blamed []*suspect
	for i, s := range all {
		best := 0
		for text := range texts[i] {
			if len(all) == 1 || with[text] < len(all) {
				best = max(best, len(text))
			}
		}
		switch {
		case best == 0 || best < longest:
		case best > longest:
			longest, blamed = best, []*suspect{s}
		default:
			blamed = append(blamed, s)
		}
	}
	return blamed
}

// at returns the suspect with an index in the repeated field that was sent.
func at(t ident.ResourceType, all []*suspect, index int) *suspect {
	for _, s := range all {
		if t == ident.LDS && isDefault(s.sent) {
			continue
		}
		if index == 0 {
			return s
		}
		index--
	}
	return nil
}

// mentions reports whether a text is in a message on its own, not as a part of a
// longer word.
func mentions(message, text string) bool {
	for from := 0; ; {
		i := strings.Index(message[from:], text)
		if i < 0 {
			return false
		}
		start, end := from+i, from+i+len(text)
		before := start == 0 || !isWord(message[start-1]) || !isWord(text[0])
		after := end == len(message) || len(text) == maxText || !isWord(message[end]) || !isWord(text[len(text)-1])
		if before && after {
			return true
		}
		from = start + 1
	}
}

func isWord(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' || c == '_' || c == '-'
}

// maxNesting limits the depth of nested messages; Envoy's own are less deep.
const maxNesting = 64

// textsOf calls visit for every text in a message and in the messages of known
// types inside it.
func textsOf(m protoreflect.Message, depth int, visit func(string)) {
	if depth == maxNesting {
		return
	}
	if a, ok := m.Interface().(*anypb.Any); ok {
		visit(a.GetTypeUrl())
		if inner, err := a.UnmarshalNew(); err == nil {
			textsOf(inner.ProtoReflect(), depth+1, visit)
		}
		return
	}
	one := func(kind protoreflect.Kind, v protoreflect.Value) {
		switch kind {
		case protoreflect.StringKind:
			visit(v.String())
		case protoreflect.MessageKind, protoreflect.GroupKind:
			textsOf(v.Message(), depth+1, visit)
		}
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
			v.Map().Range(func(k protoreflect.MapKey, v protoreflect.Value) bool {
				if fd.MapKey().Kind() == protoreflect.StringKind {
					visit(k.String())
				}
				one(fd.MapValue().Kind(), v)
				return true
			})
		case fd.IsList():
			for i := range v.List().Len() {
				one(fd.Kind(), v.List().Get(i))
			}
		default:
			one(fd.Kind(), v)
		}
		return true
	})
}

func isDefault(m proto.Message) bool {
	l, ok := m.(*listenerv3.Listener)
	return ok && l.GetDefaultFilterChain() != nil
}

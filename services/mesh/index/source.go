package index

import (
	"fmt"
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/proxy"
)

// SourceSelector returns the text of a match's conditions on the caller: equal
// conditions have equal texts, no condition has "".
func SourceSelector(labels map[string]string, namespace string) string {
	parts := make([]string, 0, len(labels)+1)
	for name, value := range labels {
		parts = append(parts, fmt.Sprintf("%q=%q", name, value))
	}
	slices.Sort(parts)
	if namespace != "" {
		parts = append(parts, fmt.Sprintf("namespace %q", namespace))
	}
	return strings.Join(parts, " ")
}

// Has reports whether the set has the selector of that text.
func (s SelectorSet) Has(text string) bool { return slices.Contains(s.Selectors(), text) }

// sourceMatch holds the conditions on the caller of a VirtualService's matches.
// Equal ones have equal texts.
type sourceMatch struct {
	ident.Key
	labels    map[string]string
	namespace string
	text      string
}

// MemberKey returns the key of the VirtualService.
func (m *sourceMatch) MemberKey() ident.Key { return m.Key }

func (m *sourceMatch) matches(p *proxy.Proxy) bool {
	return (m.namespace == "" || m.namespace == p.Namespace) && matchLabels(m.labels, p.Labels)
}

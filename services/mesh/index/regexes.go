package index

import (
	"google.golang.org/protobuf/reflect/protoreflect"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/protosearch"
	"meshlog.dev/services/mesh/re2"
)

// hasLargeRegex reports whether a stock Envoy refuses an expression of a
// VirtualService.
func hasLargeRegex(vs *networking.VirtualService) bool { return searchRegex(vs.ProtoReflect()) }

func searchRegex(m protoreflect.Message) bool {
	expr := ""
	switch m := m.Interface().(type) {
	case *networking.StringMatch:
		expr = m.GetRegex()
	case *networking.RegexRewrite:
		expr = m.GetMatch()
	}
	size, err := re2.Size(expr) // no expression, such as * for any value of a header (VSM-5), has an error
	found := err == nil && size > re2.Stock
	regexes.Each(m, func(m protoreflect.Message) { found = found || searchRegex(m) })
	return found
}

// regexes finds what has an expression that becomes one of Envoy's.
var regexes = protosearch.For(func(d protoreflect.MessageDescriptor) bool {
	switch d.FullName() {
	case (*networking.StringMatch)(nil).ProtoReflect().Descriptor().FullName(), (*networking.RegexRewrite)(nil).ProtoReflect().Descriptor().FullName():
		return true
	}
	return false
})

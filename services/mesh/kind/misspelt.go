package kind

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/reflect/protoreflect"

	"meshlog.dev/services/mesh/anytype"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/nearest"
)

// unknownField matches protojson's error about a field that the message does not have.
var unknownField = regexp.MustCompile(`^unknown field "([^"]*)"$`)

// suggest adds to an error about an unknown field of spec the name that was probably meant.
func (k *Kind) suggest(bad *problem.Diagnostic, spec []byte) {
	found := unknownField.FindStringSubmatch(bad.Reason)
	var v any
	if found == nil || json.Unmarshal(spec, &v) != nil {
		return
	}
	if meant := meantIn(v, k.new().ProtoReflect().Descriptor(), found[1]); meant != "" {
		bad.Advice = "did you mean " + meant + "?"
	}
}

// meantIn returns the field that an unknown one of this name probably means, in a value of
// a message or below it; "" if no name is near.
func meantIn(v any, d protoreflect.MessageDescriptor, unknown string) string {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			if meant := meantIn(e, d, unknown); meant != "" {
				return meant
			}
		}
	case map[string]any:
		return meantInFields(v, d, unknown)
	}
	return ""
}

func meantInFields(v map[string]any, d protoreflect.MessageDescriptor, unknown string) string {
	if d.FullName() == "google.protobuf.Any" {
		url, _ := v["@type"].(string)
		t, err := anytype.Types.FindMessageByURL(url)
		if err != nil {
			return ""
		}
		d = t.Descriptor()
	}
	if d.ParentFile().Package() == "google.protobuf" { // its JSON is not that of its fields
		return ""
	}
	if _, here := v[unknown]; here && fieldOf(d, unknown) == nil {
		if meant, ok := nearest.Name(unknown, namesOf(d)); ok {
			return meant
		}
	}
	for _, name := range slices.Sorted(maps.Keys(v)) {
		fd := fieldOf(d, name)
		if fd == nil {
			continue
		}
		below := v[name]
		if fd.IsMap() {
			entries, _ := below.(map[string]any)
			var values []any
			for _, key := range slices.Sorted(maps.Keys(entries)) { // in one order, so that the answer is one
				values = append(values, entries[key])
			}
			below, fd = values, fd.MapValue()
		}
		if fd.Message() == nil {
			continue
		}
		if meant := meantIn(below, fd.Message(), unknown); meant != "" {
			return meant
		}
	}
	return ""
}

// fieldOf returns the field that JSON calls name; nil if there is none.
func fieldOf(d protoreflect.MessageDescriptor, name string) protoreflect.FieldDescriptor {
	if fd := d.Fields().ByJSONName(name); fd != nil {
		return fd
	}
	return d.Fields().ByTextName(name)
}

// namesOf returns the names of a message's fields as its users write them: Envoy's with
// underscores, all others in camel case.
func namesOf(d protoreflect.MessageDescriptor) (names []string) {
	for i := range d.Fields().Len() {
		fd := d.Fields().Get(i)
		if strings.HasPrefix(string(d.FullName()), "envoy.") {
			names = append(names, fd.TextName())
		} else {
			names = append(names, fd.JSONName())
		}
	}
	return names
}

package kind_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"meshlog.dev/services/mesh/kind/validate"
)

// TestNoEffects holds that each row of the table names a field that exists.
func TestNoEffects(t *testing.T) {
	seen := map[[2]string]bool{}
	for _, row := range validate.NoEffects() {
		if seen[[2]string{row.Kind, row.Field}] || row.Instead == "" {
			t.Errorf("%s %s: is there twice, or without what happens instead", row.Kind, row.Field)
		}
		seen[[2]string{row.Kind, row.Field}] = true
		k := mustKind(t, row.Kind)
		m, err := k.Decode(k.TypeURL, nil)
		if err != nil {
			t.Fatal(err)
		}
		at := m.ProtoReflect().Descriptor()
		path, value, one := strings.Cut(row.Field, "=")
		parts := strings.Split(path, ".")
		for i, name := range parts {
			fd := at.Fields().ByJSONName(name)
			if fd == nil {
				t.Errorf("%s %s: no field %s", row.Kind, row.Field, name)
				break
			}
			if last := i == len(parts)-1; !last {
				if at = fd.Message(); fd.IsMap() {
					at = fd.MapValue().Message()
				}
			} else if one && fd.Enum() != nil && fd.Enum().Values().ByName(protoreflect.Name(value)) == nil {
				t.Errorf("%s %s: no such value", row.Kind, row.Field)
			}
		}
	}
}

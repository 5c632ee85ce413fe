package inspect

import (
	"maps"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	ndsv1 "meshlog.dev/proto/istio/networking/nds/v1"
)

// nameRows says which addresses agents answer for the hosts of a service.
func nameRows(m proto.Message) [][]any {
	t, ok := m.(*ndsv1.NameTable)
	if !ok {
		return nil
	}
	var rows [][]any
	for _, host := range slices.Sorted(maps.Keys(t.GetTable())) {
		rows = append(rows, []any{host, strings.Join(t.GetTable()[host].GetIps(), ", ")})
	}
	return rows
}

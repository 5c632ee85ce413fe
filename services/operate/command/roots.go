package command

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

// TrustBundles returns the trust bundles in a content, which may be nil.
func TrustBundles(s *store.Snapshot) ([]*registryv1.TrustBundle, error) {
	if s == nil {
		return nil, nil
	}
	var all []*registryv1.TrustBundle
	for row := range s.Rows() {
		key, overlay, err := ident.ParseRow(row.Key)
		if err != nil || overlay != "" || key.Kind != "TrustBundle" {
			continue
		}
		value, err := world.UnmarshalValue(row.Value)
		if err != nil {
			return nil, err
		}
		bundle := new(registryv1.TrustBundle)
		if err := proto.Unmarshal(value.Bytes, bundle); err != nil {
			return nil, fmt.Errorf("the TrustBundle %s: %w", key.Name, err)
		}
		all = append(all, bundle)
	}
	return all, nil
}

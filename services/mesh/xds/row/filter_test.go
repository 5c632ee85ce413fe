package row_test

import (
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/row"
)

// A filter of policies that Envoy would refuse is replaced by one that refuses all
// requests: RBAC without rules would let them pass (POL-2).
func TestCloseFilter(t *testing.T) {
	bad := &corev3.TypedExtensionConfig{Name: "slot", TypedConfig: piece.Any(new(httpv3.RBAC))}
	closed, _ := row.Close(bad, false, func(m proto.Message) bool { return proto.Equal(m, bad) })
	c, ok := closed.(*corev3.TypedExtensionConfig)
	if !ok || c.GetName() != "slot" {
		t.Fatalf("served is %v", closed)
	}
	rbac := new(httpv3.RBAC)
	if err := c.GetTypedConfig().UnmarshalTo(rbac); err != nil {
		t.Fatal(err)
	}
	if r := rbac.GetRules(); r.GetAction() != rbacv3.RBAC_DENY || len(r.GetPolicies()) != 1 {
		t.Errorf("the filter is %v", rbac)
	}
}

package inspect

import (
	"maps"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	rbacv3 "github.com/envoyproxy/go-control-plane/envoy/config/rbac/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	"google.golang.org/protobuf/proto"
)

// filterRows says what a filter of policies does: its type, and the policies of RBAC. One
// without rules lets all requests pass.
func filterRows(m proto.Message) [][]any {
	c, ok := m.(*corev3.TypedExtensionConfig)
	if !ok {
		return nil
	}
	url := c.GetTypedConfig().GetTypeUrl()
	parts := strings.Split(url[strings.LastIndex(url, "/")+1:], ".")
	kind := parts[len(parts)-1]
	rbac := new(httpv3.RBAC)
	if c.GetTypedConfig().UnmarshalTo(rbac) != nil {
		return [][]any{{kind, "", ""}}
	}
	row := func(rules *rbacv3.RBAC, action string) []any {
		return []any{kind, action, strings.Join(slices.Sorted(maps.Keys(rules.GetPolicies())), ", ")}
	}
	switch {
	case rbac.GetRules() != nil:
		return [][]any{row(rbac.GetRules(), rbac.GetRules().GetAction().String())}
	case rbac.GetShadowRules() != nil:
		return [][]any{row(rbac.GetShadowRules(), "MARK")}
	}
	return [][]any{{kind, "pass", ""}}
}

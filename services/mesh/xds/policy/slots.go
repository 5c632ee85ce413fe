package policy

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extauthzv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_authz/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	httpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/rbac/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"meshlog.dev/services/mesh/xds/piece"
)

// The slots of a connection manager. Their names are the same in all classes: a name
// that changed with the policies would change the listener, and its old connections
// would keep the old policies until they are drained.
const (
	CustomMatch = "meshlog.authz.custom-match" // marks requests that a CUSTOM policy matches
	Custom      = "meshlog.authz.custom"       // asks the provider about them
	JWT         = "meshlog.authz.jwt"          // reads tokens
	Audit       = "meshlog.authz.audit"
	Deny        = "meshlog.authz.deny"
	Allow       = "meshlog.authz.allow"
)

// names are the slots in the order in which they run.
var names = [...]string{CustomMatch, Custom, JWT, Audit, Deny, Allow}

// fetchTimeout is how long Envoy keeps a listener closed that waits for the first content
// of a slot. Then the slot denies every request (S38).
const fetchTimeout = 5 * time.Second

// Slots returns the filters of the slots, in the order in which they run. Every inbound
// connection manager and every one of a gateway has all of them, before its router, so
// that a policy never changes a listener.
func Slots() []*hcmv3.HttpFilter {
	var types []string
	for _, m := range []proto.Message{new(httpv3.RBAC), new(jwtv3.JwtAuthentication), new(extauthzv3.ExtAuthz)} {
		types = append(types, piece.Any(m).GetTypeUrl())
	}
	deny := piece.Any(piece.DenyAll("meshlog:not-received"))
	from := piece.FromADS()
	from.InitialFetchTimeout = durationpb.New(fetchTimeout)
	slots := make([]*hcmv3.HttpFilter, len(names))
	for i, name := range names {
		slots[i] = &hcmv3.HttpFilter{Name: name, ConfigType: &hcmv3.HttpFilter_ConfigDiscovery{ConfigDiscovery: &corev3.ExtensionConfigSource{
			ConfigSource: from, DefaultConfig: deny, TypeUrls: types,
		}}}
	}
	return slots
}

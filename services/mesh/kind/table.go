package kind

import (
	"cmp"

	"google.golang.org/protobuf/proto"

	configv1 "meshlog.dev/proto/meshlog/config/v1"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind/validate"

	extensions "istio.io/api/extensions/v1alpha1"
	mesh "istio.io/api/mesh/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	networkingbeta "istio.io/api/networking/v1beta1"
	security "istio.io/api/security/v1beta1"
	telemetry "istio.io/api/telemetry/v1alpha1"
)

// The groups of the kinds.
const (
	envoyGroup      = "envoy.meshlog.dev"
	meshlogGroup    = "meshlog.dev"
	meshGroup       = "mesh.istio.io"
	networkingGroup = "networking.istio.io"
	securityGroup   = "security.istio.io"
	telemetryGroup  = "telemetry.istio.io"
	extensionsGroup = "extensions.istio.io"
	coreGroup       = ""
	discoveryGroup  = "discovery.k8s.io"
	ingressGroup    = "networking.k8s.io"
	gatewayGroup    = "gateway.networking.k8s.io"
)

// The versions of Istio's groups.
var (
	v1               = []string{"v1"}
	networkingAll    = []string{"v1", "v1beta1", "v1alpha3"}
	securityAll      = []string{"v1", "v1beta1"}
	gatewayOlder     = []string{"v1", "v1beta1"}
	gatewayFromAlpha = []string{"v1", "v1alpha3", "v1alpha2"}
)

// table is in the order of the documentation.
var table = []*Kind{
	of[networking.ServiceEntry](Kind{
		Group: networkingGroup, Versions: networkingAll, Namespaced: true, Meaning: Served,
		validate: validate.ServiceEntry, endpointsOnly: validate.ServiceEntryEndpointsOnly,
	}),
	of[networking.WorkloadEntry](Kind{
		Group: networkingGroup, Versions: networkingAll, Namespaced: true, Meaning: Served,
		State: true, validate: validate.WorkloadEntry, endpointsOnly: always,
	}),
	of[networking.VirtualService](Kind{
		Group: networkingGroup, Versions: networkingAll, Namespaced: true, Meaning: Served,
		validate: validate.VirtualService,
	}),
	of[networking.DestinationRule](Kind{
		Group: networkingGroup, Versions: networkingAll, Namespaced: true, Meaning: Served,
		validate: validate.DestinationRule,
	}),
	of[networking.Gateway](Kind{Group: networkingGroup, Versions: networkingAll, Namespaced: true, Meaning: Served, validate: validate.Gateway}),
	of[networking.Sidecar](Kind{
		Group: networkingGroup, Versions: networkingAll, Namespaced: true, Meaning: Served,
		validate: validate.Sidecar,
	}),
	of[registryv1.Service](Kind{Group: coreGroup, Versions: v1, Namespaced: true, Form: Converted, Meaning: Served, validate: validate.Service}),
	of[registryv1.Endpoints](Kind{
		Group: discoveryGroup, Versions: v1, Name: "EndpointSlice", Namespaced: true, Form: Converted, Meaning: Served,
		State: true, validate: validate.Endpoints, endpointsOnly: always,
	}),
	of[configv1.Resource](Kind{
		Group: envoyGroup, Versions: v1, Namespaced: true, Meaning: Served,
		validate: validate.Resource, endpointsOnly: validate.ResourceEndpointsOnly,
	}),
	of[configv1.MeshPolicy](Kind{Group: meshlogGroup, Versions: v1, Only: "default", Meaning: Served, validate: validate.MeshPolicy}),
	of[mesh.MeshConfig](Kind{Group: meshGroup, Versions: []string{"v1alpha1"}, Only: "default", Meaning: Served, validate: validate.MeshConfig}),
	of[mesh.MeshNetworks](Kind{Group: meshGroup, Versions: []string{"v1alpha1"}, Only: "default", Meaning: Served, validate: validate.MeshNetworks}),

	// They complete other objects.
	of[registryv1.Workload](Kind{
		Group: coreGroup, Versions: v1, State: true, Name: "Pod", Namespaced: true, Form: Converted, Meaning: Context,
		validate: validate.Workload, endpointsOnly: always,
	}),
	of[registryv1.Object](Kind{Group: coreGroup, Versions: v1, State: true, Name: "Node", Form: Converted, Meaning: Context}),
	of[registryv1.Object](Kind{Group: coreGroup, Versions: v1, State: true, Name: "Namespace", Form: Converted, Meaning: Context}),
	of[registryv1.TrustBundle](Kind{State: true, Group: meshlogGroup, Versions: v1, Form: Produced, Meaning: Context, validate: validate.TrustBundle}),
	of[registryv1.Jwks](Kind{State: true, Group: meshlogGroup, Versions: v1, Form: Produced, Meaning: Context, validate: validate.Jwks}),

	// They have no effect yet.
	of[networking.WorkloadGroup](Kind{Group: networkingGroup, Versions: networkingAll, Namespaced: true}),
	of[networking.EnvoyFilter](Kind{
		Group: networkingGroup, Versions: []string{"v1alpha3"}, Namespaced: true, Meaning: Served,
		validate: validate.EnvoyFilter,
	}),
	of[networkingbeta.ProxyConfig](Kind{Group: networkingGroup, Versions: []string{"v1beta1"}, Namespaced: true}),
	of[security.AuthorizationPolicy](Kind{
		Group: securityGroup, Versions: securityAll, Namespaced: true, Security: true, Meaning: Served,
		validate: validate.AuthorizationPolicy,
	}),
	of[security.PeerAuthentication](Kind{
		Group: securityGroup, Versions: securityAll, Namespaced: true, Security: true, Meaning: Served,
		validate: validate.PeerAuthentication,
	}),
	of[security.RequestAuthentication](Kind{
		Group: securityGroup, Versions: securityAll, Namespaced: true, Security: true, Meaning: Served,
		validate: validate.RequestAuthentication,
	}),
	of[telemetry.Telemetry](Kind{
		Group: telemetryGroup, Versions: []string{"v1", "v1alpha1"}, Namespaced: true, Meaning: Served,
		validate: validate.Telemetry,
	}),
	of[extensions.WasmPlugin](Kind{Group: extensionsGroup, Versions: []string{"v1alpha1"}, Namespaced: true}),
	of[extensions.TrafficExtension](Kind{Group: extensionsGroup, Versions: []string{"v1alpha1"}, Namespaced: true}),
	of[registryv1.SecretReference](Kind{
		Group: coreGroup, Versions: v1, State: true, Name: "Secret", Namespaced: true, Form: Converted, ClusterOnly: true, Meaning: Context,
		validate: validate.Secret,
	}),
	of[registryv1.Object](Kind{
		Group: coreGroup, Versions: v1, State: true, Name: "ConfigMap", Namespaced: true, Form: Converted, ClusterOnly: true, Meaning: Context,
		validate: validate.ConfigMap,
	}),
	of[registryv1.Object](Kind{Group: ingressGroup, Versions: v1, Name: "Ingress", Namespaced: true, Form: Converted}),
	of[registryv1.Object](Kind{Group: ingressGroup, Versions: v1, Name: "IngressClass", Form: Converted}),
	object(gatewayGroup, gatewayOlder, "GatewayClass", false),
	of[registryv1.Object](Kind{Group: gatewayGroup, Versions: gatewayOlder, Name: "KubernetesGateway", Document: "Gateway", Namespaced: true, Form: Whole}),
	object(gatewayGroup, gatewayOlder, "HTTPRoute", true),
	object(gatewayGroup, v1, "GRPCRoute", true),
	object(gatewayGroup, gatewayFromAlpha, "TCPRoute", true),
	object(gatewayGroup, gatewayFromAlpha, "TLSRoute", true),
	of[registryv1.Object](Kind{
		Group: gatewayGroup, Versions: gatewayOlder, Name: "ReferenceGrant", Namespaced: true, Form: Whole, Meaning: Context, AtOnce: true,
		validate: validate.ReferenceGrant,
	}),
	object(gatewayGroup, gatewayFromAlpha, "BackendTLSPolicy", true),
	object(gatewayGroup, v1, "ListenerSet", true),
}

// of completes the row of a kind whose payload is a T. The kind has the name of T
// unless the row names it.
func of[T any, M interface {
	*T
	proto.Message
}](k Kind) *Kind {
	payload := M(new(T)).ProtoReflect().Descriptor()
	k.new = func() proto.Message { return M(new(T)) }
	k.TypeURL = "type.googleapis.com/" + string(payload.FullName())
	k.Name = cmp.Or(k.Name, string(payload.Name()))
	return &k
}

// always is endpointsOnly for kinds whose objects hold nothing but endpoints.
func always(_, _ proto.Message) bool { return true }

// object returns the row of a kind that has no protobuf type.
func object(group string, versions []string, name string, namespaced bool) *Kind {
	return of[registryv1.Object](Kind{Group: group, Versions: versions, Name: name, Namespaced: namespaced, Form: Whole})
}

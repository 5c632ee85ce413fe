package validate

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/services/mesh/problem"
)

// unserved warns of a config source that asks this server for a type that it
// does not serve (PRO-4). Envoy waits for an answer before it uses the resource:
// 15 s for secrets, unless initial_fetch_timeout says otherwise (E35, E36, E44).
func (c *checker) unserved(at *fieldPath, m proto.Message) {
	ask := func(field, what, instead string, source *corev3.ConfigSource) {
		if source.GetAds() != nil || source.GetSelf() != nil {
			c.add(problem.Warning, "unserved", at.field(field), instead,
				"meshlog does not serve "+what+" yet: Envoy waits for an answer until initial_fetch_timeout (15s by default), then goes on without")
		}
	}
	const write, another = "write the configuration itself here, or name another source: ", "path_config_source, or api_config_source with another server"
	switch m := m.(type) {
	case *tlsv3.SdsSecretConfig:
		ask("sds_config", "secrets (SDS)", "name files in tls_certificates or validation_context, or another source: "+another, m.GetSdsConfig())
	case *corev3.ExtensionConfigSource:
		ask("config_source", "configurations of extensions (ECDS)", write+another, m.GetConfigSource())
	case *hcmv3.ScopedRds:
		ask("scoped_rds_config_source", "scoped routes (SRDS)", write+another, m.GetScopedRdsConfigSource())
	case *routev3.Vhds:
		ask("config_source", "virtual hosts (VHDS)", write+another, m.GetConfigSource())
	}
}

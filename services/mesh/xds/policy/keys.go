package policy

import (
	"cmp"
	"fmt"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	"google.golang.org/protobuf/types/known/durationpb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/services/mesh/hostname"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/jwks"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/callee"
	"meshlog.dev/services/mesh/xds/jwt"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/traffic"
)

// How proxies fetch keys (POL-13). Envoy's defaults are 10 minutes and 1 second.
const (
	// keysTimeout is how long a fetch takes at most if the rule does not say, as in Istio.
	keysTimeout = 5 * time.Second
	// keysEvery is after how long keys are fetched again, as by watcher-jwks.
	keysEvery = 5 * time.Minute
	// keysAgain is after how long a failed fetch is repeated: all proxies do so while the
	// issuer is away.
	keysAgain = 5 * time.Second
)

// keysURI names the field, for people.
const keysURI = "jwksUri"

// fetcher finds where proxies fetch keys of token issuers.
type fetcher struct {
	r        *index.Reader
	from     callee.Caller
	scope    index.Scope
	problems []problem.Diagnostic
}

// remote returns how proxies fetch the keys of a rule; nil: they cannot.
func (f *fetcher) remote(rule jwt.Rule) *jwtv3.RemoteJwks {
	cluster, reason, advice := f.cluster(rule)
	if reason != "" {
		f.problems = append(f.problems, problem.Diagnostic{
			Severity: problem.Error, Code: "jwks-cluster", Key: rule.Policy, Field: fmt.Sprintf("spec.jwtRules[%d].jwksUri", rule.Index),
			Reason: "proxies cannot fetch the keys: " + reason, Advice: advice, Effect: "no token of the issuer can be verified",
		})
		return nil
	}
	return &jwtv3.RemoteJwks{
		HttpUri: &corev3.HttpUri{
			Uri: rule.GetJwksUri(), HttpUpstreamType: &corev3.HttpUri_Cluster{Cluster: cluster},
			Timeout: cmp.Or(rule.GetTimeout(), durationpb.New(keysTimeout)),
		},
		CacheDuration: durationpb.New(keysEvery),
		// A listener that waited for the first fetch would stay closed for its time, and for
		// good if the issuer is behind it.
		AsyncFetch: &jwtv3.JwksAsyncFetch{FastListener: true, FailedRefetchDuration: durationpb.New(keysAgain)},
	}
}

// cluster returns the cluster of the service that a rule's jwksUri names, or says why
// proxies cannot fetch from it. The service is the one of the policy's namespace if
// proxies see that; else that of the namespace which a Kubernetes host names, or the only
// one of the host: what another namespace adds must not decide about tokens.
func (f *fetcher) cluster(rule jwt.Rule) (cluster, reason, advice string) {
	host, port, ok := jwks.Endpoint(rule.GetJwksUri())
	if !ok {
		return "", "jwksUri names no host and port", "write one like http://issuer.auth.svc.cluster.local:8080/keys"
	}
	suffix := f.r.DomainSuffix()
	host = hostname.Full(host, rule.Policy.Namespace, suffix)
	_, s := f.r.ServicesOfHost(f.from.Scope, host)
	if s == nil || s.Namespace != rule.Policy.Namespace {
		s, reason, advice = callee.Service(f.r, hostname.Home(host, suffix), host, f.from, keysURI)
		if s == nil {
			return "", reason, advice
		}
	}
	if _, reason, advice = callee.Port(s, host, port, f.from, keysURI); reason != "" {
		return "", reason, advice
	}
	if jwks.IsSource(rule.GetJwksUri()) && !f.encrypted(s, port) {
		return "", fmt.Sprintf("jwksUri says https, and proxies do not call port %d of the service %s/%s by TLS", port, s.Namespace, host),
			"write a DestinationRule with tls for it, or http:// if mutual TLS of the mesh protects it"
	}
	return piece.ClusterName(host, "", port), "", ""
}

// encrypted reports whether a DestinationRule has proxies call a port by TLS.
func (f *fetcher) encrypted(s *index.Service, port uint32) bool {
	id, _ := f.r.Rule(f.scope, s.Namespace, s.Hostname)
	rule, _ := f.r.DestinationRule(id)
	return traffic.Of(f.r.Mesh(), rule, port).TLS.GetMode() != networking.ClientTLSSettings_DISABLE
}

package authz_test

import (
	"crypto/tls"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/services/suite/envoytest"
)

// identities are policies and the callers that pass them, or do not. A caller is the
// URI of a certificate, or the CN of one without URIs.
var identities = []struct {
	name, spec     string
	passes, denied []string
}{
	{
		"POL-4: any identity", `{rules: [{from: [{source: {principals: ["*"]}}]}]}`,
		[]string{"spiffe://prod.example/ns/a/sa/b", "spiffe://other.example/ns/a/sa/b"}, []string{"CN=prod.example/ns/a/sa/b", "CN=spiffe://prod.example/ns/a/sa/b", "https://prod.example/a"},
	},
	{
		"POL-4: an identity", `{rules: [{from: [{source: {principals: [prod.example/ns/a/sa/b]}}]}]}`,
		[]string{"spiffe://prod.example/ns/a/sa/b", "spiffe://old.example/ns/a/sa/b"},
		[]string{"spiffe://prod.example/ns/a/sa/bc", "spiffe://other.example/ns/a/sa/b", "CN=prod.example/ns/a/sa/b", "CN=spiffe://prod.example/ns/a/sa/b"},
	},
	{
		"POL-5: an allowed end", `{rules: [{from: [{source: {principals: ["*/sa/client"]}}]}]}`,
		[]string{"spiffe://prod.example/ns/a/sa/client", "spiffe://other.example/ns/a/sa/client"},
		[]string{"CN=x/sa/client", "spiffe://prod.example/ns/evil/sa/x/sa/client"},
	},
	{
		"POL-5: an allowed namespace", `{rules: [{from: [{source: {namespaces: [prod]}}]}]}`,
		[]string{"spiffe://prod.example/ns/prod/sa/b", "spiffe://old.example/ns/prod/sa/b"},
		[]string{"spiffe://other.example/ns/prod/sa/b", "spiffe://prod.example/ns/evil/sa/x/ns/prod/sa/b", "spiffe://prod.example/ns/prod2/sa/b", "spiffe://prodxexample/ns/prod/sa/b"},
	},
	{
		"POL-5: a forbidden namespace", `{action: DENY, rules: [{from: [{source: {namespaces: [bad]}}]}]}`,
		[]string{"spiffe://prod.example/ns/good/sa/b"}, []string{"spiffe://prod.example/ns/bad/sa/b", "spiffe://other.example/ns/bad/sa/b"},
	},
	{
		"POL-5: all but a namespace", `{rules: [{from: [{source: {notNamespaces: [bad]}}]}]}`,
		[]string{"spiffe://prod.example/ns/good/sa/b"}, []string{"spiffe://prod.example/ns/bad/sa/b", "spiffe://other.example/ns/bad/sa/b"},
	},
	{
		"POL-5: a forbidden namespace of longer identities", `{action: DENY, rules: [{from: [{source: {namespaces: [bad]}}]}]}`,
		[]string{"spiffe://other.example/region/eu/ns/good/sa/b"}, []string{"spiffe://other.example/region/eu/ns/bad/sa/b", "spiffe://other.example/ns/bad/pod/b"},
	},
	{
		"POL-5: a dot of a forbidden account is a dot", `{action: DENY, rules: [{from: [{source: {serviceAccounts: [prod/my.reviews]}}]}]}`,
		[]string{"spiffe://prod.example/ns/prod/sa/my-reviews"}, []string{"spiffe://prod.example/ns/prod/sa/my.reviews"},
	},
	{
		"POL-4: everyone with a certificate is forbidden", `{action: DENY, rules: [{from: [{source: {principals: ["*"]}}]}]}`,
		nil, []string{"spiffe://prod.example/ns/a/sa/b", "https://partner.example/a", "CN=partner"},
	},
	{
		"AZ-4: a trust domain has aliases", `{action: DENY, rules: [{from: [{source: {trustDomains: [prod.example]}}]}]}`,
		[]string{"spiffe://other.example/ns/a/sa/b"}, []string{"spiffe://prod.example/ns/a/sa/b", "spiffe://old.example/ns/a/sa/b"},
	},
	{
		"AZ-4: accounts", `{rules: [{from: [{source: {serviceAccounts: [a/b, c]}}]}]}`,
		[]string{"spiffe://prod.example/ns/a/sa/b", "spiffe://prod.example/ns/shop/sa/c"}, []string{"spiffe://prod.example/ns/a/sa/c", "spiffe://other.example/ns/a/sa/b"},
	},
	{
		"AZ-4: a namespace of a trust domain", `{rules: [{from: [{source: {namespaces: [a], trustDomains: [other.example]}}]}]}`,
		[]string{"spiffe://other.example/ns/a/sa/b"}, []string{"spiffe://prod.example/ns/a/sa/b", "spiffe://other.example/ns/b/sa/b"},
	},
}

// A real Envoy finds the identities of callers in their certificates as policies mean
// them, and what only looks like one does not count.
func TestIdentities(t *testing.T) {
	ca := certtest.NewCA("mesh")
	dir := t.TempDir()
	var listeners []*listenerv3.Listener
	for i, a := range identities {
		l := listenerOf(t, attack{name: a.name}, "metadata: {name: p, namespace: shop}\nspec: "+a.spec, filepath.Join(dir, strconv.Itoa(i)))
		l.FilterChains[0].TransportSocket = mutualTLS(t, ca)
		listeners = append(listeners, l)
	}
	envoytest.Run(t, dir, listeners)
	for i, a := range identities {
		t.Run(a.name, func(t *testing.T) {
			for status, callers := range map[int][]string{http.StatusOK: a.passes, http.StatusForbidden: a.denied} {
				for _, caller := range callers {
					if is, details, err := ask(as(ca, caller, filepath.Join(dir, strconv.Itoa(i))), "GET /"); err != nil || is != status {
						t.Errorf("%s: %d (%s), %v; want %d", caller, is, details, err, status)
					}
				}
			}
		})
	}
}

// as returns how a caller connects to a socket.
func as(ca *certtest.CA, caller, socket string) dial {
	var pair certtest.Pair
	if cn, ok := strings.CutPrefix(caller, "CN="); ok {
		pair = ca.Client(cn)
	} else {
		pair = ca.Client("caller", caller)
	}
	return func() (net.Conn, error) {
		c, err := net.Dial("unix", socket)
		if err != nil {
			return nil, err
		}
		return tls.Client(c, &tls.Config{ServerName: "localhost", RootCAs: ca.Pool(), Certificates: []tls.Certificate{pair.TLS()}}), nil
	}
}

// mutualTLS returns the socket of a server that verifies its clients and resumes no
// session (S44).
func mutualTLS(t *testing.T, ca *certtest.CA) *corev3.TransportSocket {
	inline := func(b []byte) *corev3.DataSource {
		return &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: b}}
	}
	server := ca.Server("server", time.Now().Add(time.Hour))
	return &corev3.TransportSocket{Name: "tls", ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: packed(t, &tlsv3.DownstreamTlsContext{
		RequireClientCertificate:         wrapperspb.Bool(true),
		SessionTicketKeysType:            &tlsv3.DownstreamTlsContext_DisableStatelessSessionResumption{DisableStatelessSessionResumption: true},
		DisableStatefulSessionResumption: true,
		CommonTlsContext: &tlsv3.CommonTlsContext{
			TlsCertificates: []*tlsv3.TlsCertificate{{CertificateChain: inline(server.Cert), PrivateKey: inline(server.Key)}},
			ValidationContextType: &tlsv3.CommonTlsContext_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
				TrustedCa: inline(ca.PEM()),
			}},
		},
	})}}
}

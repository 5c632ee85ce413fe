package secret_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"maps"
	"math/big"
	"slices"
	"strings"
	"testing"
	"time"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	networking "istio.io/api/networking/v1alpha3"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/credential"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/secret"
)

// pair returns a certificate of itself, which is one of a CA too, and its key.
func pair(t *testing.T) (cert, key []byte) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8})
}

// object puts a Secret as a watcher does.
func object(t *testing.T, namespace, name string, data map[string][]byte, o credential.Options) meshtest.Change {
	t.Helper()
	ref, err := credential.Reference(credential.Source{Namespace: namespace, Name: name, Data: data}, o)
	if err != nil {
		t.Fatal(err)
	}
	return meshtest.Object("Secret", namespace, name, ref)
}

var revealing = credential.Options{Key: []byte("hmac"), Public: true}

// router is the class of the routers beside the Gateway of these tests.
var router = index.SDSClass{Client: index.ClientRouter, Gateways: "*", Namespace: "edge"}

// made makes the secrets of a class.
func made(t *testing.T, pc *index.PushContext, class index.SDSClass) (map[string]piece.Piece, []problem.Diagnostic) {
	t.Helper()
	all := map[string]piece.Piece{}
	var problems []problem.Diagnostic
	for _, part := range secret.Parts(pc.Read(), class) {
		pieces, ds := part.Make(pc.Read())
		problems = append(problems, ds...)
		for _, p := range pieces {
			if _, twice := all[p.Name]; twice {
				t.Errorf("%s is made twice", p.Name)
			}
			if m := p.Message.(*tlsv3.Secret); m.GetName() != p.Name || m.ValidateAll() != nil {
				t.Errorf("%s: %v", p.Name, m.ValidateAll())
			}
			all[p.Name] = p
		}
	}
	return all, problems
}

func gateway(namespace, tls string) string {
	return `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: g, namespace: ` + namespace + `}
spec:
  servers:
  - {port: {number: 443, name: https, protocol: HTTPS}, hosts: [a.example.com, b.example.com], tls: ` + tls + `}
`
}

// A router may have the secrets that its Gateways name: certificates without keys, and
// CAs. The piece names the key (KEY-1, SDS-3).
func TestParts(t *testing.T) {
	cert, key := pair(t)
	ca, _ := pair(t)
	shop := object(t, "edge", "shop", map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": ca}, revealing)
	bundle := meshtest.Object("TrustBundle", "", "cluster.local", &registryv1.TrustBundle{TrustDomain: "cluster.local", Roots: []*registryv1.Root{
		{Certificate: string(ca), State: registryv1.RootState_ROOT_STATE_ACTIVE},
	}})
	configMap, err := json.Marshal(map[string]any{"data": map[string]string{"ca.crt": "# text\n" + string(ca)}})
	if err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		tls     string
		objects []meshtest.Change
		want    []string
	}{
		"simple":     {`{mode: SIMPLE, credentialName: shop}`, []meshtest.Change{shop}, []string{"kubernetes://shop"}},
		"mutual":     {`{mode: MUTUAL, credentialName: shop}`, []meshtest.Change{shop}, []string{"kubernetes://shop", "kubernetes://shop-cacert"}},
		"separate":   {`{mode: MUTUAL, credentialName: shop, caCertCredentialName: other}`, []meshtest.Change{shop, object(t, "edge", "other-cacert", map[string][]byte{"cacert": ca}, revealing)}, []string{"kubernetes://other-cacert", "kubernetes://shop"}},
		"config map": {`{mode: MUTUAL, credentialName: shop, caCertCredentialName: "configmap://edge/cas"}`, []meshtest.Change{shop, meshtest.Object("ConfigMap", "edge", "cas", &registryv1.Object{Json: configMap})}, []string{"configmap://edge/cas", "kubernetes://shop"}},
		"files":      {`{mode: MUTUAL, serverCertificate: /d/c, privateKey: /d/k, caCertificates: /d/ca}`, nil, []string{"file-cert:/d/c~/d/k", "file-root:/d/ca"}},
		"mesh":       {`{mode: ISTIO_MUTUAL}`, []meshtest.Change{bundle}, []string{"ROOTCA"}},
		"passed":     {`{mode: PASSTHROUGH}`, nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			pc := meshtest.PushContext(t, append(test.objects, meshtest.YAML(t, gateway("edge", test.tls))...)...)
			all, problems := made(t, pc, router)
			if len(problems) > 0 {
				t.Errorf("problems: %+v", problems)
			}
			var names []string
			for name, p := range all {
				names = append(names, name)
				m := p.Message.(*tlsv3.Secret)
				c, v := m.GetTlsCertificate(), m.GetValidationContext()
				switch {
				case strings.HasPrefix(name, "file-"):
					if p.Key != nil || c.GetWatchedDirectory().GetPath() != "/d" && v.GetWatchedDirectory().GetPath() != "/d" {
						t.Errorf("%s: %v", name, p)
					}
				case c != nil:
					if p.Key == nil || p.Key.Field != "tls.key" || p.Key.Object.Name != "shop" || len(p.Key.Sum) != 32 || c.GetPrivateKey() != nil || c.GetCertificateChain().GetInlineString() != string(cert) {
						t.Errorf("%s: %v with %+v", name, c, p.Key)
					}
				case v.GetTrustedCa().GetInlineString() != string(ca) || p.Key != nil:
					t.Errorf("%s: %v", name, p)
				}
			}
			slices.Sort(names)
			if !slices.Equal(names, test.want) {
				t.Errorf("got %q, want %q", names, test.want)
			}
		})
	}
}

// Without a usable credential there is no secret, and never an empty one (S16). A
// Diagnostic at the Gateway names the Secret and the hosts (SDS-6).
func TestAbsent(t *testing.T) {
	cert, key := pair(t)
	other, otherKey := pair(t)
	both := map[string][]byte{"tls.crt": cert, "tls.key": key}
	for name, test := range map[string]struct {
		tls    string
		object []meshtest.Change
		want   string
	}{
		"no Secret":         {`{mode: SIMPLE, credentialName: shop}`, nil, "there is no Secret edge/shop"},
		"CA only":           {`{mode: SIMPLE, credentialName: shop}`, []meshtest.Change{object(t, "edge", "shop", map[string][]byte{"ca.crt": cert}, revealing)}, "has no certificate with its key"},
		"mismatch":          {`{mode: SIMPLE, credentialName: shop}`, []meshtest.Change{object(t, "edge", "shop", map[string][]byte{"tls.crt": cert, "tls.key": otherKey}, revealing)}, "is not the key of the certificate"},
		"not revealed":      {`{mode: SIMPLE, credentialName: shop}`, []meshtest.Change{object(t, "edge", "shop", both, credential.Options{Key: []byte("k")})}, "is not on the log"},
		"no HMAC":           {`{mode: SIMPLE, credentialName: shop}`, []meshtest.Change{object(t, "edge", "shop", both, credential.Options{Public: true})}, "has no HMAC"},
		"no CA":             {`{mode: MUTUAL, credentialName: shop}`, []meshtest.Change{object(t, "edge", "shop", both, revealing)}, "has no CA certificates"},
		"empty -cacert":     {`{mode: MUTUAL, credentialName: shop}`, []meshtest.Change{object(t, "edge", "shop", map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": cert}, revealing), object(t, "edge", "shop-cacert", both, revealing)}, "Secret edge/shop-cacert has no CA certificates"},
		"no ConfigMap":      {`{mode: MUTUAL, serverCertificate: /c, privateKey: /k, caCertCredentialName: "configmap://edge/cas"}`, nil, "there is no ConfigMap edge/cas"},
		"no field":          {`{mode: MUTUAL, serverCertificate: /c, privateKey: /k, caCertCredentialName: "configmap://edge/cas"}`, []meshtest.Change{meshtest.Object("ConfigMap", "edge", "cas", &registryv1.Object{Json: []byte(`{"data": {}}`)})}, "ConfigMap edge/cas has no CA certificates"},
		"another namespace": {`{mode: SIMPLE, credentialName: other/shop}`, []meshtest.Change{object(t, "other", "shop", both, revealing)}, "it names no credential of namespace edge"},
		"name of CAs":       {`{mode: SIMPLE, credentialName: shop-cacert}`, nil, "no credential of namespace edge"},
		"no TrustBundle":    {`{mode: ISTIO_MUTUAL}`, nil, "there is no TrustBundle of the trust domain cluster.local"},
		"one algorithm":     {`{mode: SIMPLE, credentialNames: [shop, two]}`, []meshtest.Change{object(t, "edge", "shop", both, revealing), object(t, "edge", "two", map[string][]byte{"tls.crt": other, "tls.key": otherKey}, revealing)}, "both have keys for ECDSA"},
	} {
		t.Run(name, func(t *testing.T) {
			pc := meshtest.PushContext(t, append(test.object, meshtest.YAML(t, gateway("edge", test.tls))...)...)
			all, problems := made(t, pc, router)
			if len(problems) != 1 || problems[0].Key.Kind != "Gateway" || !strings.Contains(problems[0].Reason, test.want) ||
				!strings.Contains(problems[0].Effect, "a.example.com, b.example.com") || !strings.HasPrefix(problems[0].Field, "spec.servers[0].tls.") {
				t.Errorf("got %+v, want %s", problems, test.want)
			}
			for name, p := range all {
				if v := p.Message.(*tlsv3.Secret).GetValidationContext(); v != nil && v.GetTrustedCa() == nil {
					t.Errorf("%s is empty", name)
				}
			}
		})
	}
}

// Routers have the credentials of DestinationRules, sidecars only those of rules that
// select them (SDS-4, DR-17).
func TestRules(t *testing.T) {
	cert, key := pair(t)
	objects := append(meshtest.YAML(t, `apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: g, namespace: shop}
spec: {selector: {app: edge}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ["*"]}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: all, namespace: shop}
spec: {host: x, trafficPolicy: {tls: {mode: MUTUAL, credentialName: client}}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: some, namespace: shop}
spec:
  host: y
  workloadSelector: {matchLabels: {app: a}}
  trafficPolicy: {portLevelSettings: [{port: {number: 80}, tls: {mode: SIMPLE, credentialName: client}}]}
`), meshtest.Service("shop", "x", "80"), meshtest.Service("shop", "y", "80"),
		object(t, "shop", "client", map[string][]byte{"tls.crt": cert, "tls.key": key, "ca.crt": cert}, revealing))
	pc := meshtest.PushContext(t, objects...)
	const chain, cas = "kubernetes://client", "kubernetes://client-cacert"
	for name, test := range map[string]struct {
		proxy proxy.Proxy
		want  []string
	}{
		"router":           {proxy.Proxy{Type: proxy.Router, Namespace: "shop", Labels: map[string]string{"app": "edge"}}, []string{chain, cas}},
		"sidecar":          {proxy.Proxy{Type: proxy.Sidecar, Namespace: "shop"}, nil},
		"selected sidecar": {proxy.Proxy{Type: proxy.Sidecar, Namespace: "shop", Labels: map[string]string{"app": "a"}}, []string{cas}},
		"gRPC client":      {proxy.Proxy{GRPC: true, Namespace: "shop", Labels: map[string]string{"app": "a"}}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			test.proxy.Identity = proxy.Identity{TrustDomain: "cluster.local", Namespace: "shop", ServiceAccount: "a"}
			class := index.Classify(pc, &test.proxy)
			all, problems := made(t, pc, class.SDS)
			var names []string
			for name := range all {
				names = append(names, name)
			}
			slices.Sort(names)
			if !slices.Equal(names, test.want) || len(problems) > 0 {
				t.Errorf("got %q, want %q; problems %+v", names, test.want, problems)
			}
		})
	}
}

// Names of SDS that users write mean the same as names of Secrets. Of another namespace
// only those with the schemes that say so mean something (SDS-3).
func TestNames(t *testing.T) {
	for credentialName, want := range map[string]secret.Names{
		"a":                          {Pairs: []string{"kubernetes://a"}, CA: "kubernetes://a-cacert"},
		"ns/a":                       {Pairs: []string{"kubernetes-gateway://ns/a"}, CA: "kubernetes-gateway://ns/a-cacert"},
		"kubernetes://a":             {Pairs: []string{"kubernetes://a"}, CA: "kubernetes://a-cacert"},
		"kubernetes-gateway://ns/a":  {Pairs: []string{"kubernetes-gateway://ns/a"}, CA: "kubernetes-gateway://ns/a-cacert"},
		"two/a":                      {Pairs: []string{secret.Invalid}, CA: secret.Invalid},
		"kubernetes://two/a":         {Pairs: []string{secret.Invalid}, CA: secret.Invalid},
		"kubernetes-gateway://two/a": {Pairs: []string{"kubernetes-gateway://two/a"}, CA: "kubernetes-gateway://two/a-cacert"},
		"kubernetes-gateway:///a":    {Pairs: []string{secret.Invalid}, CA: secret.Invalid},
		"builtin://":                 {Pairs: []string{secret.Mesh}, CA: secret.Roots},
		"configmap://ns/a":           {Pairs: []string{secret.Invalid}, CA: "configmap://ns/a"},
		"configmap://a":              {Pairs: []string{secret.Invalid}, CA: secret.Invalid},
		"configmap://two/a":          {Pairs: []string{secret.Invalid}, CA: "configmap://two/a"},
		"a/b/c":                      {Pairs: []string{secret.Invalid}, CA: secret.Invalid},
		"file-cert:/a~/b":            {Pairs: []string{secret.Invalid}, CA: secret.Invalid},
		"a-cacert":                   {Pairs: []string{secret.Invalid}, CA: "kubernetes://a-cacert"},
	} {
		got := secret.OfServer("ns", &networking.ServerTLSSettings{Mode: networking.ServerTLSSettings_MUTUAL, CredentialName: credentialName}, false)
		if !slices.Equal(got.Pairs, want.Pairs) || got.CA != want.CA {
			t.Errorf("%s: got %+v, want %+v", credentialName, got, want)
		}
	}
	for _, mode := range []networking.ServerTLSSettings_TLSmode{networking.ServerTLSSettings_MUTUAL, networking.ServerTLSSettings_OPTIONAL_MUTUAL} {
		if got := secret.OfServer("ns", &networking.ServerTLSSettings{Mode: mode, ServerCertificate: "/c", PrivateKey: "/k"}, false); got.CA != secret.Invalid {
			t.Errorf("%s without CAs asks for %q", mode, got.CA)
		}
	}
}

// A secret is made again when its Secret changes, and only then.
func TestInputs(t *testing.T) {
	cert, key := pair(t)
	data := map[string][]byte{"tls.crt": cert, "tls.key": key}
	pc := meshtest.PushContext(t, append(meshtest.YAML(t, gateway("edge", `{mode: SIMPLE, credentialName: shop}`)), object(t, "edge", "shop", data, revealing))...)
	parts := secret.Parts(pc.Read(), router)
	if len(parts) != 2 { // the CAs of the mesh are for each client with an identity
		t.Fatalf("got %v", parts)
	}
	r := pc.Read()
	parts[1].Make(r)
	if want := []index.Input{{Kind: index.InputSecret, A: "edge", B: "shop"}}; !slices.Equal(r.Inputs(), want) {
		t.Errorf("got %v, want %v", r.Inputs(), want)
	}
}

// SDS-12: on demand, a server asks for its one named credential under a name that no
// Listener asks for at once. Of two certificates, or of files, Envoy has to have all.
func TestOnDemand(t *testing.T) {
	for name, tls := range map[string]*networking.ServerTLSSettings{
		"on-demand:kubernetes://a":            {CredentialName: "a"},
		"on-demand:kubernetes-gateway://ns/a": {CredentialName: "ns/a"},
		"kubernetes://a, kubernetes://b":      {CredentialNames: []string{"a", "b"}},
		"file-cert:/c~/k":                     {ServerCertificate: "/c", PrivateKey: "/k"},
		secret.Mesh:                           {CredentialName: "builtin://"},
		secret.Invalid:                        {CredentialName: "two/a"},
	} {
		tls.Mode = networking.ServerTLSSettings_SIMPLE
		got := secret.OfServer("ns", tls, true)
		if all := strings.Join(got.Pairs, ", "); all != name || got.OnDemand != strings.HasPrefix(name, "on-demand:") {
			t.Errorf("on demand: %v: %+v, want %s", tls, got, name)
		}
	}
}

// CA-13: a secret for each set of trust domains by which some client verifies servers, and
// one with all of them for servers. Each domain has its own roots there; those of one domain
// alone, and those of the mesh, are as before. Without roots of the mesh there are none, and
// the MeshConfig says so.
func TestTrustDomains(t *testing.T) {
	own, _ := pair(t)
	two, _ := pair(t)
	three, _ := pair(t)
	entry := func(name string, names ...string) string {
		return fmt.Sprintf(`---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: %s, namespace: edge}
spec: {hosts: [%[1]s.example.com], resolution: STATIC, subjectAltNames: ["%[2]s"], ports: [{number: 80, name: http, protocol: HTTP}]}
`, name, strings.Join(names, `", "`))
	}
	const rule = `---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: r, namespace: edge}
spec: {host: c.example.com, subsets: [{name: s, trafficPolicy: {tls: {mode: ISTIO_MUTUAL, subjectAltNames: ["spiffe://three/a", "spiffe://two/a"]}}}]}
`
	config := fmt.Sprintf(`
apiVersion: mesh.istio.io/v1alpha1
kind: MeshConfig
metadata: {name: default}
spec:
  trustDomain: one
  trustDomainAliases: [uno, zwei]
  caCertificates: [{trustDomains: [two, zwei], pem: %q}, {trustDomains: [two, three, one], pem: %q}, {pem: %[1]q}, {trustDomains: [four], certSigners: [s], pem: %[1]q}]
`, two, three)
	documents := config + entry("a", "spiffe://two/ns/a/sa/a", "a.example.com") + entry("b", "spiffe://two/b") + rule
	bundle := meshtest.Object("TrustBundle", "", "one", &registryv1.TrustBundle{TrustDomain: "one", Roots: []*registryv1.Root{
		{Certificate: string(own), State: registryv1.RootState_ROOT_STATE_ACTIVE},
	}})
	all, problems := made(t, meshtest.PushContext(t, append(meshtest.YAML(t, documents), bundle)...), index.SDSClass{})
	if len(problems) > 0 {
		t.Errorf("problems: %+v", problems)
	}
	roots := map[string]string{"one": string(own), "uno": string(own), "two": string(two) + string(three), "three": string(three), "zwei": string(two)}
	want := []string{
		"ROOTCA:one,three,two,uno,zwei", // of servers
		"ROOTCA:one,two,uno",            // a
		"ROOTCA:one,two,uno,zwei",       // a and b, with accounts
		"ROOTCA:one,uno,zwei",           // services with accounts
		"ROOTCA:three,two",              // the rule
		"ROOTCA:two",                    // b
	}
	if got := slices.Sorted(maps.Keys(all)); !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	for name, p := range all {
		v := p.Message.(*tlsv3.Secret).GetValidationContext()
		if name == "ROOTCA:two" {
			if v.GetTrustedCa().GetInlineString() != roots["two"] {
				t.Errorf("%s: %v", name, v)
			}
			continue
		}
		var config tlsv3.SPIFFECertValidatorConfig
		if err := v.GetCustomValidatorConfig().GetTypedConfig().UnmarshalTo(&config); err != nil || v.GetTrustedCa() != nil {
			t.Fatalf("%s: %v, %v", name, v, err)
		}
		var domains []string
		for _, d := range config.GetTrustDomains() {
			domains = append(domains, d.GetName())
			if d.GetTrustBundle().GetInlineString() != roots[d.GetName()] {
				t.Errorf("%s: other roots of %s", name, d.GetName())
			}
		}
		if "ROOTCA:"+strings.Join(domains, ",") != name {
			t.Errorf("%s has the roots of %q", name, domains)
		}
	}
	all, problems = made(t, meshtest.PushContext(t, meshtest.YAML(t, documents)...), index.SDSClass{})
	if len(all) != 0 || len(problems) != 1 || problems[0].Key.Kind != "MeshConfig" || !strings.Contains(problems[0].Effect, "three, two, zwei") {
		t.Errorf("without roots of the mesh: %d secrets, %+v", len(all), problems)
	}
}

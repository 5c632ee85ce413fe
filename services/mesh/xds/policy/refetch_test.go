package policy_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	jwtv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/jwt_authn/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"github.com/go-jose/go-jose/v4"
	"google.golang.org/protobuf/types/known/durationpb"

	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/services/mesh/index"
	. "meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/policy"
	"meshlog.dev/services/suite/envoytest"
)

const refetched = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: login, namespace: auth}
spec:
  hosts: [login.example]
  resolution: STATIC
  ports: [{number: 8080, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.1, ports: {http: %d}}]
---
apiVersion: security.istio.io/v1
kind: RequestAuthentication
metadata: {name: p, namespace: shop, annotations: {meshlog.dev/jwks: envoy}}
spec: {jwtRules: [{issuer: 'https://login.example', jwksUri: 'http://login.example:8080/keys'}]}
`

// POL-13: a real Envoy with the generated filter and cluster fetches the keys of an issuer
// again by itself, so a key that the issuer has replaced is refused, and the new one is
// accepted, without a change of the configuration. Only the time between two fetches is not
// the generated one (TestProxyKeys), but a second.
func TestEnvoyFetchesAgain(t *testing.T) {
	old, next := newKey(t), newKey(t)
	var keys atomic.Pointer[ecdsa.PrivateKey]
	keys.Store(old)
	issuer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &keys.Load().PublicKey, KeyID: "k", Algorithm: "ES256"}}}) // Envoy would fetch again
	}))
	defer issuer.Close()
	pc := PushContext(t, YAML(t, fmt.Sprintf(refetched, portOf(t, issuer.Listener)))...)
	class := index.Classify(pc, &proxy.Proxy{Type: proxy.Sidecar, Namespace: "shop"})
	socket := filepath.Join(t.TempDir(), "http")
	l := httpListener(t, pc, class.ECDS, socket)
	fetchEvery(t, l, time.Second)
	c := envoytest.Config{Listeners: []*listenerv3.Listener{l}}
	generated(t, pc, class, &c)
	run(t, filepath.Dir(socket), c)

	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", socket)
	}}}
	until := func(what string, key *ecdsa.PrivateKey, want int) {
		t.Helper()
		token := bearer(t, key)
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		if err := program.Until(ctx, what, func(ctx context.Context) error {
			r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://shop.example/", nil)
			if err != nil {
				return err
			}
			r.Header.Set("Authorization", "Bearer "+token)
			resp, err := client.Do(r)
			if err != nil {
				return err
			}
			_ = resp.Body.Close() // only the status counts
			if resp.StatusCode != want {
				return fmt.Errorf("status %d", resp.StatusCode)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
	}
	until("the first key", old, http.StatusOK)
	until("a key that the issuer does not have", next, http.StatusUnauthorized)
	keys.Store(next)
	until("the next key", next, http.StatusOK)
	until("the key before", old, http.StatusUnauthorized)
}

// fetchEvery sets the time between two fetches of keys.
func fetchEvery(t *testing.T, l *listenerv3.Listener, every time.Duration) {
	t.Helper()
	filter, m := l.GetFilterChains()[0].GetFilters()[0], new(hcmv3.HttpConnectionManager)
	if err := filter.GetTypedConfig().UnmarshalTo(m); err != nil {
		t.Fatal(err)
	}
	fetches := false
	for _, f := range m.GetHttpFilters() {
		if f.GetName() != policy.JWT {
			continue
		}
		tokens := new(jwtv3.JwtAuthentication)
		if err := f.GetTypedConfig().UnmarshalTo(tokens); err != nil {
			t.Fatal(err)
		}
		for _, p := range tokens.GetProviders() {
			if from := p.GetRemoteJwks(); from != nil {
				from.CacheDuration, fetches = durationpb.New(every), true
			}
		}
		f.ConfigType = &hcmv3.HttpFilter_TypedConfig{TypedConfig: piece.Any(tokens)}
	}
	if !fetches {
		t.Fatal("no provider fetches keys")
	}
	filter.ConfigType = &listenerv3.Filter_TypedConfig{TypedConfig: piece.Any(m)}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// bearer returns a token of the issuer by a key.
func bearer(t *testing.T, key *ecdsa.PrivateKey) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: "k"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	signed, err := signer.Sign(fmt.Appendf(nil, `{"iss":"https://login.example","sub":"ann","exp":%d}`, time.Now().Add(time.Hour).Unix()))
	if err != nil {
		t.Fatal(err)
	}
	token, err := signed.CompactSerialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

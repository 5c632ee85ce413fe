package kube

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/deploy/testkit/kubetest"
	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/credential"
	"meshlog.dev/services/mesh/keymaterial"
)

// tlsSecret returns a Secret with a pair, as YAML.
func tlsSecret(namespace, name, labels string, certificate, key []byte) string {
	return fmt.Sprintf("apiVersion: v1\nkind: Secret\nmetadata: {name: %s, namespace: %s, labels: {%s}}\ntype: kubernetes.io/tls\ndata: {tls.crt: %s, tls.key: %s}\n---\n",
		name, namespace, labels, base64.StdEncoding.EncodeToString(certificate), base64.StdEncoding.EncodeToString(key))
}

// KEY-1, KEY-2, KEY-10: the watcher reads Secrets of some namespaces and labels only, reports
// their certificates and never a key, and tells which Secrets it leaves out.
func testSecrets(t *testing.T, s *kubetest.Server) {
	ca := certtest.NewCA("ca")
	web := ca.Server("web", time.Now().Add(time.Hour))
	others := tlsSecret("default", "elsewhere", "use: mesh", web.Cert, web.Key) + tlsSecret("shop", "unlabelled", "", web.Cert, web.Key)
	leaked := tlsSecret("shop", "leaked", "use: mesh", append(web.Cert[:len(web.Cert):len(web.Cert)], web.Key...), web.Key)
	must(t, s.Apply(t.Context(), others+leaked+tlsSecret("shop", "web", "use: mesh", web.Cert, web.Key)))
	selector, err := labels.Parse("use=mesh")
	must(t, err)
	w, _ := observe(t, s.Config(), func(c *Config, _ *limits) {
		c.Secrets = credential.Options{Key: []byte("a key that is not on the log...."), Public: true}
		c.SecretNamespaces, c.SecretSelector = []string{"shop"}, selector
	})
	w.lists("Secret")
	_, m := w.get("Secret shop/web")
	if ref := m.(*registryv1.SecretReference); ref.GetCertificateChain() != string(web.Cert) || ref.GetPair() != registryv1.Pair_PAIR_OK || len(ref.GetFields()["tls.key"]) != 32 {
		t.Errorf("the reference is %v", ref)
	}
	if o, reason := w.get("Secret shop/leaked"); o.Value.Type != ident.Undecoded || !strings.Contains(fmt.Sprint(reason), `data["tls.crt"]: holds a private key in PEM`) {
		t.Errorf("a certificate with its key: %v, %v", o.Value.Type, reason)
	}
	for name, o := range w.objects {
		if strings.Contains(name, "elsewhere") || strings.Contains(name, "unlabelled") {
			t.Errorf("%s was reported", name)
		}
		if form := keymaterial.In(o.Value.Bytes); form != "" {
			t.Errorf("%s has a key %s", name, form)
		}
	}
	want := "the watcher of cluster east reads Secrets of these namespaces only: shop; and with these labels only: use=mesh"
	if d := w.says("kind Secret", "secret-scope"); d.Reason != want || !strings.Contains(d.Effect, "unknown to proxies") {
		t.Errorf("said: %+v", d)
	}
	// A Secret that loses its label is outside, and unknown.
	must(t, s.Apply(t.Context(), tlsSecret("shop", "web", "", web.Cert, web.Key)))
	w.lacks("Secret shop/web")
}

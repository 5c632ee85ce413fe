package kubeconv_test

import (
	"bytes"
	"crypto/sha256"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"meshlog.dev/deploy/testkit/certtest"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/credential"
	"meshlog.dev/services/mesh/keymaterial"
	"meshlog.dev/services/mesh/kubeconv"
)

var (
	authority = certtest.NewCA("ca")
	server    = authority.Server("web", time.Now().Add(time.Hour))
)

// secret returns a Secret with these fields of a credential; others have a text.
func secret(kind corev1.SecretType, data ...string) *corev1.Secret {
	s := &corev1.Secret{Type: kind, Data: map[string][]byte{}}
	s.Namespace, s.Name = "prod", "web"
	for _, field := range data {
		content := []byte("content of " + field)
		switch field {
		case "tls.crt", "cert":
			content = server.Cert
		case "tls.key", "key":
			content = server.Key
		case "ca.crt", "cacert":
			content = authority.PEM()
		}
		s.Data[field] = slices.Clone(content)
	}
	return s
}

var options = credential.Options{Key: []byte("a key that is not on the log...."), Public: true}

// TestSecretKinds checks that only Secrets that can be TLS credentials are converted, and only the
// fields of a credential.
func TestSecretKinds(t *testing.T) {
	for _, c := range []struct {
		kind corev1.SecretType
		data string
		want string // the fields, empty if the Secret is not converted
	}{
		{"kubernetes.io/tls", "tls.crt tls.key", "tls.crt tls.key"},
		{"kubernetes.io/tls", "tls.crt tls.key ca.crt password", "ca.crt tls.crt tls.key"},
		{"kubernetes.io/tls", "tls.crt", ""},
		{"Opaque", "cert key cacert", "cacert cert key"},
		{"Opaque", "ca.crt", "ca.crt"},
		{"", "cert key", "cert key"},
		{"Opaque", "username password", ""},
		{"kubernetes.io/service-account-token", "ca.crt token", ""},
		{"kubernetes.io/dockerconfigjson", ".dockerconfigjson", ""},
		{"helm.sh/release.v1", "release cert key", ""},
		{"example.com/credential", "cert key", "cert key"},
	} {
		ref, err := kubeconv.Secret(secret(c.kind, strings.Fields(c.data)...), options)
		got := strings.Join(slices.Sorted(maps.Keys(ref.GetFields())), " ")
		if err != nil || (ref != nil) != (c.want != "") || got != c.want {
			t.Errorf("%s with %s: %v, %q; want %q", c.kind, c.data, err, got, c.want)
		}
		if ref != nil && ref.GetType() != string(c.kind) {
			t.Errorf("type %q, want %q", ref.GetType(), c.kind)
		}
	}
}

// KEY-1, KEY-2: the payload has the public parts and none of the rest, and Wipe removes the content
// from memory.
func TestSecretNeverLeaks(t *testing.T) {
	s := secret("kubernetes.io/tls", "tls.crt", "tls.key", "ca.crt", "password")
	held := s.Data["tls.key"]
	c := kubeconv.Converter{Secrets: options}
	p := payload(t, &c, "Secret", s)
	if keymaterial.In(p.Bytes) != "" || bytes.Contains(p.Bytes, []byte("content")) {
		t.Errorf("the payload has content of the Secret: %q", p.Bytes)
	}
	m, err := mustKind(t, "Secret").Decode(p.Type, p.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	ref := m.(*registryv1.SecretReference)
	if problems := mustKind(t, "Secret").Validate("", m); len(problems) > 0 {
		t.Errorf("the payload is invalid: %+v", problems)
	}
	if ref.GetCertificateChain() != string(server.Cert) || ref.GetCaBundle() != string(authority.PEM()) || ref.GetPair() != registryv1.Pair_PAIR_OK {
		t.Errorf("the payload is %v", ref)
	}
	if _, ok := c.Payload(mustKind(t, "Secret"), secret("Opaque", "password")); ok {
		t.Error("a Secret without a credential has a payload")
	}
	kubeconv.Wipe(s)
	if len(s.Data) > 0 || len(bytes.Trim(held, "\x00")) > 0 {
		t.Errorf("left in memory: %v, %q", s.Data, held)
	}
}

// KEY-2: a tls.crt that also holds the key, a common mistake, refuses the Secret: the log has the
// reason, and nothing of the Secret.
func TestSecretWithKeyInCertificate(t *testing.T) {
	s := secret("kubernetes.io/tls", "tls.crt", "tls.key")
	s.Data["tls.crt"] = slices.Concat(server.Cert, server.Key)
	u := undecoded(t, payload(t, &kubeconv.Converter{Secrets: options}, "Secret", s))
	if u.GetField() != `data["tls.crt"]` || !strings.HasPrefix(u.GetError(), "holds a private key in PEM") || len(u.GetData()) > 0 {
		t.Errorf("on the log: %v", u)
	}
}

// KEY-1, SDS-7: a reference that may contain key material, or that Envoy must not get, is invalid,
// whatever its source.
func TestSecretValidation(t *testing.T) {
	sum := bytes.Repeat([]byte{1}, sha256.Size)
	for name, c := range map[string]struct {
		ref  *registryv1.SecretReference
		good bool
	}{
		"good":             {&registryv1.SecretReference{Type: "kubernetes.io/tls", Fields: map[string][]byte{"tls.key": sum}}, true},
		"CAs":              {&registryv1.SecretReference{Fields: map[string][]byte{"ca.crt": sum}, CaBundle: string(authority.PEM())}, true},
		"content as CAs":   {&registryv1.SecretReference{Fields: map[string][]byte{"ca.crt": sum}, CaBundle: "-----BEGIN PRIVATE KEY-----"}, false},
		"a wrong pair":     {&registryv1.SecretReference{Fields: map[string][]byte{"tls.crt": sum, "tls.key": sum}, Pair: registryv1.Pair_PAIR_MISMATCH}, false},
		"no sum":           {&registryv1.SecretReference{Type: "Opaque", Fields: map[string][]byte{"cert": nil}}, true},
		"content":          {&registryv1.SecretReference{Fields: map[string][]byte{"tls.key": []byte("-----BEGIN PRIVATE KEY-----")}}, false},
		"short":            {&registryv1.SecretReference{Fields: map[string][]byte{"tls.key": sum[:31]}}, false},
		"another field":    {&registryv1.SecretReference{Fields: map[string][]byte{"password": sum}}, false},
		"content as field": {&registryv1.SecretReference{Fields: map[string][]byte{"-----BEGIN PRIVATE KEY-----": sum}}, false},
		"content as type":  {&registryv1.SecretReference{Type: "-----BEGIN PRIVATE KEY-----\nabc"}, false},
		"long type":        {&registryv1.SecretReference{Type: strings.Repeat("a", 101)}, false},
	} {
		problems := mustKind(t, "Secret").Validate("", c.ref)
		if (len(problems) == 0) != c.good {
			t.Errorf("%s: %+v", name, problems)
		}
		for _, p := range problems {
			if strings.Contains(p.Field+p.Reason+p.Advice, "BEGIN") {
				t.Errorf("%s: the problem repeats the content: %+v", name, p)
			}
		}
	}
	unknown := &registryv1.SecretReference{Type: "Opaque"}
	unknown.ProtoReflect().SetUnknown([]byte{0x7a, 1, 'x'})
	if len(mustKind(t, "Secret").Validate("", unknown)) == 0 {
		t.Error("a reference with unknown fields is valid")
	}
}

package kubeconv_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	corev1 "k8s.io/api/core/v1"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kubeconv"
)

func secret(kind corev1.SecretType, data ...string) *corev1.Secret {
	s := &corev1.Secret{Type: kind, Data: map[string][]byte{}}
	s.Namespace, s.Name = "prod", "web"
	for _, field := range data {
		s.Data[field] = []byte("content of " + field)
	}
	return s
}

var hmacKey = []byte("a key that is not on the log....")

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
		{"Opaque", "tls.crt tls.key ca.crl", "ca.crl tls.crt tls.key"},
		{"Opaque", "cert key cacert", "cacert cert key"},
		{"Opaque", "ca.crt", "ca.crt"},
		{"Opaque", "cacert", "cacert"},
		{"", "cert key", "cert key"},
		{"Opaque", "cert", ""},
		{"Opaque", "key", ""},
		{"Opaque", "username password", ""},
		{"kubernetes.io/service-account-token", "ca.crt token", ""},
		{"kubernetes.io/dockerconfigjson", ".dockerconfigjson", ""},
		{"helm.sh/release.v1", "release cert key", ""},
		{"example.com/credential", "cert key", "cert key"},
	} {
		ref, is := kubeconv.Secret(secret(c.kind, strings.Fields(c.data)...), hmacKey)
		got := strings.Join(slices.Sorted(maps.Keys(ref.GetFields())), " ")
		if is != (c.want != "") || got != c.want {
			t.Errorf("%s with %s: %t, %q; want %q", c.kind, c.data, is, got, c.want)
		}
		if is && ref.GetType() != string(c.kind) {
			t.Errorf("type %q, want %q", ref.GetType(), c.kind)
		}
	}
	empty := secret("kubernetes.io/tls", "tls.crt", "tls.key")
	empty.Data["tls.key"] = nil
	if ref, is := kubeconv.Secret(empty, hmacKey); is {
		t.Errorf("a Secret without a private key is converted to %v", ref)
	}
}

// TestSecretSums checks that the sums depend on the content, the HMAC key and the object, and that
// every process with the key can compute them.
func TestSecretSums(t *testing.T) {
	s := secret("kubernetes.io/tls", "tls.crt", "tls.key")
	ref, _ := kubeconv.Secret(s, hmacKey)
	h := hmac.New(sha256.New, hmacKey)
	h.Write([]byte("prod/web/tls.key\x00content of tls.key"))
	if diff := cmp.Diff(h.Sum(nil), ref.GetFields()["tls.key"]); diff != "" {
		t.Errorf("sum (-want +got):\n%s", diff)
	}
	again, _ := kubeconv.Secret(s, hmacKey)
	if !proto.Equal(ref, again) {
		t.Error("the same Secret has two references")
	}
	differ := func(what string, s *corev1.Secret, key []byte) {
		t.Helper()
		if other, _ := kubeconv.Secret(s, key); bytes.Equal(other.GetFields()["tls.key"], ref.GetFields()["tls.key"]) {
			t.Errorf("%s has the same sum", what)
		}
	}
	differ("another key", s, []byte("another"))
	other := s.DeepCopy()
	other.Namespace = "test"
	differ("another namespace", other, hmacKey)
	other = s.DeepCopy()
	other.Data["tls.key"][0]++
	differ("another content", other, hmacKey)
	if ref, is := kubeconv.Secret(s, nil); !is || len(ref.GetFields()["tls.key"]) != 0 {
		t.Errorf("without a key: %v, want fields without sums", ref)
	}
}

// TestSecretNeverLeaks checks that the payload has none of the content, and that Wipe removes the
// content from memory.
func TestSecretNeverLeaks(t *testing.T) {
	s := secret("kubernetes.io/tls", "tls.crt", "tls.key", "password")
	held := s.Data["tls.key"]
	c := kubeconv.Converter{SecretKey: hmacKey}
	p := payload(t, &c, "Secret", s)
	if bytes.Contains(p.Bytes, []byte("content")) {
		t.Errorf("the payload has content of the Secret: %q", p.Bytes)
	}
	m, err := mustKind(t, "Secret").Decode(p.Type, p.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	if problems := mustKind(t, "Secret").Validate("", m); len(problems) > 0 {
		t.Errorf("the payload is invalid: %+v", problems)
	}
	if _, ok := c.Payload(mustKind(t, "Secret"), secret("Opaque", "password")); ok {
		t.Error("a Secret without a credential has a payload")
	}
	kubeconv.Wipe(s)
	if len(s.Data) > 0 || len(bytes.Trim(held, "\x00")) > 0 {
		t.Errorf("left in memory: %v, %q", s.Data, held)
	}
}

// TestSecretValidation checks that a reference that may contain key material is invalid, whatever
// its source.
func TestSecretValidation(t *testing.T) {
	sum := bytes.Repeat([]byte{1}, sha256.Size)
	for name, c := range map[string]struct {
		ref  *registryv1.SecretReference
		good bool
	}{
		"good":             {&registryv1.SecretReference{Type: "kubernetes.io/tls", Fields: map[string][]byte{"tls.key": sum}}, true},
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

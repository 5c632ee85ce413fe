package piece

import (
	"encoding/hex"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
)

// Key names a private key, which the log does not have. A Secret has the name in place
// of the key, so its version says which key is served (KEY-5), and a frontend puts the
// key there.
type Key struct {
	Object ident.Key
	Field  string
	Sum    string // the HMAC of the field
}

// keyName begins the name of a key in a Secret. It cannot begin a key.
const keyName = "key of meshlog"

// text returns the name of k in a Secret.
func (k *Key) text() string {
	return strings.Join([]string{keyName, k.Object.Source, k.Object.Instance, k.Object.Kind, k.Object.Namespace, k.Object.Name, k.Field, hex.EncodeToString([]byte(k.Sum))}, "\n")
}

// Named returns a copy of a Secret with the name of its private key.
func (k *Key) Named(s *tlsv3.Secret) *tlsv3.Secret {
	return withKey(s, &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: k.text()}})
}

// WithKey returns a copy of a Secret with a private key in PEM.
func WithKey(s *tlsv3.Secret, pem []byte) *tlsv3.Secret {
	return withKey(s, &corev3.DataSource{Specifier: &corev3.DataSource_InlineBytes{InlineBytes: pem}})
}

func withKey(s *tlsv3.Secret, key *corev3.DataSource) *tlsv3.Secret {
	s = proto.CloneOf(s)
	s.GetTlsCertificate().PrivateKey = key
	return s
}

// keyOf returns the key that a Secret names; nil: it names none.
func keyOf(s *tlsv3.Secret) *Key {
	parts := strings.Split(s.GetTlsCertificate().GetPrivateKey().GetInlineString(), "\n")
	if len(parts) != 8 || parts[0] != keyName {
		return nil
	}
	sum, err := hex.DecodeString(parts[7])
	if err != nil {
		return nil
	}
	return &Key{
		Object: ident.Key{Source: parts[1], Instance: parts[2], Kind: parts[3], Namespace: parts[4], Name: parts[5]},
		Field:  parts[6], Sum: string(sum),
	}
}

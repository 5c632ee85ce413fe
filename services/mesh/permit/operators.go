package permit

import (
	"crypto/ed25519"
	"encoding/base64"
	"strings"

	configv1 "meshlog.dev/proto/meshlog/config/v1"
)

// keyPrefix begins the text of a public key.
const keyPrefix = "ed25519:"

// Key is the public key of an operator.
type Key = [ed25519.PublicKeySize]byte

// KeyText returns the text of a public key in a MeshPolicy.
func KeyText(k Key) string { return keyPrefix + base64.StdEncoding.EncodeToString(k[:]) }

// ParseKey reads what KeyText wrote, and nothing else.
func ParseKey(text string) (k Key, ok bool) {
	b, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(text, keyPrefix))
	if err != nil || len(b) != len(k) {
		return k, false
	}
	copy(k[:], b)
	return k, KeyText(k) == text
}

// Operators are the operators of a mesh, by their keys.
type Operators map[Key]string

// OperatorsOf returns the operators in a policy. It leaves out keys that validation
// refuses.
func OperatorsOf(all []*configv1.Operator) Operators {
	of := Operators{}
	for _, o := range all {
		for _, text := range o.GetKeys() {
			if k, ok := ParseKey(text); ok {
				of[k] = o.GetName()
			}
		}
	}
	return of
}

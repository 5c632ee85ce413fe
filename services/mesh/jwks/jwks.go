// Package jwks reads JSON Web Key Sets (RFC 7517), of which the log takes public keys
// only (POL-12).
//
// It is pure.
package jwks

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// MaxSize is how many bytes a set may have.
const MaxSize = 256 << 10

// Members of a key: texts and lists of texts that are public, and private ones.
var (
	texts   = []string{"alg", "crv", "e", "kid", "kty", "n", "use", "x", "x5t", "x5t#S256", "y"}
	lists   = []string{"key_ops", "x5c"}
	private = []string{"d", "dp", "dq", "k", "oth", "p", "q", "qi"}
)

// required has the members that make a key of each type.
var required = map[string][]string{"RSA": {"e", "n"}, "EC": {"crv", "x", "y"}, "OKP": {"crv", "x"}}

// Public returns a set as the log has it: without spaces, all members sorted, and only
// the known public ones. It leaves out keys of types that it does not know, as RFC 7517
// asks for. A private or symmetric key in the set is an error, as is a set without keys,
// which Envoy refuses (S26). Errors do not quote the set.
func Public(set []byte) (string, error) {
	if len(set) > MaxSize {
		return "", fmt.Errorf("has %d bytes, more than %d", len(set), MaxSize)
	}
	var in struct {
		Keys []map[string]json.RawMessage `json:"keys"`
	}
	if json.Unmarshal(set, &in) != nil {
		return "", errors.New("is no JSON Web Key Set: an object with a list \"keys\"")
	}
	out := struct {
		Keys []map[string]any `json:"keys"`
	}{}
	for i, k := range in.Keys {
		public, err := publicKey(k)
		if err != nil {
			return "", fmt.Errorf("key %d %w", i+1, err)
		}
		if public != nil {
			out.Keys = append(out.Keys, public)
		}
	}
	if len(out.Keys) == 0 {
		return "", errors.New("holds no public key of type RSA, EC or OKP")
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b) // it sorts the members of maps
	e.SetEscapeHTML(false)
	if err := e.Encode(out); err != nil {
		return "", err
	}
	return string(bytes.TrimSuffix(b.Bytes(), []byte("\n"))), nil
}

// publicKey returns the public members of a key, nil if its type is not known.
func publicKey(k map[string]json.RawMessage) (map[string]any, error) {
	out := map[string]any{}
	for name, raw := range k {
		var err error
		switch {
		case slices.Contains(private, name):
			return nil, errors.New("has a private member")
		case slices.Contains(texts, name):
			var text string
			err = json.Unmarshal(raw, &text)
			out[name] = text
		case slices.Contains(lists, name):
			var list []string
			err = json.Unmarshal(raw, &list)
			out[name] = list
		}
		if err != nil {
			return nil, fmt.Errorf("has a member %q of another type", name)
		}
	}
	kty, _ := out["kty"].(string)
	if kty == "oct" {
		return nil, errors.New("is symmetric, so it is not public")
	}
	if required[kty] == nil {
		return nil, nil
	}
	for _, name := range required[kty] {
		if text, _ := out[name].(string); text == "" {
			return nil, fmt.Errorf("lacks the member %q", name)
		}
	}
	return out, nil
}

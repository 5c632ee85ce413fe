package jwks

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"net/url"
	"strconv"
	"strings"
)

// Issuer is an issuer of tokens, and the URI of its key set as a RequestAuthentication
// names it; without a URI, the discovery document of the issuer has it.
type Issuer struct{ Issuer, URI string }

// Compare orders issuers.
func (i Issuer) Compare(o Issuer) int {
	return cmp.Or(cmp.Compare(i.Issuer, o.Issuer), cmp.Compare(i.URI, o.URI))
}

// ObjectName returns the name of the object of kind Jwks with the keys of i. Two issuers
// with one URI have an object each, and an issuer with two URIs has two: a policy that names
// another URI for an issuer does not change the keys that count for other policies.
func (i Issuer) ObjectName() string {
	sum := sha256.Sum256([]byte(i.Issuer + "\x00" + i.URI))
	return hex.EncodeToString(sum[:16])
}

// Source returns the https URL from which the keys of i can be fetched: of the set, or of
// the discovery document (OpenID Connect Discovery 1.0, section 4). ok is false if there
// is none.
func (i Issuer) Source() (source string, discovery, ok bool) {
	source = i.URI
	if discovery = source == ""; discovery {
		source = strings.TrimSuffix(i.Issuer, "/") + "/.well-known/openid-configuration"
	}
	return source, discovery, IsSource(source)
}

// IsSource reports whether keys may be fetched from a URL.
func IsSource(source string) bool {
	u, err := url.Parse(source)
	return err == nil && u.Scheme == "https" && u.Hostname() != "" && u.User == nil && u.Fragment == ""
}

// Endpoint returns the host and port that a URI of http or https names; ok is false if
// proxies cannot fetch keys from it.
func Endpoint(uri string) (host string, port uint32, ok bool) {
	u, err := url.Parse(uri)
	if err != nil || u.Hostname() == "" || u.User != nil || u.Fragment != "" || strings.ContainsAny(uri, " #") {
		return "", 0, false
	}
	text := u.Port()
	switch {
	case u.Scheme != "http" && u.Scheme != "https":
		return "", 0, false
	case text == "" && u.Scheme == "http":
		text = "80"
	case text == "":
		text = "443"
	}
	n, err := strconv.ParseUint(text, 10, 16)
	return strings.ToLower(u.Hostname()), uint32(n), err == nil && n > 0
}

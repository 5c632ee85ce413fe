package ca

import (
	"errors"
	"fmt"
	"strings"

	"meshlog.dev/services/ca/authn"
	"meshlog.dev/services/internal/process"
)

// issuers returns the authenticators of the OIDC issuers that the settings name.
func (s *Settings) issuers() (all []*authn.OIDC, err error) {
	var errs []error
	for _, text := range s.OIDC {
		c, err := parseIssuer(text)
		if err == nil {
			var o *authn.OIDC
			if o, err = authn.NewOIDC(s.TrustDomain, c); err == nil {
				all = append(all, o)
				continue
			}
		}
		errs = append(errs, process.Invalid("oidc", "%w", err))
	}
	return all, errors.Join(errs...)
}

// parseIssuer reads the words of an issuer, each NAME=VALUE.
func parseIssuer(text string) (c authn.OIDCConfig, err error) {
	seen := map[string]bool{}
	for _, word := range strings.Fields(text) {
		name, value, found := strings.Cut(word, "=")
		if !found || value == "" {
			return c, fmt.Errorf("%q: write NAME=VALUE, as in issuer=https://example.com", word)
		}
		if seen[name] {
			return c, fmt.Errorf("%q is there twice", name)
		}
		seen[name] = true
		switch claim, isClaim := strings.CutPrefix(name, "claim:"); {
		case isClaim && claim != "":
			if c.Claims == nil {
				c.Claims = map[string]string{}
			}
			c.Claims[claim] = value
		case name == "issuer":
			c.Issuer = value
		case name == "audience":
			c.Audience = value
		case name == "namespace":
			c.Namespace = value
		case name == "service-account":
			c.ServiceAccount = value
		case name == "algorithms":
			c.Algorithms = strings.Split(value, "+")
		default:
			return c, fmt.Errorf("%q is none of issuer, audience, namespace, service-account, algorithms and claim:NAME", name)
		}
	}
	return c, nil
}

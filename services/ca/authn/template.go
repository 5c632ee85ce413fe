package authn

import (
	"fmt"
	"strings"
)

// template makes a name of the claims of a token: a text with at most one {CLAIM} in
// it. A claim is the name of a member, or a JSON pointer to one within others, as in
// {/kubernetes.io/namespace}. With two claims, "a-" + "b" and "a" + "-b" could be one
// name.
type template struct{ before, claim, after string }

func parseTemplate(s string) (template, error) {
	before, rest, found := strings.Cut(s, "{")
	if !found {
		if s == "" || strings.Contains(s, "}") {
			return template{}, fmt.Errorf("%q is no template: write a name, or a claim in braces, as in {sub}", s)
		}
		return template{before: s}, nil
	}
	claim, after, closed := strings.Cut(rest, "}")
	if !closed || claim == "" || strings.ContainsAny(before, "}") || strings.ContainsAny(claim+after, "{}") {
		return template{}, fmt.Errorf("%q is no template: write at most one claim, in braces, as in team-{sub}", s)
	}
	return template{before, claim, after}, nil
}

// of returns the name that a token's claims make.
func (t template) of(claims map[string]any) (string, error) {
	if t.claim == "" {
		return t.before, nil
	}
	value, err := claimOf(claims, t.claim)
	if err != nil {
		return "", err
	}
	return t.before + value + t.after, nil
}

// claimOf returns the claim of a name or a JSON pointer (RFC 6901), which must be a
// text.
func claimOf(claims map[string]any, name string) (string, error) {
	path := []string{name}
	if pointer, ok := strings.CutPrefix(name, "/"); ok {
		path = strings.Split(pointer, "/")
		for i, p := range path {
			path[i] = strings.NewReplacer("~1", "/", "~0", "~").Replace(p)
		}
	}
	var at any = claims
	for _, p := range path {
		members, ok := at.(map[string]any)
		if !ok {
			return "", fmt.Errorf("the token has no claim %s", name)
		}
		at = members[p]
	}
	text, ok := at.(string)
	if !ok || text == "" {
		return "", fmt.Errorf("the token has no claim %s that is a text", name)
	}
	return text, nil
}

package policy

import (
	"strings"

	security "istio.io/api/security/v1beta1"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind"
)

// Member is a policy in a slot.
type Member struct {
	Slot string // without the common prefix: custom, jwt, audit, deny, allow
	Key  ident.Key
	// DryRun: the policy is evaluated, and decides nothing (AZ-8).
	DryRun bool
	// Closed: no value of the policy was ever good, so it refuses what it selects (POL-15).
	Closed bool
}

// Members returns the policies that fill the slots of a class, in the order in which the
// slots run. That of requests which a CUSTOM policy matches has those of the slot custom.
func Members(r *index.Reader, class index.ECDSClass) []Member {
	policies := read(r, class.Selected)
	var all []Member
	for _, name := range names {
		for _, p := range policies {
			m := Member{Key: p.Key}
			slot := JWT
			switch message := p.Message.(type) {
			case *security.RequestAuthentication, *kind.ProxyKeys:
			case *security.AuthorizationPolicy:
				slot = slotOf(message.GetAction())
			case *kind.DryRun:
				slot, m.DryRun = slotOf(message.Inner.GetAction()), !message.Enforced()
			default:
				if m.Closed = true; p.Key.Kind == "AuthorizationPolicy" {
					slot = Deny
				}
			}
			if slot == name {
				m.Slot = name[strings.LastIndexByte(name, '.')+1:]
				all = append(all, m)
			}
		}
	}
	return all
}

// slotOf returns the slot of an action; one that this build does not know is closed.
func slotOf(a security.AuthorizationPolicy_Action) string {
	switch a {
	case security.AuthorizationPolicy_ALLOW:
		return Allow
	case security.AuthorizationPolicy_AUDIT:
		return Audit
	case security.AuthorizationPolicy_CUSTOM:
		return Custom
	}
	return Deny
}

package inspect

import (
	"fmt"
	"strings"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
)

// rootCounts counts the roots of a trust domain by what they are used for.
type rootCounts struct {
	TrustDomain string `json:"trustDomain"`
	Announced   int    `json:"announced"`
	Active      int    `json:"active"`
	Retiring    int    `json:"retiring"`
}

// roots counts the roots in the newest version. A rotation needs no attention: the
// authority finishes it without a command.
func (v *StatusView) roots(bundles []*registryv1.TrustBundle) {
	for _, b := range bundles {
		c := rootCounts{TrustDomain: b.GetTrustDomain()}
		for _, r := range b.GetRoots() {
			switch r.GetState() {
			case registryv1.RootState_ROOT_STATE_ANNOUNCED:
				c.Announced++
			case registryv1.RootState_ROOT_STATE_ACTIVE:
				c.Active++
			case registryv1.RootState_ROOT_STATE_RETIRING:
				c.Retiring++
			}
		}
		v.Roots = append(v.Roots, c)
	}
}

// rootsLine returns the roots in words, and how far a rotation is.
func rootsLine(all []rootCounts) string {
	if len(all) == 0 {
		return "none"
	}
	lines := make([]string, 0, len(all))
	for _, c := range all {
		line := fmt.Sprintf("%s: %d active", c.TrustDomain, c.Active)
		if c.Announced > 0 {
			line += fmt.Sprintf(", %d announced", c.Announced)
		}
		if c.Retiring > 0 {
			line += fmt.Sprintf(", %d retiring", c.Retiring)
		}
		if c.Announced+c.Retiring > 0 {
			line += "; `meshlog ca status` shows the rotation"
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ")
}

package registry

import (
	"fmt"
	"strings"
)

// Host makes a DNS name of a registry's name: the case stays, other characters than
// letters, digits, - and . become -, and what a label may not begin or end with goes.
// A name that is too long is an error, and never shortened: two services could get one
// host (REG-5).
func Host(name string) (string, error) {
	clean := strings.Map(func(r rune) rune {
		if r == '-' || r == '.' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' {
			return r
		}
		return '-'
	}, name)
	var labels []string
	for label := range strings.SplitSeq(clean, ".") {
		if label = strings.Trim(label, "-"); label == "" {
			continue
		}
		if len(label) > 63 {
			return "", fmt.Errorf("%q has a label of %d characters; DNS allows 63", name, len(label))
		}
		labels = append(labels, label)
	}
	host := strings.Join(labels, ".")
	switch {
	case host == "":
		return "", fmt.Errorf("%q has no letter or digit", name)
	case len(host) > 253:
		return "", fmt.Errorf("%q has %d characters; DNS allows 253", name, len(host))
	}
	return host, nil
}

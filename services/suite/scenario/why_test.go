package scenario

import (
	"bytes"
	"fmt"
	"strings"

	"meshlog.dev/services/mesh/why"
)

// why says what made a resource of a proxy, or a field of it, and what set each leaf.
func (s *stage) why(args []string) ([]byte, error) {
	p, err := s.proxy(args[0])
	if err != nil {
		return nil, err
	}
	t, err := resourceType(args[1])
	if err != nil {
		return nil, err
	}
	q := why.Question{World: s.world, Proxy: p, Type: t, Resource: args[2]}
	if len(args) > 3 {
		q.Field = strings.Join(args[3:], " ")
	}
	a, err := why.Why(q)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for _, o := range a.Objects {
		fmt.Fprintf(&b, "%s: %s\n", o.Key, strings.Join(o.Fields, ", "))
	}
	for _, c := range a.Causes {
		fmt.Fprintf(&b, "%s: %s\n", c.Path, c.Value)
		for _, by := range c.Set {
			fmt.Fprintf(&b, "    %s\n", by)
		}
	}
	return b.Bytes(), nil
}

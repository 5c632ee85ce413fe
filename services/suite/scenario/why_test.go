package scenario

import (
	"bytes"
	"fmt"
	"strings"

	"meshlog.dev/services/mesh/why"
)

// why says what made a resource of a proxy, or a field of it: the objects, and what set each
// leaf, if there are few.
func (s *stage) why(args []string) ([]byte, error) {
	p, err := s.proxy(args[0])
	if err != nil {
		return nil, err
	}
	t, err := resourceType(args[1])
	if err != nil {
		return nil, err
	}
	q := why.Question{World: s.world, Proxy: p, Type: t, Resource: args[2], Field: strings.Join(args[3:], " ")}
	a, err := why.Why(q)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for _, c := range a.Causes {
		fmt.Fprintf(&b, "%s: %s\n", c.Path, c.Value)
		for _, by := range c.Set {
			fmt.Fprintf(&b, "    %s\n", by)
		}
		for _, by := range c.Brought {
			fmt.Fprintf(&b, "    in %s by %s\n", c.Within, by)
		}
	}
	for _, o := range a.Objects {
		fmt.Fprintf(&b, "without %s: ", o.Key)
		switch {
		case o.Whole:
			fmt.Fprintln(&b, "no such resource")
		case len(o.Fields) == 0:
			fmt.Fprintln(&b, "the same")
		default:
			fmt.Fprintln(&b, strings.Join(o.Fields, ", "))
		}
	}
	return b.Bytes(), nil
}

// whyNot says where the call of a line ends, what would let it pass, and what decides where
// it goes.
func (s *stage) whyNot(line string) (string, error) {
	words := strings.Fields(line)
	if len(words) < 3 {
		return "", fmt.Errorf("want PROXY METHOD URL")
	}
	p, err := s.proxy(words[0])
	if err != nil {
		return "", err
	}
	c, err := parseCall(words[1], words[2], words[3:])
	if err != nil {
		return "", err
	}
	a, err := why.WhyNot(why.CallQuestion{World: s.world, Proxy: p, Call: c})
	if err != nil {
		return "", err
	}
	var b strings.Builder
	say := func(format string, args ...any) { fmt.Fprintf(&b, "    "+format+"\n", args...) }
	say("%s", a.Says)
	for _, k := range a.Hidden {
		say("the host is that of %s", k)
	}
	for _, x := range a.Changes {
		say("it would pass without %s", strings.TrimSpace(fmt.Sprintf("%s %s %s", x.Key, x.Field, x.Value)))
	}
	for _, m := range a.Makers {
		say("without %s: %s", m.Key, strings.Join(m.Then, "; "))
	}
	for _, d := range a.Problems {
		say("%s %s: %s", d.Severity, d.Key, d.Reason)
	}
	return b.String(), nil
}

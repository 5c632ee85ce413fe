package scenario

import (
	"bytes"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/tools/txtar"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/simulate"
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
		for _, by := range c.Several {
			fmt.Fprintf(&b, "    each of %s\n", by)
		}
		if c.IsName {
			fmt.Fprintln(&b, "    the name of the resource")
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

// Each resource of a proxy in each story can be explained (WHY-4), and where each call of a
// story ends is what the simulation says, with a sentence (WHY-8).
func TestWhyInStories(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			t.Parallel()
			story, err := txtar.ParseFile(file)
			if err != nil {
				t.Fatal(err)
			}
			s := newStage(t)
			s.explains = true
			if _, err := s.play(story); err != nil {
				t.Fatal(err)
			}
			for _, name := range slices.Sorted(maps.Keys(s.proxies)) {
				s.explainAll(s.proxies[name])
			}
		})
	}
}

// mostExplained is how many resources of a type are explained for each proxy.
const mostExplained = 3

func (s *stage) explainAll(p *proxy.Proxy) {
	sets := s.sets(s.pc, p)
	for _, t := range []ident.ResourceType{ident.CDS, ident.EDS, ident.LDS, ident.RDS, ident.ECDS} {
		for _, r := range sets[t].Resources[:min(mostExplained, len(sets[t].Resources))] {
			a, err := why.Why(why.Question{World: s.world, Proxy: p, Type: t, Resource: r.Name})
			switch {
			case err != nil:
				s.t.Errorf("%s %s of %s: %v", t, r.Name, p.ID, err)
			case a.Leaves == 0, a.Leaves <= why.MostLeaves && len(a.Causes) == 0:
				s.t.Errorf("%s %s of %s has %d leaves, and causes of %d", t, r.Name, p.ID, a.Leaves, len(a.Causes))
			}
		}
	}
}

// explainCall reports a call that why-not and the simulation do not answer alike.
func (s *stage) explainCall(p *proxy.Proxy, c simulate.Call, o simulate.Outcome) error {
	a, err := why.WhyNot(why.CallQuestion{World: s.world, Proxy: p, Call: c})
	if err != nil {
		return err
	}
	if got, want := a.Outcome.Lines(), o.Lines(); !slices.Equal(got, want) || a.Says == "" {
		return fmt.Errorf("why-not says %q of %q, the simulation %q", a.Says, got, want)
	}
	goes := len(o.To) > 0 && o.Unknown == "" && !o.Refused && !o.Closed
	if a.End == why.Passes && !goes {
		return fmt.Errorf("why-not says that the call passes: %q", o.Lines())
	}
	return nil
}

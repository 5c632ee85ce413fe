package mcpxds

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"meshlog.dev/services/mesh/problem"
)

// problems are what is wrong with an answer.
type problems struct {
	bad  []string // what the source is told
	more int      // further bad objects
	// notes are what people are told, by what is wrong; order has their keys as they came.
	notes   map[string]*note
	order   []string
	further int // further notes
}

// note is a problem that several objects may have.
type note struct {
	problem.Diagnostic
	first string
	count int
}

// Limits of what is said, because a source may send anything.
const (
	told    = 10  // bad objects that a NACK names
	noted   = 20  // different problems with a type
	longest = 300 // bytes of a text
)

// cut returns a text that is not too long.
func cut(text string) string {
	if len(text) > longest {
		text = text[:longest] + " ..."
	}
	return strings.ToValidUTF8(text, "?")
}

func (p *problems) say(object, reason string) {
	if len(p.bad) == told {
		p.more++
		return
	}
	p.bad = append(p.bad, cut(object+": "+reason))
}

// nack returns what a source is told of its answer; empty: it is good.
func (p *problems) nack() string {
	text := strings.Join(p.bad, "; ")
	if p.more > 0 {
		text += fmt.Sprintf("; and %d others", p.more)
	}
	return text
}

func (p *problems) add(key, object string, d problem.Diagnostic) {
	if p.notes == nil {
		p.notes = map[string]*note{}
	}
	if n := p.notes[key]; n != nil {
		n.count++
		return
	}
	if len(p.notes) == noted {
		p.further++
		return
	}
	d.Reason = cut(d.Reason)
	p.notes[key] = &note{d, cut(object), 1}
	p.order = append(p.order, key)
}

// undecoded notes an object whose value is an Undecoded: the builder reports it.
func (p *problems) undecoded(n name, bad *problem.Diagnostic) { p.say(n.String(), bad.Error()) }

// unreadable notes an object that may be any.
func (p *problems) unreadable(err error) {
	p.say("an object", err.Error())
	p.add("unreadable", "", problem.Diagnostic{
		Severity: problem.Error, Code: "unreadable", Reason: err.Error(), Advice: "correct the object at its source",
		Effect: "the object is left out, and no object of its kind is removed",
	})
}

// twice notes a second object of a name.
func (p *problems) twice(n name) {
	p.add("twice", n.String(), problem.Diagnostic{
		Severity: problem.Warning, Code: "twice", Reason: "the source sends two objects of one name",
		Advice: "remove one of them at the source", Effect: "the first one counts",
	})
}

// unknown notes a field that was left out.
func (p *problems) unknown(n name, field string) {
	p.add("unknown "+field, n.String(), problem.Diagnostic{
		Severity: problem.Warning, Code: "unknown-field", Field: field, Reason: "this build does not know the field",
		Advice: "use a newer meshlog if the field matters", Effect: "the field has no effect",
	})
}

// diagnostics returns the notes about a collection.
func (p *problems) diagnostics(c *collection, origin string) []problem.Diagnostic {
	var ds []problem.Diagnostic
	for _, key := range p.order {
		n := p.notes[key]
		d := n.Diagnostic
		d.Origin = origin + " " + c.url
		if n.first != "" {
			d.Reason += fmt.Sprintf(" (%s %s", c.of.kind.Name, n.first)
			if n.count > 1 {
				d.Reason += fmt.Sprintf(" and %d others", n.count-1)
			}
			d.Reason += ")"
		}
		ds = append(ds, d)
	}
	if p.further > 0 {
		ds = append(ds, problem.Diagnostic{
			Severity: problem.Warning, Code: "further", Origin: origin + " " + c.url,
			Reason: fmt.Sprintf("there are %d further problems", p.further), Advice: "correct the others first",
		})
	}
	return ds
}

// report reports the problems that have changed.
func (r *run) report() {
	origin := "xds://" + r.cfg.Address
	say := func(at string, ds []problem.Diagnostic) {
		if !slices.Equal(r.reported[at], ds) {
			r.reported[at] = ds
			r.sink.Problems(at, ds)
		}
	}
	var whole []problem.Diagnostic
	for _, s := range r.sets {
		for _, c := range s.versions {
			say(c.url, c.problems.diagnostics(c, origin))
		}
		if why := r.doubt(s.kind.Name).Reason(); s.held && why != "" {
			whole = append(whole, problem.Diagnostic{
				Severity: problem.Warning, Code: "doubted", Origin: origin,
				Reason: fmt.Sprintf("the source has %d objects of kind %s, far fewer than before: %s", s.total().Services, s.kind.Name, why),
				Advice: "nothing is to be done if they were removed",
				Effect: "nothing of the kind is removed until a second reading agrees",
			})
		}
	}
	say("source", append(whole, r.strange(origin)...))
}

// strange returns the problems with which types are answered.
func (r *run) strange(origin string) (ds []problem.Diagnostic) {
	var silent []string
	for _, s := range r.sets {
		if r.listed && s.awaited() && !s.covered {
			silent = append(silent, s.kind.Name)
		}
	}
	if len(silent) > 0 {
		ds = append(ds, problem.Diagnostic{
			Severity: problem.Warning, Code: "unanswered", Origin: origin,
			Reason: fmt.Sprintf("the source did not answer within %v for %s", r.patience, strings.Join(silent, ", ")),
			Advice: "nothing is to be done if the source has none of them", Effect: "objects of these kinds stay as they are",
		})
	}
	if len(r.foreign) > 0 {
		ds = append(ds, problem.Diagnostic{
			Severity: problem.Warning, Code: "foreign", Origin: origin,
			Reason: "the source sends types that it was not asked for: " + strings.Join(slices.Sorted(maps.Keys(r.foreign)), ", "),
			Advice: "nothing is to be done if they do not matter", Effect: "they are left out",
		})
	}
	return ds
}

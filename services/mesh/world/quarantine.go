package world

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"

	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/mesh/problem"
)

func resourceProto(r *ident.Resource) *snapshotv1.Resource {
	return &snapshotv1.Resource{
		TypeUrl: r.Type, Name: r.Name, Sum: r.Sum[:], Client: r.Client, Class: r.Class,
		Piece: r.Piece, Closed: r.Closed, By: r.By,
	}
}

func resourceOf(p *snapshotv1.Resource) (*ident.Resource, error) {
	r := &ident.Resource{
		Rejected: ident.Rejected{Type: p.GetTypeUrl(), Name: p.GetName(), Client: p.GetClient()}, Class: p.GetClass(),
		Piece: p.GetPiece(), Closed: p.GetClosed(), By: p.GetBy(),
	}
	if len(p.GetSum()) != len(r.Sum) {
		return nil, errors.New("the sum of a resource is too short")
	}
	copy(r.Sum[:], p.GetSum())
	return r, nil
}

// resourceName returns the type and name of r for people.
func resourceName(r *ident.Resource) string {
	if t, ok := ident.ResourceTypeOf(r.Type); ok {
		return t.Message() + " " + r.Name
	}
	return r.Type + " " + r.Name
}

// Replacement is the message that clients get in place of a resource, or of a
// piece of one, in quarantine.
type Replacement struct {
	Name string
	Sum  [16]byte // of the replaced content; other contents of that name are served
	// Piece: Sum is that of a virtual host or filter chain, and Good takes its
	// place in every content that has it.
	Piece bool
	// Closed: Good refuses requests or connections.
	Closed bool
	Good   []byte // the message served instead; nil: none
}

// outranks reports whether r counts of two replacements for one content. What
// refuses outranks an earlier content: that was rejected too.
func (r Replacement) outranks(o Replacement) bool { return r.Closed || !o.Closed }

// quarantines are the quarantines of a world, by the clients that they affect.
// They are immutable; nil: there are none.
type quarantines struct {
	overlays []Overlay // by id
	by       map[affected][]Replacement
}

// affected is a version of a client, and a type with replacements for it.
type affected struct {
	client string
	t      ident.ResourceType
}

func newQuarantines(overlays map[string]Overlay) *quarantines {
	q := &quarantines{by: map[affected][]Replacement{}}
	for _, id := range slices.Sorted(maps.Keys(overlays)) {
		o := overlays[id]
		if o.Kind != ident.Quarantine {
			continue
		}
		q.overlays = append(q.overlays, o)
		for _, v := range o.Values {
			if v.Resource == nil {
				continue
			}
			t, ok := ident.ResourceTypeOf(v.Resource.Type)
			if !ok {
				continue // another build serves this type
			}
			r := Replacement{Name: v.Resource.Name, Sum: v.Resource.Sum, Piece: v.Resource.Piece != "", Closed: v.Resource.Closed}
			if v.Value != nil {
				r.Good = v.Value.Bytes
			}
			// Of several quarantines of one content that both refuse or both do
			// not, the greatest id counts.
			a := affected{v.Resource.Client, t}
			if i := slices.IndexFunc(q.by[a], func(x Replacement) bool { return x.Name == r.Name && x.Sum == r.Sum && x.Piece == r.Piece }); i < 0 {
				q.by[a] = append(q.by[a], r)
			} else if r.outranks(q.by[a][i]) {
				q.by[a] = append(slices.Delete(q.by[a], i, i+1), r)
			}
		}
	}
	if len(q.overlays) == 0 {
		return nil
	}
	return q
}

// Releases returns client for each type with a quarantine that affects it, and ""
// for the others.
func (w *World) Releases(client string) (releases [ident.ResourceTypes]string) {
	if w.quarantines == nil {
		return releases
	}
	for t := range ident.ResourceTypes {
		for _, of := range []string{client, ident.UserAgent(client)} {
			if _, ok := w.quarantines.by[affected{of, t}]; ok {
				releases[t] = client
			}
		}
	}
	return releases
}

// SameQuarantinedClients reports whether the quarantines of w and o affect the
// same clients.
func (w *World) SameQuarantinedClients(o *World) bool {
	p, q := w.quarantines, o.quarantines
	if p == q || p == nil || q == nil {
		return p == q
	}
	return maps.EqualFunc(p.by, q.by, func(_, _ []Replacement) bool { return true })
}

// Replacements returns the replacements of resources of type t for clients of
// that release. The caller must not change the result.
func (w *World) Replacements(t ident.ResourceType, release string) []Replacement {
	if w.quarantines == nil || release == "" {
		return nil
	}
	one, both := w.quarantines.by[affected{release, t}], w.quarantines.by[affected{ident.UserAgent(release), t}]
	if len(both) == 0 || ident.UserAgent(release) == release {
		return one
	}
	return slices.Concat(one, both) // the first of one content counts
}

func (q *quarantines) diagnostics() (all []problem.Diagnostic) {
	if q == nil {
		return nil
	}
	for _, o := range q.overlays {
		for _, v := range o.Values {
			if v.Resource == nil {
				continue
			}
			effect := "it is not sent to them; its content before is served instead"
			switch {
			case v.Value == nil:
				effect = "it is not sent to them, and nothing is served instead"
			case v.Resource.Closed:
				effect = "it is not sent to them; requests are answered with 503, connections are closed"
			}
			what := "it"
			if v.Resource.Piece != "" {
				what = "its " + v.Resource.Piece
				effect += "; the rest of the resource is sent"
			}
			all = append(all, problem.Diagnostic{
				Severity: problem.Error, Code: "quarantined", Resource: resourceName(v.Resource),
				Reason: fmt.Sprintf("%s rejects %s: %s", v.Resource.Client, what, cmp.Or(o.Reason, "no reason was given")),
				Advice: fmt.Sprintf("correct the objects it is made of, or run `meshlog approve %s` to send it again", o.ID),
				Effect: effect,
			})
		}
	}
	return all
}

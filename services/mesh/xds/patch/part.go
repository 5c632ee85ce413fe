package patch

import (
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
)

// Parts returns the parts of resources of type t of a class with the patches of the selections
// in its Filters, and the parts that these add: those that may take the place of a Gateway's
// listener, and the others.
func Parts(client index.Client, t ident.ResourceType, selected index.SelectorSet, parts []piece.Part) (patched, added, own []piece.Part) {
	if selected == "" || client == index.ClientGRPC {
		return parts, nil, nil
	}
	if t != ident.ECDS { // what policies decide has no patches
		for i, p := range parts {
			if _, makesNothing := p.(piece.Problem); !makesNothing {
				parts[i] = part{p, client, t, selected}
			}
		}
	}
	if t == ident.RDS {
		return parts, nil, nil
	}
	return parts, []piece.Part{addition{client, t, selected, true}}, []piece.Part{addition{client, t, selected, false}}
}

// part is a part whose pieces are patched.
type part struct {
	of       piece.Part
	client   index.Client
	t        ident.ResourceType
	selected index.SelectorSet
}

// Make implements piece.Part.
func (p part) Make(r *index.Reader) ([]piece.Piece, []problem.Diagnostic) {
	pieces, problems := p.of.Make(r)
	out := make([]piece.Piece, 0, len(pieces))
	for _, one := range pieces {
		if one.Message == nil {
			out = append(out, one)
			continue
		}
		s := subject{client: p.client, t: p.t, name: one.Name, partial: one.Partial, base: one.Message}
		m, found := s.patched(r, r.Patches(p.client, p.t, p.selected, s.places()...))
		problems = append(problems, found...)
		if m != nil {
			one.Message = m
			out = append(out, one)
		}
	}
	return out, problems
}

// addition is the part for the resources that patches add, of namespaces that may change what
// policies decide or of the others.
type addition struct {
	client     index.Client
	t          ident.ResourceType
	selected   index.SelectorSet
	privileged bool
}

// Make implements piece.Part.
func (a addition) Make(r *index.Reader) (pieces []piece.Piece, problems []problem.Diagnostic) {
	names := map[string]*index.Patch{}
	for _, p := range r.Patches(a.client, a.t, a.selected, index.AtAdd) {
		named, ok := p.Value.(interface{ GetName() string })
		if !ok || p.Privileged != a.privileged {
			continue
		}
		r.Applied(p)
		if first := names[named.GetName()]; first != nil {
			d := p.Problem("patch.value.name")
			d.Code, d.Reason = "conflict", "configPatches of "+first.Key.String()+" add a resource of the name "+named.GetName()+" already"
			d.Advice, d.Effect = "give it another name", "the other one is served"
			problems = append(problems, d)
			continue
		}
		if reason := refusal(p.Value, false); reason != "" {
			problems = append(problems, refused(p, reason))
			continue
		}
		names[named.GetName()] = p
		pieces = append(pieces, piece.Piece{Name: named.GetName(), Message: proto.Clone(p.Value)})
	}
	return pieces, problems
}

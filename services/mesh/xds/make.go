package xds

import (
	"fmt"
	"slices"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/row"
)

// made is an encoded piece with the name of its resource.
type made struct {
	name    string
	partial bool
	*Encoded
}

// output is the result of a part.
type output struct {
	pieces   []made
	inputs   []index.Input // what was read, sorted
	problems []problem.Diagnostic
	applied  map[index.PatchID]struct{} // patches of EnvoyFilters that matched something
	// failed: making it panicked, so its pieces are unknown.
	failed bool
}

// clientOf returns the kind of client for which resources of type t are
// checked: gRPC clients, or routers, which stand for all Envoys.
func clientOf(class index.ProxyClass, t ident.ResourceType) index.Client {
	if kindOfClient(class, t) == index.ClientGRPC {
		return index.ClientGRPC
	}
	return index.ClientRouter
}

// kindOfClient returns the kind of client that a class is of.
func kindOfClient(class index.ProxyClass, t ident.ResourceType) index.Client {
	return [...]index.Client{ident.CDS: class.CDS.Client, ident.EDS: class.EDS.Client, ident.LDS: class.LDS.Client, ident.RDS: class.RDS.Client, ident.SDS: class.SDS.Client, ident.ECDS: class.ECDS.Client, ident.NDS: class.NDS.Client}[t]
}

// makePart makes a part. It closes, or leaves out, and reports the pieces that
// clients would reject, the same ones in every process.
func makePart(pc *index.PushContext, k partKey) (out output) {
	r := pc.ReadFor(k.pin)
	pc = pc.In(k.pin)
	defer func() {
		if v := recover(); v != nil {
			inputs := r.Inputs()
			out = output{inputs: inputs, failed: true, problems: []problem.Diagnostic{panicked(k.t, fmt.Sprintf("%+v", k.part), v, inputs)}}
		}
	}()
	pieces, problems := k.part.Make(r)
	out = output{inputs: r.Inputs(), problems: problems, applied: r.AppliedPatches(), pieces: make([]made, 0, len(pieces))}
	// All expressions of routes are written in VirtualServices.
	stock := pc.HasLargeRegexes() && !k.large && k.client != index.ClientGRPC
	for _, one := range pieces {
		if routes, ok := one.Message.(*routev3.RouteConfiguration); ok && stock {
			withoutLargeRegexes(routes)
		}
		e, ds := encode(k, one, out.inputs)
		out.problems = append(out.problems, ds...)
		if e != nil {
			out.pieces = append(out.pieces, made{one.Name, one.Partial, e})
		}
	}
	return out
}

// panicked reports an error in this program.
func panicked(t ident.ResourceType, what string, cause any, inputs []index.Input) problem.Diagnostic {
	return problem.Diagnostic{
		Severity: problem.Error, Code: "internal",
		Reason: fmt.Sprintf("making %s of %s%s panicked: %v", t, what, origin(inputs), cause),
		Advice: "report this error; until it is fixed, change the objects that it names",
		Effect: "its last good content stays in service",
	}
}

// check returns why clients would reject a generated piece.
func check(k partKey, p piece.Piece, inputs []index.Input) []problem.Diagnostic {
	var ds []problem.Diagnostic
	refused := func(by, field, reason string) {
		ds = append(ds, problem.Diagnostic{
			Severity: problem.Error, Code: "refused", Field: field,
			Reason: fmt.Sprintf("%s %q%s would be refused by %s: %s", k.t.Message(), p.Name, origin(inputs), by, reason),
			Advice: "correct the objects that it is made of",
		})
	}
	for _, d := range validate.CheckEnvoy(p.Message) {
		if d.Severity == problem.Error {
			refused("Envoy", d.Field, d.Reason)
		}
	}
	if k.client == index.ClientGRPC {
		for _, d := range validate.CheckGRPC(p.Message) {
			if d.Code != validate.Unsupported { // a warning too: all requests would fail, or a match would be wider
				refused("gRPC", d.Field, d.Reason)
			}
		}
	}
	return ds
}

// origin names the objects among inputs, for people.
func origin(inputs []index.Input) string {
	var names []string
	for _, in := range inputs {
		switch in.Kind {
		case index.InputService:
			names = append(names, "service "+in.B)
		case index.InputVirtualService:
			names = append(names, "VirtualService "+in.A+"/"+in.B)
		case index.InputRule:
			names = append(names, "DestinationRule of "+in.B+" in "+in.A)
		case index.InputSecret:
			names = append(names, "Secret "+in.A+"/"+in.B)
		case index.InputConfigMap:
			names = append(names, "ConfigMap "+in.A+"/"+in.B)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return ", made of " + strings.Join(slices.Compact(names), ", ") + ","
}

// asIs returns a message that was valid when it arrived or that clients applied.
// If this build cannot read it, it is served all the same, without facts about
// its order.
func asIs(t ident.ResourceType, value []byte) *Encoded {
	return encodings.get(t, value, func() piece.Facts {
		facts, _ := piece.Inspect(t, value)
		return facts
	})
}

// encode encodes a piece. If clients would reject it, it returns why, and what is
// served instead, so that its requests and connections fall through to no other
// piece; nil: nothing is. It panics on a message that cannot be marshalled; the
// world's texts are UTF-8, so there is none.
//
// The checks and the facts need reflection over the whole message. Both depend
// on its bytes only, so a piece that another Catalog of this process holds,
// such as the builder's beside the frontend's, is not checked again.
func encode(k partKey, p piece.Piece, inputs []index.Input) (*Encoded, []problem.Diagnostic) {
	if p.Message == nil {
		return asIs(k.t, p.Value), nil
	}
	if p.Key != nil {
		p.Message = p.Key.Named(p.Message.(*tlsv3.Secret))
	}
	e := encoded(k.t, p)
	accepted := uint32(1) << k.client
	if e.acceptedBy.Load()&accepted != 0 {
		return e, nil
	}
	ds := check(k, p, inputs)
	if len(ds) == 0 {
		e.acceptedBy.Or(accepted)
		return e, nil
	}
	closed, names := row.Close(p.Message, p.Partial, func(m proto.Message) bool {
		return len(check(k, piece.Piece{Name: p.Name, Message: m}, nil)) > 0
	})
	for i := range ds {
		ds[i].Effect = effect(k, closed != nil, names)
	}
	if closed == nil {
		return nil, ds
	}
	return encoded(k.t, piece.Piece{Name: p.Name, Message: closed}), ds
}

func encoded(t ident.ResourceType, p piece.Piece) *Encoded {
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(p.Message)
	if err != nil {
		panic(fmt.Errorf("marshal %s %q: %w", t.Message(), p.Name, err))
	}
	return encodings.get(t, value, func() piece.Facts { return piece.FactsOf(t, p.Message) })
}

// effect says what is served in place of a refused piece: nothing, or a refusal in
// place of the pieces of these names, of all if there are none.
func effect(k partKey, closed bool, names []string) string {
	if !closed {
		return "it is not served"
	}
	of := ""
	if len(names) > 0 {
		of = " for its " + strings.Join(names, ", ")
	}
	switch {
	case k.t == ident.LDS:
		return fmt.Sprintf("connections%s are closed", of)
	case k.t == ident.ECDS:
		return "all requests are answered with 403"
	case k.t == ident.CDS:
		return "it is served without endpoints: requests get 503"
	case k.client == index.ClientGRPC:
		return fmt.Sprintf("clients fail the requests%s", of)
	}
	return fmt.Sprintf("requests%s are answered with 503", of)
}

// collected collects the pieces of one name. Partial pieces are one resource; a whole
// one counts alone, the first of several.
type collected struct {
	pieces []*Encoded
	whole  bool
}

func (r *collected) add(one *Encoded, partial bool) {
	switch {
	case r.whole:
	case partial:
		r.pieces = append(r.pieces, one)
	default:
		r.pieces, r.whole = append(r.pieces[:0], one), true
	}
}

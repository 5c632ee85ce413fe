package xds

import (
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/xds/piece"
	"meshlog.dev/services/mesh/xds/proxyless"
)

// made is an encoded piece with what it is a piece of.
type made struct {
	name    string
	partial bool
	*Encoded
}

// output is what a part came to.
type output struct {
	pieces   []made
	inputs   []index.Input // that were read, sorted
	problems []problem.Diagnostic
	// failed says that making it panicked: what was made is not known.
	failed bool
}

// clientOf is for what kind of client the resources of type t are checked:
// gRPC's, or Envoys, of which routers stand for all.
func clientOf(class index.ProxyClass, t ident.ResourceType) index.Client {
	clients := [...]index.Client{ident.CDS: class.CDS.Client, ident.EDS: class.EDS.Client, ident.LDS: class.LDS.Client, ident.RDS: class.RDS.Client}
	if clients[t] == index.ClientGRPC {
		return index.ClientGRPC
	}
	return index.ClientRouter
}

// makePart makes a part. What clients would refuse is left out and reported:
// every process leaves out the same.
func makePart(pc *index.PushContext, k partKey) (out output) {
	r := pc.Read()
	defer func() {
		if v := recover(); v != nil {
			inputs := r.Inputs()
			out = output{inputs: inputs, failed: true, problems: []problem.Diagnostic{panicked(k.t, fmt.Sprintf("%+v", k.part), v, inputs)}}
		}
	}()
	pieces, problems := k.part.Make(r)
	out = output{inputs: r.Inputs(), problems: problems, pieces: make([]made, 0, len(pieces))}
	for _, one := range pieces {
		e, ds := encode(k, one, out.inputs)
		out.problems = append(out.problems, ds...)
		if e != nil {
			out.pieces = append(out.pieces, made{one.Name, one.Partial, e})
		}
	}
	return out
}

// panicked reports an error of this program.
func panicked(t ident.ResourceType, what string, cause any, inputs []index.Input) problem.Diagnostic {
	return problem.Diagnostic{
		Severity: problem.Error, Code: "internal",
		Reason: fmt.Sprintf("making %s of %s%s panicked: %v", t, what, origin(inputs), cause),
		Advice: "report this error; to go on, change the objects that it names",
		Effect: "what was served of it before is served on",
	}
}

// check says what clients would refuse in a generated piece.
func check(k partKey, p piece.Piece, inputs []index.Input) []problem.Diagnostic {
	var ds []problem.Diagnostic
	refused := func(by, field, reason string) {
		ds = append(ds, problem.Diagnostic{
			Severity: problem.Error, Code: "refused", Field: field,
			Reason: fmt.Sprintf("%s %q%s would be refused by %s: %s", k.t.Message(), p.Name, origin(inputs), by, reason),
			Advice: "correct the objects that it is made of",
			Effect: "it is not served",
		})
	}
	for _, d := range validate.CheckEnvoy(p.Message) {
		if d.Severity == problem.Error {
			refused("Envoy", d.Field, d.Reason)
		}
	}
	if k.client == index.ClientGRPC {
		for _, reason := range proxyless.Check(p.Message) {
			refused("gRPC", "", reason)
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
		}
	}
	if len(names) == 0 {
		return ""
	}
	return ", made of " + strings.Join(slices.Compact(names), ", ") + ","
}

// encode encodes a piece, or says what clients would refuse in it. It panics on
// a message that cannot be marshalled, which the texts of the world, UTF-8 all
// of them, do not bring about.
//
// The checks and the facts need reflection over the whole message. Both depend
// on its bytes alone, so a piece that another Catalog of this process holds, for
// instance the builder's beside the frontend's, is not checked again.
func encode(k partKey, p piece.Piece, inputs []index.Input) (*Encoded, []problem.Diagnostic) {
	if p.Message == nil { // a raw resource: it was checked when it came
		return encodings.get(k.t, p.Value, func() piece.Facts {
			// The fold lets nothing through that is no such message; without
			// facts it is served all the same, in no special order.
			facts, _ := piece.Inspect(k.t, p.Value)
			return facts
		}), nil
	}
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(p.Message)
	if err != nil {
		panic(fmt.Errorf("marshal %s %q: %w", k.t.Message(), p.Name, err))
	}
	e := encodings.get(k.t, value, func() piece.Facts { return piece.FactsOf(k.t, p.Message) })
	accepted := uint32(1) << k.client
	if e.acceptedBy.Load()&accepted == 0 {
		if ds := check(k, p, inputs); len(ds) > 0 {
			return nil, ds
		}
		e.acceptedBy.Or(accepted)
	}
	return e, nil
}

// join adds a piece to those of its name: partial ones are one resource, a
// whole one counts alone, and of several the first. P says whether a piece is
// partial.
func join[P any](have []P, one P, partial func(P) bool) []P {
	switch {
	case len(have) == 0 || partial(have[0]) && partial(one):
		return append(have, one)
	case partial(have[0]):
		return []P{one}
	}
	return have
}

package row

import (
	"fmt"
	"slices"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
)

// MaxHeld is how many pieces one rejection holds back. If more are to blame, the
// whole resource is held back.
const MaxHeld = 64

// Case is a rejected resource.
type Case struct {
	Type ident.ResourceType
	Name string
	// Made is the resource as it is generated. With has what clients were sent in
	// place of some of its pieces.
	Made []byte
	With map[Sum]StandIn
	// Good is what the clients had before, or nil.
	Good []byte
	// Message is how a client explained the rejection.
	Message string
}

// Held is a piece that is held back.
type Held struct {
	Sum  Sum    // of the piece as it is generated
	Name string // for people
	StandIn
}

// suspect is a piece of the resource as clients were sent it.
type suspect struct {
	Held
	made    []byte        // as it is generated
	sent    proto.Message // a message of the resource's type with this piece alone
	with    *StandIn      // nil: it was sent as it is generated
	changed bool          // the last good resource does not have it
}

// Blame returns the pieces to hold back: those that the message names, else those
// that the clients did not have before. If they were sent without what is held
// back already and reject the rest all the same, further pieces are to blame, or
// what stands in for one, which is then replaced by a refusal. It returns none if
// no piece is to blame more than the whole resource.
func (c *Case) Blame() []Held {
	if !Has(c.Type) {
		return nil
	}
	all, ok := c.suspects()
	if !ok {
		return nil
	}
	blamed := c.named(all)
	if len(blamed) == 0 {
		blamed = c.unnamed(all)
	}
	if len(blamed) == 0 || len(blamed) > MaxHeld {
		return nil
	}
	var good proto.Message
	if c.Good != nil {
		good, _ = decode(c.Type, c.Good) // undecodable: none
	}
	held := make([]Held, 0, len(blamed))
	for _, s := range blamed {
		if s.with != nil && s.with.Closed {
			return nil // even a refusal in its place is rejected
		}
		is, err := decode(c.Type, s.made)
		if err != nil {
			return nil
		}
		if s.with != nil {
			s.StandIn = forPiece(is, nil)
		} else {
			s.StandIn = forPiece(is, good)
		}
		if !slices.ContainsFunc(held, func(h Held) bool { return h.Sum == s.Sum }) {
			held = append(held, s.Held)
		}
	}
	return held
}

// unnamed returns the suspects if the message names none: the pieces that the
// clients did not have before, or all if that is unknown. What stands in for a
// piece is suspected last.
func (c *Case) unnamed(all []*suspect) []*suspect {
	for _, standing := range []bool{false, true} {
		var blamed []*suspect
		for _, s := range all {
			if (s.with != nil) == standing && (s.changed || c.Good == nil) {
				blamed = append(blamed, s)
			}
		}
		if len(blamed) > 0 {
			return blamed
		}
	}
	return nil
}

// suspects returns the pieces as they were sent, in order. A piece in whose place
// several were sent is several suspects.
func (c *Case) suspects() (all []*suspect, ok bool) {
	var had map[Sum]bool
	if c.Good != nil {
		had = map[Sum]bool{}
		for _, s := range Pieces(c.Type, c.Good) {
			had[s] = true
		}
	}
	_, pieces := split(c.Type, c.Made)
	for _, made := range pieces {
		sum := SumOf(made)
		sent, with := [][]byte{made}, (*StandIn)(nil)
		if w, ok := c.With[sum]; ok {
			_, sent = split(c.Type, w.Value)
			with = &w
		}
		whole, err := decode(c.Type, made)
		if err != nil {
			return nil, false
		}
		for _, one := range sent {
			m, err := decode(c.Type, one)
			if err != nil {
				return nil, false
			}
			all = append(all, &suspect{Held: Held{Sum: sum, Name: nameOf(whole)}, made: made, sent: m, with: with, changed: !had[SumOf(one)]})
		}
	}
	return all, true
}

// nameOf names a piece for people.
func nameOf(m proto.Message) string {
	switch m := m.(type) {
	case *routev3.RouteConfiguration:
		return "virtual host " + m.GetVirtualHosts()[0].GetName()
	case *listenerv3.Listener:
		if m.GetDefaultFilterChain() != nil {
			return "default filter chain"
		}
		c := m.GetFilterChains()[0]
		if c.GetName() != "" {
			return "filter chain " + c.GetName()
		}
		if all := c.GetFilterChainMatch().GetServerNames(); len(all) > 0 {
			return "filter chain for " + all[0]
		}
		if all := c.GetFilterChainMatch().GetPrefixRanges(); len(all) > 0 {
			return fmt.Sprintf("filter chain for %s/%d", all[0].GetAddressPrefix(), all[0].GetPrefixLen().GetValue())
		}
		return "filter chain"
	}
	return "piece"
}

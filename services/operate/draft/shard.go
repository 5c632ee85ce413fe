package draft

import (
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
)

// Shard is a source as a fold has it.
type Shard struct {
	Name   ident.Shard
	Fold   *fold.Fold
	Offers map[ident.Key]fold.Offer
	All    []fold.Offer // sorted by row
}

// Keep notes what the source offers.
func (s *Shard) Keep() {
	s.All, s.Offers = s.Fold.Offers(s.Name), map[ident.Key]fold.Offer{}
	for _, o := range s.All {
		s.Offers[o.Key] = o
	}
}

// Version returns the resourceVersion of an object: the position that changed it last.
// That is the beginning of the epoch for one from before.
func (s *Shard) Version(o fold.Offer) ident.Position {
	return ident.Position{Epoch: s.Fold.Segment().Epoch, Seq: o.Seq}
}

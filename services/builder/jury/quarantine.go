package jury

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/gate"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds/row"
	"meshlog.dev/store"
)

const (
	// MaxQuarantines is how many rejections can be in quarantine. One may hold back
	// several pieces of a resource.
	MaxQuarantines = 100
	// MaxByOne is how many of them one identity or address may cause, so that no
	// client fills the quarantine with invented user agents.
	MaxByOne = MaxQuarantines / 10
	// maxGood is the maximum size in bytes of the replacements that a quarantine
	// serves. The overlay contains them, so frontends serve them from their own file.
	maxGood = 256 << 10
)

// Worlds returns the world of a published version: store.ErrNotFound if it is no
// longer kept.
type Worlds func(ident.Position) (*world.World, error)

// Propose returns the overlays with which the leader puts guilty suspects into
// quarantine, and those that lift the quarantines of contents that are no longer
// generated; or, instead of all of them, one that stops the running rollout. The gate must
// have built the world of the fold.
func (j *Jury) Propose(now time.Time, f *fold.Fold, worlds Worlds) ([]*events.Overlay, error) {
	j.keepClasses(f)
	if stop := j.blame(f); stop != nil {
		return []*events.Overlay{stop}, nil // what it gave to proxies needs no quarantine then
	}
	proposed, err := j.condemn(now, f, worlds)
	if err != nil {
		return nil, err
	}
	for _, o := range f.Quarantines() {
		// A group of pieces of which one has changed gets another chance: that one
		// may have been to blame for all.
		if !slices.ContainsFunc(o.Values, func(v ident.OverlayValue) bool { return !j.stands(f, v.Resource) }) {
			continue
		}
		proposed = append(proposed, &events.Overlay{ID: o.ID, Kind: ident.Quarantine, Reason: "its content has changed", Remove: true})
	}
	return proposed, nil
}

// standing returns the resources and pieces that are in quarantine.
func standing(f *fold.Fold) map[ident.Rejected]bool {
	all := map[ident.Rejected]bool{}
	for _, o := range f.Quarantines() {
		for _, v := range o.Values {
			all[v.Resource.Rejected] = true
		}
	}
	return all
}

// charges returns how many quarantines each identity or address has caused.
func charges(f *fold.Fold) map[string]int {
	all := map[string]int{}
	for _, o := range f.Quarantines() {
		if len(o.Values) > 0 {
			all[o.Values[0].Resource.By]++
		}
	}
	return all
}

// keepClasses makes the gate retain the resources of the classes that quarantines
// and suspects name.
func (j *Jury) keepClasses(f *fold.Fold) {
	var classes []gate.ClassOf
	add := func(x ident.Rejected, encoded []byte) {
		if of, ok := classOf(x, encoded); ok {
			classes = append(classes, present(f, of))
		}
	}
	for _, o := range f.Quarantines() {
		for _, v := range o.Values {
			add(v.Resource.Rejected, v.Resource.Class)
		}
	}
	for x := range j.suspects {
		class := j.evidence(x).class
		add(x, class)
		if of, ok := classOf(x, class); ok && f.Running() != "" {
			classes = append(classes, inView(of, f.Running()))
		}
	}
	j.gate.Keep(classes)
}

// classOf decodes a class. ok is false if another build encoded it.
func classOf(x ident.Rejected, encoded []byte) (of gate.ClassOf, ok bool) {
	t, ok := ident.ResourceTypeOf(x.Type)
	class, err := index.DecodeClass(encoded)
	if !ok || err != nil {
		return gate.ClassOf{}, false
	}
	return gate.ClassOf{Type: t, Class: class.Only(t)}, true
}

// stands reports whether what is in quarantine is still generated at the position
// of the fold.
func (j *Jury) stands(f *fold.Fold, q *ident.Resource) bool {
	of, ok := classOf(q.Rejected, q.Class)
	return ok && j.gate.Stands(present(f, of), q)
}

// present returns a class in a view that has ended as it is now: its proxies are served what
// all others are.
func present(f *fold.Fold, of gate.ClassOf) gate.ClassOf {
	if view := of.Class.Pin(of.Type); view != "" && !f.HasView(view) {
		return inView(of, "")
	}
	return of
}

// condemn proposes quarantines of guilty suspects.
func (j *Jury) condemn(now time.Time, f *fold.Fold, worlds Worlds) ([]*events.Overlay, error) {
	var proposed []*events.Overlay
	then, most, charged := past{}, MaxQuarantines-len(f.Quarantines()), charges(f)
	for _, x := range sortedKeys(j.suspects) {
		s, e := j.suspects[x], j.evidence(x)
		if len(proposed) >= most {
			break
		}
		if now.Sub(s.tried) < decideWithin || !j.guilty(now, s, e) {
			continue
		}
		by := e.charge(charged)
		if charged[by] >= MaxByOne {
			continue
		}
		s.tried = now
		of, ok := classOf(x, e.class)
		if !ok {
			continue
		}
		c := j.gate.Content(of, x.Client, x.Name)
		if c == nil || c.Sent == nil || c.SentSum != x.Sum {
			continue // the resource has changed meanwhile
		}
		good, err := j.lastGood(then, x, e, worlds)
		if err != nil {
			return nil, err
		}
		o := &events.Overlay{
			ID: quarantineID(f, x), Kind: ident.Quarantine, Reason: strings.Join(strings.Fields(e.message), " "), // one line
			Values: j.instead(of, x, e, c, good),
		}
		for i := range o.Values {
			o.Values[i].Resource.By = by
		}
		charged[by]++
		proposed = append(proposed, o)
	}
	return proposed, nil
}

// instead returns what is held back of a rejected resource, and what is served in
// its place: of a row of pieces those to blame, else the whole resource.
func (j *Jury) instead(of gate.ClassOf, x ident.Rejected, e evidence, c *gate.Content, good []byte) []ident.OverlayValue {
	t := of.Type
	rejection := row.Case{Type: t, Name: x.Name, Made: c.Made, With: c.StandIns, Good: good, Message: e.message}
	var values []ident.OverlayValue
	size := 0
	for _, h := range rejection.Blame() {
		piece := x
		piece.Sum = h.Sum
		values = append(values, ident.OverlayValue{
			Resource: &ident.Resource{Rejected: piece, Class: e.class, Piece: h.Name, Closed: h.Closed},
			Value:    &ident.Value{Type: x.Type, Bytes: h.Value},
		})
		size += len(h.Value) + len(e.class) + len(h.Name)
	}
	if len(values) > 0 && size <= maxGood {
		return values
	}
	if len(good) > maxGood {
		j.log.Warn("what proxies had before is too large to be served instead", "resource", x.Name, "version", e.good, "bytes", len(good))
		good = nil
	}
	whole := row.Whole(t, c.Made, good)
	if whole.Closed && t == ident.CDS && of.Class.CDS.Client == index.ClientGRPC {
		whole = row.StandIn{} // gRPC refuses a cluster without discovery, and fails the requests if it is absent
	}
	v := ident.OverlayValue{Resource: &ident.Resource{Rejected: x, Class: e.class, Closed: whole.Closed}}
	if whole.Value != nil {
		v.Value = &ident.Value{Type: x.Type, Bytes: whole.Value}
	}
	return []ident.OverlayValue{v}
}

// quarantineID depends only on the rejected content, so two leaders that come to
// the same conclusion propose the same. A number is added if the same content is
// rejected again later, because ids are used once.
func quarantineID(f *fold.Fold, x ident.Rejected) string {
	h := sha256.Sum256([]byte(strings.Join([]string{x.Type, x.Name, x.Client, string(x.Sum[:])}, "\x00")))
	first := fmt.Sprintf("quarantine-%x", h[:6])
	id := first
	for n := 2; f.OverlayRemoved(id); n++ {
		id = fmt.Sprintf("%s-%d", first, n)
	}
	return id
}

// past caches the resources of earlier versions. Resources that are rejected
// together mostly had their last good content in the same version.
type past map[ident.Position]func(gate.ClassOf, string) ([]byte, [16]byte)

// lastGood returns the resource that the class was served in the version which the
// rejecting proxies had before, or nil if it is not found.
func (j *Jury) lastGood(then past, x ident.Rejected, e evidence, worlds Worlds) ([]byte, error) {
	t, ok := ident.ResourceTypeOf(x.Type)
	class, err := index.DecodeClass(e.class)
	if !ok || err != nil || len(e.goodSum) == 0 || e.good.IsZero() {
		return nil, nil
	}
	served := then[e.good]
	if served == nil {
		w, err := worlds(e.good)
		if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrCorrupt) {
			j.log.Warn("the version that proxies had before is no longer kept", "resource", x.Name, "version", e.good, "error", err)
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		served = j.gate.Served(w)
		then[e.good] = served
	}
	var release [ident.ResourceTypes]string
	release[t] = x.Client
	value, sum := served(gate.ClassOf{Type: t, Class: class.Released(release)}, x.Name)
	if value == nil || !slices.Equal(sum[:], e.goodSum) {
		j.log.Warn("what proxies had before is not found", "resource", x.Name, "version", e.good)
		return nil, nil
	}
	return value, nil
}

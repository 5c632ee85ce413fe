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
	"meshlog.dev/store"
)

const (
	// MaxQuarantines is how many resources can be in quarantine.
	MaxQuarantines = 100
	// maxGood is the maximum size in bytes of the replacement that a quarantine
	// serves. The overlay contains it, so frontends serve it from their own file.
	maxGood = 256 << 10
)

// Worlds returns the world of a published version: store.ErrNotFound if it is no
// longer kept.
type Worlds func(ident.Position) (*world.World, error)

// Propose returns the overlays with which the leader puts guilty suspects into
// quarantine, and those that lift the quarantines of contents that are no longer
// generated. The gate must have built the world of the fold.
func (j *Jury) Propose(now time.Time, f *fold.Fold, worlds Worlds) ([]*events.Overlay, error) {
	j.keepClasses(f)
	proposed, err := j.condemn(now, f, worlds)
	if err != nil {
		return nil, err
	}
	for _, o := range f.Quarantines() {
		if slices.ContainsFunc(o.Values, func(v ident.OverlayValue) bool { return j.made(v.Resource.Rejected, v.Resource.Class) }) {
			continue
		}
		proposed = append(proposed, &events.Overlay{ID: o.ID, Kind: ident.Quarantine, Reason: "its content has changed", Remove: true})
	}
	return proposed, nil
}

// standing returns the resources that are in quarantine.
func standing(f *fold.Fold) map[ident.Rejected]bool {
	all := map[ident.Rejected]bool{}
	for _, o := range f.Quarantines() {
		for _, v := range o.Values {
			all[v.Resource.Rejected] = true
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
			classes = append(classes, of)
		}
	}
	for _, o := range f.Quarantines() {
		for _, v := range o.Values {
			add(v.Resource.Rejected, v.Resource.Class)
		}
	}
	for x := range j.suspects {
		add(x, j.evidence(x).class)
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

// made reports whether exactly the rejected content is generated for a class at
// the position of the fold, whether it is in quarantine or not.
func (j *Jury) made(x ident.Rejected, class []byte) bool {
	of, ok := classOf(x, class)
	if !ok {
		return false
	}
	sum, ok := j.gate.Made(of, x.Name)
	return ok && sum == x.Sum
}

// condemn proposes quarantines of guilty suspects.
func (j *Jury) condemn(now time.Time, f *fold.Fold, worlds Worlds) ([]*events.Overlay, error) {
	var proposed []*events.Overlay
	then, most := past{}, MaxQuarantines-len(standing(f))
	for _, x := range sortedKeys(j.suspects) {
		s, e := j.suspects[x], j.evidence(x)
		if len(proposed) >= most {
			break
		}
		if now.Sub(s.tried) < decideWithin || !j.guilty(now, s, e) {
			continue
		}
		s.tried = now
		if !j.made(x, e.class) {
			continue // the resource has changed meanwhile
		}
		good, err := j.lastGood(then, x, e, worlds)
		if err != nil {
			return nil, err
		}
		proposed = append(proposed, &events.Overlay{
			ID: quarantineID(f, x), Kind: ident.Quarantine, Reason: strings.Join(strings.Fields(e.message), " "), // one line
			Values: []ident.OverlayValue{{Resource: &ident.Resource{Rejected: x, Class: e.class}, Value: good}},
		})
	}
	return proposed, nil
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
// rejecting proxies had before, or nil if it is not found or too large.
func (j *Jury) lastGood(then past, x ident.Rejected, e evidence, worlds Worlds) (*ident.Value, error) {
	t, ok := ident.ResourceTypeOf(x.Type)
	class, err := index.DecodeClass(e.class)
	if !ok || err != nil || len(e.goodSum) == 0 || e.good.IsZero() {
		return nil, nil
	}
	served := then[e.good]
	if served == nil {
		w, err := worlds(e.good)
		if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrCorrupt) {
			j.log.Warn("the version that proxies had before is no longer kept; the rejected resource is left out", "resource", x.Name, "version", e.good, "error", err)
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
	if value == nil || !slices.Equal(sum[:], e.goodSum) || len(value) > maxGood {
		j.log.Warn("what proxies had before cannot be served; the rejected resource is left out", "resource", x.Name, "version", e.good, "bytes", len(value))
		return nil, nil
	}
	return &ident.Value{Type: x.Type, Bytes: value}, nil
}

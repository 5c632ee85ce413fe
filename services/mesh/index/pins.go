package index

import (
	"maps"
	"slices"

	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
)

// view is the world as the proxies of a pin see it, or those that a rollout has not
// reached. Immutable.
type view struct {
	pin       world.Overlay
	selectors []*Selector  // that of a pin; of a rollout those of the proxies that it has reached
	pc        *PushContext // has no views
	differ    []ident.Key  // objects served otherwise than to all other proxies
}

// newViews returns the views of the pins of pc's world. They continue from those of
// before, from which pc was made by a change of these keys; the inputs that differ in them
// are added to inputs. before is nil if the views of the PushContext before do not count.
func (pc *PushContext) newViews(before *PushContext, changed []ident.Key, inputs map[Input]struct{}) []*view {
	var views []*view
	other := before != nil && !before.world.SameViews(pc.world)
	for _, pin := range pc.world.Views() {
		w, differ := pc.world.View(pin.ID)
		v := &view{pin: pin, differ: differ}
		was := before.view(pin.ID)
		if was == nil {
			v.selectors = groupOf(&pin)
			v.pc, _ = pc.next(w, differ)
		} else {
			v.selectors = was.selectors
			if other {
				v.selectors = groupOf(&pin)
			}
			var found map[Input]struct{}
			v.pc, found = was.pc.next(w, changedIn(was.pc.world, w, changed, was.differ, differ))
			for in := range found {
				in.View = pin.ID
				inputs[in] = struct{}{}
			}
			other = other || !was.pc.SameClasses(v.pc)
		}
		v.pc.pin = pin.ID
		views = append(views, v)
	}
	if !other {
		return views
	}
	pc.classes = new(byte)
	pc.views = views
	for _, v := range slices.Concat(before.views, views) {
		if before.view(v.pin.ID) == nil || pc.view(v.pin.ID) == nil {
			inputs[Input{Kind: InputView, A: v.pin.ID, View: v.pin.ID}] = struct{}{}
		}
	}
	return views
}

// changedIn returns the keys of the objects that differ between two worlds, if they are
// among these.
func changedIn(before, after *world.World, among ...[]ident.Key) []ident.Key {
	all := slices.Concat(among...)
	slices.SortFunc(all, world.CompareKeys)
	return slices.DeleteFunc(slices.Compact(all), func(k ident.Key) bool { return before.Served(k) == after.Served(k) })
}

// view returns the view of a pin, or nil.
func (pc *PushContext) view(pin string) *view {
	if pc == nil {
		return nil
	}
	for _, v := range pc.views {
		if v.pin.ID == pin {
			return v
		}
	}
	return nil
}

// In returns the PushContext that classes of a pin are generated from. Without such a
// pin, which was removed, that is pc.
func (pc *PushContext) In(pin string) *PushContext {
	if v := pc.view(pin); v != nil {
		return v.pc
	}
	return pc
}

// pinned returns the view of the latest pin that selects p, or that of a rollout which has
// not reached p, or nil.
func (pc *PushContext) pinned(p *proxy.Proxy) *view {
	if len(pc.views) == 0 {
		return nil // the usual case
	}
	at := placeOf(p)
	for _, v := range pc.views { // the one that counts first
		if v.isFor(p, &at) {
			return v
		}
	}
	return nil
}

// isFor reports whether p is served v's values, unless a view before is for it.
func (v *view) isFor(p *proxy.Proxy, at *place) bool {
	selected := func(by []ident.Proxies) bool {
		for i, s := range v.selectors {
			if id := by[i].ID; (id == "" || id == p.ID) && s.matches(at, labels(p.Labels)) {
				return true
			}
		}
		return false
	}
	if r := v.pin.Rollout; r != nil {
		return !r.Reached.Share(v.pin.ID, p.ID) && !selected(r.Reached.Proxies)
	}
	return selected([]ident.Proxies{*v.pin.Proxies})
}

// groupOf returns the selectors of raw resources that select the same proxies as those
// of a pin or a rollout do by cluster, namespace and labels.
func groupOf(o *world.Overlay) (all []*Selector) {
	of := []ident.Proxies{}
	if o.Rollout != nil {
		of = o.Rollout.Reached.Proxies
	} else {
		of = append(of, *o.Proxies)
	}
	for _, p := range of {
		s, err := newSelector(&configv1.NodeSelector{Cluster: p.Cluster, Metadata: labels(p.Labels)}, p.Namespace)
		if err != nil {
			panic(err) // texts can be marshalled
		}
		all = append(all, s)
	}
	return all
}

// labels returns labels as the metadata of a node. Those of a proxy are what the world
// knows of its workload, if it knows it.
func labels(of map[string]string) *structpb.Struct {
	if len(of) == 0 {
		return nil
	}
	fields := make(map[string]*structpb.Value, len(of))
	for name, value := range maps.All(of) {
		fields[name] = structpb.NewStringValue(value)
	}
	return &structpb.Struct{Fields: map[string]*structpb.Value{"LABELS": structpb.NewStructValue(&structpb.Struct{Fields: fields})}}
}

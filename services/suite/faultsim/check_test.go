package faultsim

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/builder"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/store"
)

// violation names an invariant that does not hold: M1 to M8 or SIM-1 to SIM-12.
type violation struct{ invariant, text string }

func (v violation) Error() string { return v.invariant + ": " + v.text }

func fail(invariant, format string, args ...any) {
	panic(violation{invariant, fmt.Sprintf(format, args...)})
}

// checks holds the history that the invariants are checked against.
type checks struct {
	versions []*version // the chain, by sequence
	expired  int        // number of versions that retention removed
	ever     []*version // all versions ever published
	byName   map[ident.Position]*version
	roots    map[folded]ident.Hash

	batches   [][]change // each is visible as a whole or not at all
	noBatches bool
	rollbacks map[string]*rollback
	unsure    map[string]bool // overlays that may or may not be on the log
	rewinds   int
	dropped   map[dropped]bool
	replayed  []checkpoint

	served   map[served]xds.Sum
	rejected map[subject]map[string]bool // the proxies that ever rejected the resource
	bad      map[subject]value           // the value that the rejected resource was made of
}

// folded is a record of a history and the build that folded up to it. The two
// determine the content.
type folded struct {
	record ident.Hash
	build  string
}

func newChecks() checks {
	return checks{
		byName: map[ident.Position]*version{}, roots: map[folded]ident.Hash{},
		rollbacks: map[string]*rollback{}, unsure: map[string]bool{}, dropped: map[dropped]bool{},
		served: map[served]xds.Sum{}, rejected: map[subject]map[string]bool{}, bad: map[subject]value{},
	}
}

// version is a published version with its decoded values.
type version struct {
	v, prev  ident.Position
	manifest *store.Manifest
	update   store.Update
	content  *store.Snapshot
	src      map[ident.Key]value // values of the sources, without invalid ones
	eff      map[ident.Key]value // values that are served
	rolled   map[ident.Key]string
	said     map[string]bool                // rollbacks and freezes
	scopes   map[string]ident.Scope         // what they keep as it is
	pins     map[string]map[ident.Key]value // the values of each pin
	overlays []world.Overlay
	stopped  map[ident.Key]bool // by rollouts
	queued   map[ident.Key]bool // by the rollout that waits
	holds    []hold

	quarantined map[subject]bool
}

type hold struct {
	id   string
	keys []ident.Key
}

func (v *version) held() map[ident.Key]bool {
	keys := map[ident.Key]bool{}
	for _, h := range v.holds {
		for _, k := range h.keys {
			keys[k] = true
		}
	}
	return keys
}

// kept reports whether an operator decides about k, and not its source.
func (v *version) kept(k ident.Key) bool {
	for _, scope := range v.scopes {
		if scope.Covers(k, k.Kind == config) {
			return true
		}
	}
	return v.rolled[k] != ""
}

// read decodes the content.
func (v *version) read() {
	v.src, v.rolled = map[ident.Key]value{}, map[ident.Key]string{}
	v.said, v.scopes = map[string]bool{}, map[string]ident.Scope{}
	v.pins = map[string]map[ident.Key]value{}
	v.quarantined = map[subject]bool{}
	var overlays []world.Overlay
	for r := range v.content.Rows() {
		k, id, err := ident.ParseRow(r.Key)
		if err != nil {
			panic(err)
		}
		if id != "" {
			o, err := world.UnmarshalOverlay(id, r.Value)
			if err != nil {
				panic(err)
			}
			overlays = append(overlays, o)
			continue
		}
		val, err := world.UnmarshalValue(r.Value)
		if err != nil {
			panic(err)
		}
		if k != policyKey {
			v.src[k] = valueFrom(val.Bytes)
		}
	}
	slices.SortFunc(overlays, func(a, b world.Overlay) int { return compareStrings(a.ID, b.ID) })
	v.eff, v.overlays = maps.Clone(v.src), overlays
	v.stopped, v.queued = map[ident.Key]bool{}, map[ident.Key]bool{}
	for _, o := range overlays {
		if o.Kind == ident.Rollout {
			for _, ov := range o.Values {
				v.stopped[ov.Key] = v.stopped[ov.Key] || o.Rollout.State == ident.RolloutStopped
				v.queued[ov.Key] = v.queued[ov.Key] || o.Rollout.State == ident.RolloutWaiting
			}
			defer func() { v.eff, _ = v.views() }()
			continue
		}
		if o.Kind == ident.Pin {
			v.said[o.ID] = true
			v.pins[o.ID] = map[ident.Key]value{}
			for _, ov := range o.Values {
				v.pins[o.ID][ov.Key] = valueOfOverlay(ov)
			}
			continue
		}
		var keys []ident.Key
		for _, ov := range o.Values {
			if r := ov.Resource; r != nil {
				v.quarantined[subject{r.Name, r.Sum}] = true
				continue
			}
			keys = append(keys, ov.Key)
			if ov.Value == nil {
				delete(v.eff, ov.Key)
			} else {
				v.eff[ov.Key] = valueFrom(ov.Value.Bytes)
			}
			if o.Kind == ident.Rollback {
				v.rolled[ov.Key] = o.ID
			}
		}
		if o.Kind == ident.Rollback || o.Kind == ident.Freeze {
			v.said[o.ID] = true
		}
		if o.Scope != nil {
			v.scopes[o.ID] = *o.Scope
		}
		if o.Kind == ident.Hold {
			v.holds = append(v.holds, hold{o.ID, keys})
		}
	}
}

// head returns the newest version of the chain, nil for an empty chain.
func (s *sim) head() *version {
	if len(s.versions) == s.expired {
		return nil
	}
	return s.versions[len(s.versions)-1]
}

func (s *sim) chainVersions() []*version { return s.versions[s.expired:] }

// sawRoot records the root that a builder folded to.
func (s *sim) sawRoot(build string, m *builder.Machine) {
	record, root := m.Folded()
	s.oneRoot(record, build, root, m.Position())
}

// oneRoot checks M3: the content is a function of the log.
func (s *sim) oneRoot(record ident.Hash, build string, root ident.Hash, at ident.Position) {
	f := folded{record, build}
	if was, ok := s.roots[f]; !ok {
		s.roots[f] = root
	} else if was != root {
		fail("M3", "the log up to record %s makes two contents for build %s: %.12s and %.12s", at, build, was, root)
	}
}

// published checks a version that the chain accepted at seq.
func (s *sim) published(u store.Update, seq uint64) {
	prev, _ := store.PreviousOf(u.Manifest)
	v := &version{v: store.VersionOf(u.Manifest.GetVersion()), prev: prev, manifest: u.Manifest, update: u}
	head := s.head()
	switch { // M4: one linear chain
	case seq != uint64(len(s.versions))+1:
		panic(fmt.Sprintf("sim: version %s at sequence %d of the chain after %d", v.v, seq, len(s.versions)))
	case len(s.versions) > 0 && !s.versions[len(s.versions)-1].v.Less(v.v):
		fail("M4", "version %s after %s", v.v, s.versions[len(s.versions)-1].v)
	case head != nil && prev != head.v:
		fail("M4", "version %s was made from %s, but the head is %s", v.v, prev, head.v)
	case prev.IsZero():
	case len(s.versions) == 0 || prev != s.versions[len(s.versions)-1].v:
		fail("M4", "version %s was made from %s, which is not the last", v.v, prev)
	default:
		v.content = s.versions[len(s.versions)-1].content
	}
	v.content = v.content.With(u.Delta)
	if c := u.Manifest.GetCheckpoint(); c != nil && store.VersionOf(c.GetVersion()) == v.v {
		// The version names a checkpoint of its content. A reader that cannot
		// apply the delta fetches the checkpoint.
		var err error
		if v.content, err = store.ReadCheckpoint(context.Background(), s.chain, c); err != nil {
			fail("M2", "version %s names a checkpoint that cannot be read: %v", v.v, err)
		}
	}
	root := store.RootOf(u.Manifest)
	if v.content.Root() != root {
		fail("M2", "version %s has root %.12s; its delta leads to %.12s", v.v, root, v.content.Root())
	}
	if was := s.byName[v.v]; was != nil && was.content.Root() != root {
		fail("M2", "version %s has two contents: %s", v.v, difference(was.content, v.content))
	}
	v.read()
	s.versions, s.ever = append(s.versions, v), append(s.ever, v)
	s.byName[v.v] = v
	s.note("   %s: %s", v.v, v)
	record, _ := store.HashFrom(u.Manifest.GetRecordHash())
	s.oneRoot(record, u.Manifest.GetBuild(), root, v.v)
	s.checkSynced(v)
	s.checkGuard(v)
	s.checkKinds(v)
	s.checkActs(v)
	s.checkFrozen(v)
	s.checkPins(v)
	s.checkRollouts(v)
	s.checkEvil(v)
	s.checkBatches(v)
	s.checkQuarantines(v)
}

func (v *version) String() string {
	text := ""
	for _, k := range sortedKeys(v.eff) {
		text += fmt.Sprintf(" %s=%d", short(k), v.eff[k])
	}
	for _, h := range v.holds {
		text += fmt.Sprintf(" hold %s of %d", h.id, len(h.keys))
	}
	for _, id := range slices.Sorted(maps.Keys(v.said)) {
		text += " said " + id
	}
	for _, x := range slices.SortedFunc(maps.Keys(v.quarantined), compareSubjects) {
		text += fmt.Sprintf(" quarantine %s %.6s", x.name, x.sum)
	}
	return text
}

func difference(a, b *store.Snapshot) string {
	d := store.Diff(a, b)
	text := ""
	for _, r := range d.Put {
		text += fmt.Sprintf(" %s=%q", r.Key, r.Value)
	}
	for _, k := range d.Remove {
		text += " -" + k
	}
	return text
}

// checkSynced checks M8: nothing is published before the required source is
// SYNCED.
func (s *sim) checkSynced(v *version) {
	for _, w := range v.manifest.GetWatermark() {
		if w.GetInstance() == shardOf(0).Instance && w.GetSynced() {
			return
		}
	}
	fail("M8", "version %s was published while %s was not synced", v.v, shardOf(0))
}

// checkGuard checks SIM-1: no version publishes a large loss that is not held.
func (s *sim) checkGuard(v *version) {
	before := s.byName[v.prev]
	if before == nil || s.rewinds > 0 || s.has("build") || s.has("bad") {
		return
	}
	held := v.held()
	for n := range s.sources {
		var lost []ident.Key
		unheld := false
		for _, k := range sortedKeys(before.src) {
			if _, still := v.src[k]; !still && k.Shard() == shardOf(n) {
				lost = append(lost, k)
				_, served := before.eff[k]
				unheld = unheld || served && !held[k]
			}
		}
		if len(lost) >= massLoss && unheld {
			fail("SIM-1", "version %s lost %v, and no hold covers all of them", v.v, lost)
		}
	}
}

// checkBatches checks M6: a version shows a batch as a whole or not at all. Values
// are unique, so a value identifies the batch. A later change of a key may
// replace the batch's value; an earlier one may not.
func (s *sim) checkBatches(v *version) {
	held := v.held()
	for _, b := range s.batches {
		var shown, missing []change
		for _, c := range b {
			switch {
			case held[c.key] || v.kept(c.key) || v.stopped[c.key] || v.queued[c.key]: // README: rollouts and batches
			case v.eff[c.key] == c.value:
				shown = append(shown, c)
			default:
				missing = append(missing, c)
			}
		}
		if len(shown) == 0 {
			continue
		}
		for _, c := range missing {
			hist := s.sourceOf(c.key).hist[c.key]
			later := hist[slices.Index(hist, c.value)+1:]
			if slices.Contains(later, v.eff[c.key]) || slices.ContainsFunc(later, func(l value) bool { return l.flag() != goodValue }) {
				continue
			}
			fail("M6", "version %s shows a part of %v: %s is %d", v.v, b, short(c.key), v.eff[c.key])
		}
	}
}

// rewound forgets the versions that a rewind of both streams removed. Builders may
// publish these positions again with other content: nothing prevents it, and a
// report repairs it.
func (s *sim) rewound(k uint64, vk int) {
	s.versions = s.versions[:vk:vk]
	s.expired = min(s.expired, vk)
	head := s.head()
	for id, r := range s.rollbacks {
		if r.seq > k && (head == nil || !head.said[id]) {
			s.unsure[id] = true
		}
	}
	clear(s.byName)
	for _, v := range s.versions {
		s.byName[v.v] = v
	}
}

// unsettled returns the first reason why the system is not at rest yet, or nil.
func (s *sim) unsettled() *violation {
	no := func(invariant, format string, args ...any) *violation {
		return &violation{invariant, fmt.Sprintf(format, args...)}
	}
	head := s.head()
	if head == nil {
		return no("M1", "there is no version")
	}
	epoch := uint64(0)
	for _, r := range s.records() {
		if g, ok := r.Event.Body.(*events.Segment); ok {
			epoch = max(epoch, g.Epoch)
		}
	}
	if head.v.Epoch < epoch {
		return no("M8", "the head is %s, and epoch %d has begun", head.v, epoch)
	}
	held := head.held()
	for _, src := range s.sources {
		if src.down || src.partial {
			continue
		}
		if err := s.unlike(head, src, held); err != nil {
			return err
		}
	}
	for _, f := range s.frontends {
		if at, root := f.serving(); at != head.v || root != head.content.Root() {
			return no("M5", "%s serves %s, root %.12s; the head is %s, root %.12s", f.name, at, root, head.v, head.content.Root())
		}
	}
	if err := s.unfiled(head); err != nil {
		return err
	}
	if err := s.misjudged(head); err != nil {
		return err
	}
	return s.unruly(head)
}

// checkQuarantines checks SIM-6: a quarantined resource was rejected by two proxies.
// Under faults one is enough, because the leader may not know all proxies.
func (s *sim) checkQuarantines(v *version) {
	for _, x := range slices.SortedFunc(maps.Keys(v.quarantined), compareSubjects) {
		switch {
		case len(s.rejected[x]) == 0:
			fail("SIM-6", "version %s has %s in quarantine, but no proxy has rejected it", v.v, x.name)
		case !s.faults && s.rewinds == 0 && !s.everQuarantined(x) && len(s.rejected[x]) < 2:
			fail("SIM-6", "version %s has %s in quarantine, but only one proxy has rejected it", v.v, x.name)
		}
	}
}

func (s *sim) everQuarantined(x subject) bool {
	return slices.ContainsFunc(s.ever[:len(s.ever)-1], func(v *version) bool { return v.quarantined[x] })
}

// misjudged checks SIM-8: a resource that all proxies reject is in quarantine, and
// a resource that is no longer served is not.
func (s *sim) misjudged(head *version) *violation {
	no := func(format string, args ...any) *violation { return &violation{"SIM-8", fmt.Sprintf(format, args...)} }
	byName := map[string]value{}
	for k, v := range head.eff {
		if k.Kind == config {
			byName[short(k)] = v
		}
	}
	inQuarantine := map[string]bool{}
	for _, x := range slices.SortedFunc(maps.Keys(head.quarantined), compareSubjects) {
		if byName[x.name] != s.bad[x] {
			return no("%s=%d is in quarantine, but the world has %d", x.name, s.bad[x], byName[x.name])
		}
		inQuarantine[x.name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		v := byName[name]
		if v.flag() == badValue && !inQuarantine[name] {
			return no("all proxies reject %s=%d, but it is not in quarantine", name, v)
		}
	}
	return nil
}

// unfiled checks SIM-4: the files hold the version that is served and published. It
// returns the first process whose file lacks it.
func (s *sim) unfiled(head *version) *violation {
	no := func(name string) *violation {
		return &violation{"SIM-4", fmt.Sprintf("%s has no file of %s", name, head.v)}
	}
	for _, f := range s.frontends {
		if !f.replica.Persisted() {
			return no(f.name)
		}
	}
	for _, b := range s.builders {
		if !b.lead || b.m == nil || b.build != head.manifest.GetBuild() {
			continue
		}
		if problem := b.m.Report().GetError(); problem != "" {
			return &violation{"SIM-4", b.name + ": " + problem}
		}
		if b.m.Filed().Less(head.v) {
			return no(b.name)
		}
	}
	return nil
}

// unlike checks M1: frontends serve the values that the source has.
func (s *sim) unlike(head *version, src *source, held map[ident.Key]bool) *violation {
	no := func(format string, args ...any) *violation { return &violation{"M1", fmt.Sprintf(format, args...)} }
	keys := map[ident.Key]bool{}
	for k := range head.eff {
		keys[k] = k.Shard() == shardOf(src.n)
	}
	for k := range src.truth {
		keys[k] = true
	}
	build := head.manifest.GetBuild()
	for _, k := range sortedKeys(keys) {
		if !keys[k] || head.kept(k) || k.Kind == src.hidden || head.stopped[k] {
			continue
		}
		is, served := src.truth[k], head.eff[k]
		switch {
		case is == 0 && served != 0 && !held[k]:
			return no("%s came back or was not removed: %d in %s, the source has no value", short(k), served, head.v)
		case is != 0 && is.good(build) && served != is:
			return no("%s: %d is served by %s, the source has %d (held: %t)", short(k), served, head.v, is, held[k])
		case is != 0 && !is.good(build) && served == 0 && s.rewinds == 0 && !s.has("build"):
			hist := src.hist[k]
			for i, v := range slices.Backward(hist) {
				if v == 0 {
					hist = hist[i+1:]
					break
				}
			}
			for _, v := range s.ever {
				if slices.Contains(hist, v.src[k]) {
					return no("%s vanished: the source has %d, which is invalid; the last good value was %d", short(k), is, v.src[k])
				}
			}
		}
	}
	return nil
}

// unruly checks M7: what an operator has said holds until the operator releases it.
func (s *sim) unruly(head *version) *violation {
	for _, id := range slices.Sorted(maps.Keys(s.rollbacks)) {
		r := s.rollbacks[id]
		if s.unsure[id] || !r.acked || head.said[id] || !r.shown && s.rewinds > 0 {
			continue
		}
		return &violation{"M7", fmt.Sprintf("overlay %s vanished; no operator released it", id)}
	}
	return nil
}

// checkFrozen checks M7: while an overlay keeps objects as they are, the versions do
// not differ in them.
func (s *sim) checkFrozen(v *version) {
	before := s.byName[v.prev]
	if before == nil {
		return
	}
	for _, id := range slices.Sorted(maps.Keys(v.scopes)) {
		scope, ok := before.scopes[id]
		if !ok {
			continue
		}
		keys := maps.Clone(before.src)
		maps.Copy(keys, v.src)
		for _, k := range sortedKeys(keys) {
			if scope.Covers(k, k.Kind == config) && before.src[k] != v.src[k] {
				fail("M7", "%s keeps %s as it is: %s was %d in %s and is %d in %s", id, scope, short(k), before.src[k], v.prev, v.src[k], v.v)
			}
		}
	}
}

// checkActs checks M7: what an operator said in several messages acts as one.
func (s *sim) checkActs(v *version) {
	for id := range v.said {
		r := s.rollbacks[id]
		if r == nil {
			continue
		}
		r.shown = true
		for _, k := range r.keys {
			if v.rolled[k] != id {
				fail("M7", "version %s shows a part of rollback %s: it has nothing over %s", v.v, id, short(k))
			}
		}
	}
}

// records returns all records of the log, including those that retention removed.
func (s *sim) records() []events.Record {
	first := uint64(len(s.gone))
	records, err := s.log.ReadAfter(first, int(s.last()-first))
	if err != nil {
		panic(err)
	}
	return append(s.gone[:first:first], records...)
}

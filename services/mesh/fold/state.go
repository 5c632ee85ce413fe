package fold

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/mesh/permit"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
)

// value is a value with its content hash. Worlds share it once it is good:
// from then on it is immutable.
type value struct {
	world.Object
	hash ident.Hash
}

func newValue(k ident.Key, v ident.Value) *value {
	return &value{world.Object{Key: k, Created: v.Created, Value: v}, events.ContentHash(k, v)}
}

// hashOf returns the content hash of v; zero if v is nil.
func hashOf(v *value) ident.Hash {
	if v == nil {
		return ident.Hash{}
	}
	return v.hash
}

// object returns the object that a World serves for v.
func (v *value) object() *world.Object {
	if v == nil {
		return nil
	}
	return &v.Object
}

// change returns the change of e's row in the content.
func (e *entry) change(seq uint64) world.RowChange { return e.rowOf(e.good, seq) }

// rowOf is change, if v were served.
func (e *entry) rowOf(v *value, seq uint64) world.RowChange {
	c := world.RowChange{Row: e.row, Key: e.key, Object: v.object(), Seq: seq}
	if v != nil {
		c.Value = world.MarshalValue(v.Value)
	}
	return c
}

// entry is the state of one key.
type entry struct {
	key    ident.Key
	row    string // its row in the content
	bucket int    // its bucket in the digests

	offered  *value // nil: deleted; the entry stays for its lastPseq
	good     *value // last good; the same pointer as offered if that is good
	problems []problem.Diagnostic
	origin   string
	seq      uint64 // last record of the key
	goodSeq  uint64 // record that set good; 0: not known
	lastPseq uint64 // pseq of record seq; counts only within its session
	unsaved  uint64 // the round of checkpoints in which it changed
}

// shard is the state of one source instance.
type shard struct {
	// FoldShard is the row of a checkpoint; its Seen stays empty, because arrived
	// is in its place. Session is the last one begun in this epoch; Synced: a whole
	// listing was closed in this epoch; Kinds are those of the last listing. The log
	// has every pseq up to Floor, and those in arrived. Hole: it has lost an
	// acknowledged one.
	*snapshotv1.FoldShard
	arrived map[uint64]struct{}

	name    ident.Shard
	entries map[ident.Key]*entry
	byKind  map[string]*ofKind // kinds that have offered values

	// staged records wait for the rest of their change set, in the order of the
	// log: all records of a listing, else those of one batch.
	staged  []staged
	indexes map[uint32]struct{} // of the staged batch
}

// ofKind counts the offered values of one kind.
type ofKind struct {
	keys    int
	digests events.ShardDigests
}

// staged is a record of an object, with its value; nil: a delete.
type staged struct {
	seq   uint64
	event events.Event
	value *value
}

func newStaged(seq uint64, e events.Event) staged {
	r := staged{seq: seq, event: e}
	if o := r.object(); o.Op != events.Delete {
		r.value = newValue(o.Key, o.Value)
	}
	return r
}

func (s staged) object() *events.Object { return s.event.Body.(*events.Object) }

// keys returns how many keys the shard offers.
func (sh *shard) keys() (n int) {
	for _, of := range sh.byKind {
		n += of.keys
	}
	return n
}

// speaks reports whether e's lastPseq is of the current session.
func (sh *shard) speaks(e *entry) bool { return e.lastPseq > 0 && e.seq > sh.BeginSeq }

// setOffered sets the value that e's source offers, and updates the digests.
func (sh *shard) setOffered(e *entry, v *value) {
	of := sh.byKind[e.key.Kind]
	if of == nil {
		of = &ofKind{}
		sh.byKind[e.key.Kind] = of
	}
	d := &of.digests[e.bucket]
	if e.offered != nil {
		*d = d.With(e.offered.hash)
		of.keys--
	}
	if v != nil {
		*d = d.With(v.hash)
		of.keys++
	}
	if of.keys == 0 {
		delete(sh.byKind, e.key.Kind)
	}
	e.offered = v
}

// digestsOf returns the digests of the offered values of these kinds.
func (sh *shard) digestsOf(kinds events.Kinds) (sum events.ShardDigests) {
	for kind, of := range sh.byKind {
		if kinds.Cover(kind) {
			sum.Add(&of.digests)
		}
	}
	return sum
}

// overlay is the part of an overlay that is still in effect.
type overlay struct {
	world.Overlay // without Values
	seq           uint64
	values        map[ident.Key]ident.OverlayValue
	resources     []ident.OverlayValue // of a quarantine, which stays until it is removed
}

func newOverlay(o world.Overlay, seq uint64) *overlay {
	over := &overlay{Overlay: o, seq: seq, values: make(map[ident.Key]ident.OverlayValue, len(o.Values))}
	over.Overlay.Values = nil
	for _, v := range o.Values {
		if v.Resource != nil {
			over.resources = append(over.resources, v)
		} else {
			over.values[v.Key] = v
		}
	}
	return over
}

// empty reports whether o has no effect any more. A pin without values keeps what
// changes later, and so does a rollout; builders remove those that have ended.
func (o *overlay) empty() bool {
	return len(o.values) == 0 && len(o.resources) == 0 && o.Scope == nil && o.Kind != ident.Pin && o.Kind != ident.Rollout
}

// full returns o with its values, sorted by key row.
func (o *overlay) full() world.Overlay {
	full := o.Overlay
	rows := make(map[ident.Key]string, len(o.values))
	for k, v := range o.values {
		rows[k] = k.Row()
		full.Values = append(full.Values, v)
	}
	slices.SortFunc(full.Values, func(a, b ident.OverlayValue) int { return cmp.Compare(rows[a.Key], rows[b.Key]) })
	full.Values = append(full.Values, o.resources...)
	return full
}

// change returns the row of the content of the overlay id; o is nil if it is
// gone.
func (o *overlay) change(id string, seq uint64) world.RowChange {
	c := world.RowChange{Row: ident.OverlayRow(id), Seq: seq}
	if o != nil {
		c.Value = world.MarshalOverlay(o.full())
	}
	return c
}

// Segment is a part of the log: the records that one build wrote in one epoch.
type Segment struct {
	Epoch uint64
	Build string
	// Head is the head of VERSIONS that the segment's writer saw.
	Head ident.Position
	// VersionsSeq is the last sequence of VERSIONS that its writer saw.
	VersionsSeq uint64
	// EpochRecord is the record that began the epoch.
	EpochRecord uint64
	// ID is the id of that record, which no other mesh has.
	ID string
}

// state is everything that an epoch's base replaces.
type state struct {
	shards   map[ident.Shard]*shard
	overlays map[string]*overlay
	over     map[ident.Key][]*overlay // overlays by key
	scoped   map[string]*overlay      // those with a scope
	pins     map[string]*overlay      // their values are not in over: most proxies are not served them
	rollouts map[string]*overlay      // the values of one that runs are not in over
	acts     []staged                 // the messages so far of a rollback or a pin
	withheld map[ident.Key]*entry     // frozen entries that do not have what is offered
	gone     map[string]struct{}      // ids of removed overlays
	troubled map[ident.Key]*entry     // entries with problems
	// Of the epoch: the records that could not be decoded, that are refused, and the
	// last one of the latter.
	undecoded, refused, lastRefused uint64
	signatures
}

func newState() state {
	return state{
		shards:   map[ident.Shard]*shard{},
		overlays: map[string]*overlay{},
		over:     map[ident.Key][]*overlay{},
		scoped:   map[string]*overlay{},
		pins:     map[string]*overlay{},
		rollouts: map[string]*overlay{},
		withheld: map[ident.Key]*entry{},
		gone:     map[string]struct{}{},
		troubled: map[ident.Key]*entry{},

		signatures: signatures{signed: map[permit.Key]mark{}},
	}
}

// Fold is the state of the mesh after the records up to a position.
type Fold struct {
	build   string
	judge   Judge
	variant variant

	seq        uint64 // of the last record
	recordHash ident.Hash
	recordTime time.Time
	segment    Segment

	state
	// rules decide what sources may publish: those of the policy of this state.
	rules   *permit.Rules
	verdict Verdict // about the last record
	assume  bool    // operators need no signature
	unsaved unsaved
}

// shard returns the shard of that name, and makes it if there is none.
func (s *state) shard(name ident.Shard) *shard {
	sh, ok := s.shards[name]
	if !ok {
		sh = &shard{
			FoldShard: &snapshotv1.FoldShard{}, name: name,
			entries: map[ident.Key]*entry{}, byKind: map[string]*ofKind{},
		}
		s.shards[name] = sh
	}
	return sh
}

// entry returns the entry of k, or nil.
func (s *state) entry(k ident.Key) *entry {
	if sh, ok := s.shards[k.Shard()]; ok {
		return sh.entries[k]
	}
	return nil
}

// offeredHash returns the hash of the value offered for k; zero if there is none.
func (s *state) offeredHash(k ident.Key) ident.Hash {
	if e := s.entry(k); e != nil {
		return hashOf(e.offered)
	}
	return ident.Hash{}
}

// add returns the entry of k, and makes it if there is none.
func (sh *shard) add(k ident.Key) *entry {
	e, ok := sh.entries[k]
	if !ok {
		e = &entry{key: k, row: k.Row(), bucket: events.Bucket(k)}
		sh.entries[k] = e
	}
	return e
}

// setOverlay adds o in place of the overlay with its id.
func (s *state) setOverlay(o *overlay) {
	s.dropOverlay(o.ID)
	s.overlays[o.ID] = o
	if o.Scope != nil {
		s.scoped[o.ID] = o
	}
	switch o.Kind {
	case ident.Pin:
		s.pins[o.ID] = o
	case ident.Rollout:
		s.rollouts[o.ID] = o
	}
	if o.ForSome() {
		return
	}
	for k := range o.values {
		s.over[k] = append(s.over[k], o)
	}
}

// dropOverlay removes the overlay of that id, and reports whether there was one.
func (s *state) dropOverlay(id string) bool {
	o, ok := s.overlays[id]
	if !ok {
		return false
	}
	for k := range o.values {
		s.lift(o, k)
	}
	delete(s.overlays, id)
	delete(s.scoped, id)
	delete(s.pins, id)
	delete(s.rollouts, id)
	return true
}

// lift removes one key from o.
func (s *state) lift(o *overlay, k ident.Key) {
	delete(o.values, k)
	rest := slices.DeleteFunc(s.over[k], func(x *overlay) bool { return x == o })
	if len(rest) == 0 {
		delete(s.over, k)
	} else {
		s.over[k] = rest
	}
}

// assess judges e's offered value and keeps its problems.
func (f *Fold) assess(s *state, e *entry) (good bool) {
	var m proto.Message
	m, e.problems, good = f.judge.Judge(e.key, e.offered.Value)
	if good && e.offered.Message == nil { // else a World may be reading it
		e.offered.Message = m
	}
	if d := f.rules.Forbid(e.key, f.hosted(e.offered, m)); d != nil {
		e.problems, good = slices.Insert(e.problems, 0, *d), false
	}
	if len(e.problems) > 0 {
		s.troubled[e.key] = e
	} else {
		delete(s.troubled, e.key)
	}
	return good
}

// fallback returns what is served in place of e's offered value, which is not good:
// the last good one, or, if there was none, one that denies what it selects. That
// follows the offered value, so that it selects the same.
func (f *Fold) fallback(e *entry) *value {
	if e.good != nil && e.good.Value.Type != ident.Closed {
		return e.good
	}
	if closed, ok := f.judge.Closed(e.key, e.offered.Value); ok {
		return newValue(e.key, closed)
	}
	return e.good
}

// diagnostics returns e's problems with key, origin and effect.
func (e *entry) diagnostics() []problem.Diagnostic {
	out := slices.Clone(e.problems)
	for i := range out {
		d := &out[i]
		d.Key, d.Origin, d.Effect = e.key, cmp.Or(d.Origin, e.origin), e.effect()
	}
	return out
}

// effect returns the Effect of the entry's diagnostics: which value frontends serve
// although the offered one has a problem. It is empty if that is the offered value,
// with warnings only.
func (e *entry) effect() string {
	switch {
	case e.good == nil:
		return "the object is not served"
	case e.good == e.offered && slices.ContainsFunc(e.problems, func(d problem.Diagnostic) bool { return d.Severity == problem.Error }):
		return "it is served, because another build published it as good"
	case e.good == e.offered:
		return ""
	case e.good.Value.Type == ident.Closed:
		return "no value of it was ever good, so it counts as a policy that denies everything it selects"
	case e.goodSeq == 0:
		return "the last good value is served"
	}
	return fmt.Sprintf("the last good value, of record %d, is served", e.goodSeq)
}

package builder

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/store"
)

// keptTimings is how many versions' timings a report carries.
const keptTimings = 256

// timing notes what the version cost at each stage.
func (m *Machine) timing(man *store.Manifest) {
	t := &reportv1.StageTiming{
		Version:   man.GetVersion(),
		Observed:  timestamppb.New(m.since.observed),
		Logged:    timestamppb.New(m.since.logged),
		Read:      timestamppb.New(m.since.read),
		Due:       timestamppb.New(m.since.due),
		Built:     timestamppb.New(m.since.built),
		Published: timestamppb.New(m.cfg.Now()),
	}
	if len(m.timings) == keptTimings {
		m.timings = slices.Delete(m.timings, 0, 1)
	}
	m.timings = append(m.timings, t)
}

// Diagnostics are all problems in user data at the fold's position, sorted.
func (m *Machine) Diagnostics() []problem.Diagnostic {
	all := slices.Concat(m.fold.Diagnostics(), m.world.Diagnostics(), m.problems, m.crowd())
	slices.SortFunc(all, problem.Diagnostic.Compare)
	return slices.Compact(all)
}

// diagnosticProtos are the first of them on the wire.
func (m *Machine) diagnosticProtos(most int) []*snapshotv1.Diagnostic {
	all := m.Diagnostics()
	var out []*snapshotv1.Diagnostic
	for _, d := range all[:min(len(all), most)] {
		out = append(out, d.Proto())
	}
	return out
}

// Digests are the bucket digests of a shard over the keys of these kinds, for
// the watcher that began the session. Only the leader's word counts.
func (m *Machine) Digests(s ident.Shard, session string, kinds events.Kinds) (*events.ShardDigests, bool) {
	if !m.leader {
		return nil, false
	}
	return m.fold.Digests(s, session, kinds)
}

// Tick is what a leader says once a second: where the head is, up to where it
// is right, what is suspected, and which shards must list again; and it does
// what Quarantine does. It looks at the head anew: one
// that expired sends no word.
func (m *Machine) Tick(ctx context.Context) error {
	if !m.leader {
		return nil
	}
	if err := m.sayTick(ctx); err != nil {
		return err
	}
	for _, n := range m.fold.Needs() {
		r := &reportv1.ListingRequest{Source: n.Shard.Source, Instance: n.Shard.Instance, Session: n.Session, Reason: n.Reason}
		if err := m.cfg.Fleet.AskListing(ctx, r); err != nil {
			return fmt.Errorf("ask %s to list: %w", n.Shard, err)
		}
	}
	return m.Quarantine(ctx)
}

func (m *Machine) sayTick(ctx context.Context) error {
	if err := m.readHead(ctx); err != nil {
		return err
	}
	standsTo := m.head.Version()
	if m.unbuilt.records == 0 && !m.worthAVersion() {
		standsTo = m.fold.Position()
	}
	t := &reportv1.Tick{Leader: m.cfg.ID, Head: store.VersionProto(m.head.Version()), VersionsSeq: m.head.Seq, Position: store.VersionProto(standsTo)}
	if m.head.Manifest != nil {
		t.Root = m.head.Manifest.GetRoot()
	}
	for _, x := range sortedSubjects(m.opinions.suspects) {
		t.Suspects = append(t.Suspects, suspectProto(x))
	}
	if err := m.cfg.Fleet.Tick(ctx, t); err != nil {
		return fmt.Errorf("tick: %w", err)
	}
	return nil
}

// Stats counts what happened since the start.
func (m *Machine) Stats() Stats { return m.stats }

// Report is everything the builder has to say.
func (m *Machine) Report() *reportv1.BuilderReport {
	r := &reportv1.BuilderReport{
		Builder: m.cfg.ID, Build: m.cfg.Build, Time: timestamppb.New(m.cfg.Now()), Leader: m.leader,
		Position: store.VersionProto(m.fold.Position()), Head: store.VersionProto(m.head.Version()),
		LogLastSeq: m.fold.Position().Seq + uint64(len(m.ahead)), Compared: m.stats.Compared,
		Waiting: m.waiting, Timings: slices.Clone(m.timings), Holds: m.holds(), Quarantines: m.quarantines(),
		Diagnostics: m.diagnosticProtos(math.MaxInt), Frozen: m.frozen(),
	}
	if err := m.failure(); err != nil {
		r.Error = err.Error()
	}
	return r
}

// frozen are the kinds that sources cannot be read for, as of their last
// listings.
func (m *Machine) frozen() (frozen []*reportv1.FrozenKind) {
	for _, sh := range m.fold.Shards() {
		for _, k := range sh.Frozen {
			frozen = append(frozen, &reportv1.FrozenKind{
				Source: sh.Shard.Source, Instance: sh.Shard.Instance, Kind: k.Kind, Keys: uint64(k.Keys),
			})
		}
	}
	return frozen
}

// failure is the worst of what is wrong with this builder; nil: nothing is.
func (m *Machine) failure() error {
	return cmp.Or(m.refused, m.buildErr, m.holdErr, m.saveErr)
}

// holds are the mass losses that wait for an approval.
func (m *Machine) holds() []*reportv1.Hold {
	var out []*reportv1.Hold
	byID := map[string]*reportv1.Hold{}
	for _, o := range m.fold.Holds() {
		if len(o.Values) == 0 {
			continue
		}
		id, _, _ := strings.Cut(o.ID, partOf)
		h := byID[id]
		if h == nil {
			s := o.Values[0].Key.Shard()
			h = &reportv1.Hold{Id: id, Source: s.Source, Instance: s.Instance, Reason: o.Reason}
			byID[id] = h
			out = append(out, h)
		}
		h.Keys += uint32(len(o.Values))
		h.Parts = append(h.Parts, o.ID)
	}
	return out
}

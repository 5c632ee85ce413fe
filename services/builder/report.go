package builder

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/builder/jury"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

// keptTimings is how many versions' timings a report carries.
const keptTimings = 256

// timing notes when the first change of a version passed each stage.
func (c *chain) timing(man *store.Manifest, now time.Time) {
	t := &reportv1.StageTiming{
		Version:   man.GetVersion(),
		Observed:  timestamppb.New(c.since.observed),
		Logged:    timestamppb.New(c.since.logged),
		Read:      timestamppb.New(c.since.read),
		Due:       timestamppb.New(c.since.due),
		Built:     timestamppb.New(c.since.built),
		Published: timestamppb.New(now),
	}
	if len(c.timings) == keptTimings {
		c.timings = slices.Delete(c.timings, 0, 1)
	}
	c.timings = append(c.timings, t)
}

// told holds the problems in user data as reports and versions name them. Most
// versions have those of the version before.
type told struct {
	of     []problem.Diagnostic // as their sources list them
	protos []*snapshotv1.Diagnostic
}

// diagnostics returns the problems in user data at the position of the fold, sorted.
func (m *Machine) diagnostics() []*snapshotv1.Diagnostic {
	all := slices.Concat(m.ledger.Fold().Diagnostics(), m.draft.world.Diagnostics(), m.draft.problems, m.jury.Diagnostics())
	if slices.Equal(all, m.told.of) {
		return m.told.protos
	}
	m.told = told{of: slices.Clone(all)}
	slices.SortFunc(all, problem.Diagnostic.Compare)
	for _, d := range slices.Compact(all) {
		m.told.protos = append(m.told.protos, d.Proto())
	}
	return m.told.protos
}

// Digests returns the bucket digests of a shard over the keys of these kinds,
// for the watcher that began the session. Only the leader answers.
func (m *Machine) Digests(s ident.Shard, session string, kinds events.Kinds) (*events.ShardDigests, bool) {
	if !m.leader {
		return nil, false
	}
	return m.ledger.Fold().Digests(s, session, kinds)
}

// KnowsPod reports whether the world has a pod of that name and service account. can is
// false unless this builder leads.
func (m *Machine) KnowsPod(namespace, name, account string) (known, can bool) {
	if !m.leader {
		return false, false
	}
	o := m.draft.world.Winner(ident.Key{Kind: world.WorkloadKind, Namespace: namespace, Name: name})
	if o == nil {
		return false, true
	}
	w, is := o.Message.(*registryv1.Workload)
	return is && cmp.Or(w.GetServiceAccount(), "default") == account, true
}

// Tick is called once a second. The leader reads the head, in case that has
// expired, announces the head and the suspects, asks shards to list again, and
// calls Quarantine.
func (m *Machine) Tick(ctx context.Context) error {
	if !m.leader {
		return nil
	}
	if err := m.sayTick(ctx); err != nil {
		return err
	}
	for _, n := range m.ledger.Fold().Needs() {
		r := &reportv1.ListingRequest{Source: n.Shard.Source, Instance: n.Shard.Instance, Session: n.Session, Reason: n.Reason}
		if err := m.cfg.Fleet.AskListing(ctx, r); err != nil {
			return fmt.Errorf("ask %s to list: %w", n.Shard, err)
		}
	}
	if err := m.Quarantine(ctx); err != nil {
		return err
	}
	return m.rollOut(ctx)
}

// sayTick announces the head, the position up to which its content is that of the
// log, and the suspects.
func (m *Machine) sayTick(ctx context.Context) error {
	if err := m.chain.readHead(ctx); err != nil {
		return err
	}
	head := m.chain.head
	standsTo := head.Version()
	if m.draft.unbuilt.records == 0 && !m.chain.worthAVersion() {
		standsTo = m.ledger.Position()
	}
	t := &reportv1.Tick{
		Leader: m.cfg.ID, Head: store.VersionProto(head.Version()), VersionsSeq: head.Seq, Root: head.Manifest.GetRoot(),
		Position: store.VersionProto(standsTo), Suspects: m.jury.Suspects(),
	}
	if err := m.cfg.Fleet.Tick(ctx, t); err != nil {
		return fmt.Errorf("tick: %w", err)
	}
	return nil
}

// Report returns the state of the builder.
func (m *Machine) Report() *reportv1.BuilderReport {
	f, at := m.ledger.Fold(), m.ledger.Position()
	r := &reportv1.BuilderReport{
		Builder: m.cfg.ID, Build: m.cfg.Build, Time: timestamppb.New(m.cfg.Now()), Leader: m.leader,
		Position: store.VersionProto(at), Head: store.VersionProto(m.chain.head.Version()),
		LogLastSeq: at.Seq + uint64(len(m.ahead)), Compared: m.stats.Compared,
		Waiting: m.waiting, Timings: slices.Clone(m.chain.timings), Holds: jury.Holds(f), Quarantines: jury.Quarantines(f),
		Diagnostics: m.diagnostics(), Rollouts: m.rollouts(),
	}
	for _, sh := range f.Shards() {
		for _, k := range sh.Frozen {
			r.Frozen = append(r.Frozen, &reportv1.FrozenKind{
				Source: sh.Shard.Source, Instance: sh.Shard.Instance, Kind: k.Kind, Keys: uint64(k.Keys),
			})
		}
	}
	if err := m.failure(); err != nil {
		r.Error = err.Error()
	}
	r.Warnings = m.warnings()
	return r
}

// warnings returns what needs attention although the builder works.
func (m *Machine) warnings() (all []string) {
	now := m.cfg.Now()
	for _, e := range []event{m.chain.foreign, m.epochs.claims.counted, m.epochs.claims.refused} {
		if e.recent(now) {
			all = append(all, e.text)
		}
	}
	if m.staging.unstaged != "" {
		all = append(all, m.staging.unstaged)
	}
	return all
}

// failure returns the most severe error of this builder, or nil.
func (m *Machine) failure() error {
	return cmp.Or(m.refused, m.draft.err, m.holdErr, m.chain.file.err)
}

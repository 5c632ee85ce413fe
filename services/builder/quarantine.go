package builder

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/mesh/gate"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

const (
	// maxQuarantines is how many stand at a time.
	maxQuarantines = 100
	// maxGood is how many bytes may be served instead: they are in the overlay
	// itself, so that a frontend needs nothing but its own file to serve them.
	maxGood = 256 << 10
)

// Heard takes what a frontend reports.
func (m *Machine) Heard(r *reportv1.FrontendReport) { m.opinions.hear(m.cfg.Now(), r) }

// Quarantine is a leader's: it announces what is newly suspected, puts what is
// confirmed into quarantine, and lifts what is no longer served. What it says on
// the log comes back by the log.
func (m *Machine) Quarantine(ctx context.Context) error {
	if !m.leader {
		m.opinions.suspects = nil
		m.cfg.Gate.Keep(nil)
		return nil
	}
	if len(m.opinions.frontends) == 0 && len(m.fold.Quarantines()) == 0 {
		return nil
	}
	standing := m.standing()
	now := m.cfg.Now()
	if m.opinions.suspectAnew(now, standing) {
		if err := m.sayTick(ctx); err != nil {
			return err
		}
	}
	m.crowded = len(standing) >= maxQuarantines
	if !m.builtAll() {
		return nil // what is served now is not known yet
	}
	m.keepClasses()
	batch, err := m.confirmed(ctx, len(standing))
	if err != nil {
		return err
	}
	// One by one: nothing ties them together, and many may be too large.
	for _, e := range append(batch, m.lifted()...) {
		o := e.Body.(*events.Overlay)
		appended, err := m.appendOverlays(ctx, []events.Event{e})
		switch {
		case errors.Is(err, events.ErrTooLarge), errors.Is(err, events.ErrInvalid):
			m.log.Error("a quarantine cannot be put on the log", "quarantine", o.ID, "error", err)
		case err != nil:
			return fmt.Errorf("append quarantine %s: %w", o.ID, err)
		case !appended:
			return nil // another builder says something
		default:
			m.logQuarantine(o)
		}
	}
	return nil
}

func (m *Machine) logQuarantine(o *events.Overlay) {
	if o.Remove {
		m.log.Info("a quarantine is lifted: what it is about is no longer served", "quarantine", o.ID)
		return
	}
	m.stats.Quarantines++
	r := o.Values[0].Resource
	m.log.Warn("a resource that proxies reject is put into quarantine", "quarantine", o.ID,
		"type", r.Type, "resource", r.Name, "client", r.Client, "reason", o.Reason, "advice", "see `meshlog diagnostics`")
}

// builtAll says whether the world that was built last is that of the fold.
func (m *Machine) builtAll() bool {
	return len(m.ahead) == 0 && m.unbuilt.records == 0 && m.buildErr == nil
}

// standing is what is in quarantine.
func (m *Machine) standing() map[ident.Rejected]bool {
	standing := map[ident.Rejected]bool{}
	for _, o := range m.fold.Quarantines() {
		for _, v := range o.Values {
			standing[v.Resource.Rejected] = true
		}
	}
	return standing
}

// keepClasses has the gate keep what the classes are served of which is asked.
func (m *Machine) keepClasses() {
	var classes []gate.ClassOf
	add := func(typeURL string, encoded []byte) {
		t, ok := ident.ResourceTypeOf(typeURL)
		if class, err := index.DecodeClass(encoded); ok && err == nil {
			classes = append(classes, gate.ClassOf{Type: t, Class: class.Only(t)})
		}
	}
	for _, o := range m.fold.Quarantines() {
		for _, v := range o.Values {
			add(v.Resource.Type, v.Resource.Class)
		}
	}
	for x := range m.opinions.suspects {
		add(x.Type, m.opinions.evidence(x).class)
	}
	m.cfg.Gate.Keep(classes)
}

// served says whether a class is made that very content at the position of the
// fold, whatever is in quarantine.
func (m *Machine) served(x ident.Rejected, encoded []byte) bool {
	t, ok := ident.ResourceTypeOf(x.Type)
	class, err := index.DecodeClass(encoded)
	if !ok || err != nil {
		return false // of another build
	}
	sum, ok := m.cfg.Gate.Made(gate.ClassOf{Type: t, Class: class.Only(t)}, x.Name)
	return ok && sum == x.Sum
}

// confirmed are the quarantines that are to be, as events.
func (m *Machine) confirmed(ctx context.Context, standing int) ([]events.Event, error) {
	var batch []events.Event
	now := m.cfg.Now()
	then := past{}
	for _, x := range sortedSubjects(m.opinions.suspects) {
		s, e := m.opinions.suspects[x], m.opinions.evidence(x)
		if standing+len(batch) >= maxQuarantines {
			break
		}
		if now.Sub(s.tried) < decideWithin || !m.opinions.confirmed(now, s, e) {
			continue
		}
		s.tried = now
		if !m.served(x, e.class) {
			continue // it was replaced meanwhile
		}
		good, err := m.lastGood(ctx, then, x, e)
		if err != nil {
			return nil, err
		}
		r := &ident.Resource{Rejected: x, Class: e.class}
		batch = append(batch, events.Event{ID: m.cfg.NewID(), Observed: now, Actor: m.cfg.ID, Body: &events.Overlay{
			ID: m.quarantineID(x), Kind: ident.Quarantine, Reason: strings.Join(strings.Fields(e.message), " "), // one line
			Values: []ident.OverlayValue{{Resource: r, Value: good}},
		}})
	}
	return batch, nil
}

// quarantineID is the same for two leaders that come to the same conclusion,
// and for one that does so twice; it is another one when the same content is
// rejected again later, because ids are used once.
func (m *Machine) quarantineID(x ident.Rejected) string {
	h := sha256.Sum256([]byte(strings.Join([]string{x.Type, x.Name, x.Client, string(x.Sum[:])}, "\x00")))
	first := fmt.Sprintf("quarantine-%x", h[:6])
	id := first
	for n := 2; m.fold.OverlayRemoved(id); n++ {
		id = fmt.Sprintf("%s-%d", first, n)
	}
	return id
}

// past says what was served in versions that somebody had before. Where much is
// rejected at once, that is one version as a rule.
type past map[ident.Position]func(gate.ClassOf, string) ([]byte, [16]byte)

// lastGood is what is served instead: what the class was served in the version
// that those who reject it had before. Nil: that is not found, or too large.
func (m *Machine) lastGood(ctx context.Context, then past, x ident.Rejected, e evidence) (*ident.Value, error) {
	t, ok := ident.ResourceTypeOf(x.Type)
	class, err := index.DecodeClass(e.class)
	if !ok || err != nil || len(e.goodSum) == 0 || e.good.IsZero() {
		return nil, nil
	}
	served := then[e.good]
	if served == nil {
		world, err := m.worldAt(ctx, e.good)
		if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrCorrupt) {
			m.log.Warn("what proxies had before is not known any more; nothing is served instead", "resource", x.Name, "version", e.good, "error", err)
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		served = m.cfg.Gate.Served(world)
		then[e.good] = served
	}
	var release [ident.ResourceTypes]string
	release[t] = x.Client
	value, sum := served(gate.ClassOf{Type: t, Class: class.Released(release)}, x.Name)
	if value == nil || !slices.Equal(sum[:], e.goodSum) || len(value) > maxGood {
		m.log.Warn("what proxies had before cannot be served instead", "resource", x.Name, "version", e.good, "bytes", len(value))
		return nil, nil
	}
	return &ident.Value{Type: x.Type, Bytes: value}, nil
}

// worldAt is the world of a version, from whoever has it.
func (m *Machine) worldAt(ctx context.Context, v ident.Position) (*world.World, error) {
	stored, err := m.cfg.Store.At(ctx, v)
	if err != nil {
		stored, err = m.cfg.Feed.Fetch(ctx, v)
	}
	if err != nil {
		return nil, fmt.Errorf("content of version %s: %w", v, err)
	}
	change := world.Change{Reset: true}
	for row := range stored.Snapshot.Rows() {
		change.Rows = append(change.Rows, world.RowChange{Row: row.Key, Value: row.Value})
	}
	world, _, err := world.NewWorld().Apply(change)
	if err != nil {
		return nil, fmt.Errorf("world of version %s: %w", v, err)
	}
	return world, nil
}

// lifted are the ends of the quarantines of what is no longer served, as events.
func (m *Machine) lifted() []events.Event {
	var batch []events.Event
	for _, o := range m.fold.Quarantines() {
		if slices.ContainsFunc(o.Values, func(v ident.OverlayValue) bool { return m.served(v.Resource.Rejected, v.Resource.Class) }) {
			continue
		}
		batch = append(batch, events.Event{ID: m.cfg.NewID(), Observed: m.cfg.Now(), Actor: m.cfg.ID, Body: &events.Overlay{
			ID: o.ID, Kind: ident.Quarantine, Reason: "its content is another", Remove: true,
		}})
	}
	return batch
}

// quarantines are those that stand, for people.
func (m *Machine) quarantines() []*reportv1.Quarantine {
	var all []*reportv1.Quarantine
	for _, o := range m.fold.Quarantines() {
		for _, v := range o.Values {
			all = append(all, &reportv1.Quarantine{
				Id: o.ID, TypeUrl: v.Resource.Type, Name: v.Resource.Name, Client: v.Resource.Client,
				Reason: o.Reason, Since: timestamppb.New(o.Observed), LastGood: v.Value != nil,
			})
		}
	}
	slices.SortFunc(all, func(a, b *reportv1.Quarantine) int {
		return cmp.Or(cmp.Compare(a.GetTypeUrl(), b.GetTypeUrl()), cmp.Compare(a.GetName(), b.GetName()), cmp.Compare(a.GetId(), b.GetId()))
	})
	return all
}

// crowd says that there are too many.
func (m *Machine) crowd() []problem.Diagnostic {
	if !m.crowded {
		return nil
	}
	return []problem.Diagnostic{{
		Severity: problem.Error, Code: "quarantines",
		Reason: fmt.Sprintf("%d resources are in quarantine, and no more can be", maxQuarantines),
		Advice: "correct what `meshlog diagnostics` says is rejected",
		Effect: "what is rejected besides is sent to every proxy that comes, and held back from those that have rejected it",
	}}
}

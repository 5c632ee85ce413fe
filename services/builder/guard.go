package builder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/failpoint"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

// guard puts a hold on the log where the next version would lose much of a
// source at once (I12): what is lost is served on until an operator approves.
// What is still offered, and only not usable, is no loss: its last good value
// decides.
func (m *Machine) guard(ctx context.Context, before *store.Snapshot, delta store.Delta) (held bool, err error) {
	policy := m.world.Policy().Guard
	if policy.Disabled {
		return false, nil
	}
	lost := map[ident.Shard][]ident.Key{}
	for _, row := range delta.Remove {
		k, overlay, err := ident.ParseRow(row)
		if err != nil || overlay != "" {
			continue
		}
		if _, offered := m.fold.Offered(k); !offered {
			lost[k.Shard()] = append(lost[k.Shard()], k)
		}
	}
	for _, shard := range slices.SortedFunc(maps.Keys(lost), compareShards) {
		keys := lost[shard]
		total := m.fold.CountKeys(shard) + len(keys)
		if len(keys) < policy.MinKeys || len(keys)*100 < policy.MaxLossPercent*total {
			continue
		}
		id := fmt.Sprintf("hold-%d-%s-%s-%s", m.fold.Position().Epoch, m.head.Version(), shard.Source, shard.Instance)
		values, err := served(before, keys)
		if err != nil {
			return false, fmt.Errorf("content of head %s: %w", m.head.Version(), err)
		}
		unheld := func(v ident.OverlayValue) bool { return !m.fold.Held(v.Key) }
		if m.fold.OverlayRemoved(id) || !slices.ContainsFunc(values, unheld) {
			continue // approved before it was ever published, or held already
		}
		// Of a hold that is on the log and not published yet, the next one with
		// its id takes the place: more was lost meanwhile.
		return true, m.hold(ctx, id, fmt.Sprintf("%s lost %d of its %d objects at once", shard, len(keys), total), values)
	}
	m.holdErr = nil
	return false, nil
}

// maxHold is how many bytes of values one overlay carries: what it has besides
// must fit into a message with them.
const maxHold = 400 << 10

// parts are overlays of one hold, each of which fits into a message: the first
// has the hold's id, the others id/2, id/3 and so on.
func parts(id, reason string, values []ident.OverlayValue) []*events.Overlay {
	var all []*events.Overlay
	size := 0
	for _, v := range values {
		n := len(v.Value.Bytes) + len(v.Key.Row()) + len(v.Value.Type)
		if size += n; len(all) == 0 || size > maxHold {
			o := &events.Overlay{ID: id, Kind: ident.Hold, Reason: reason}
			if len(all) > 0 {
				o.ID = fmt.Sprintf("%s%s%d", id, partOf, len(all)+1)
			}
			all, size = append(all, o), n
		}
		last := all[len(all)-1]
		last.Values = append(last.Values, v)
	}
	return all
}

// partOf stands between a hold's id and the number of a part.
const partOf = "/"

// served are the values that content serves for keys; those that an overlay
// keeps from being served are left out.
func served(content *store.Snapshot, keys []ident.Key) ([]ident.OverlayValue, error) {
	over, err := overlaid(content)
	if err != nil {
		return nil, err
	}
	var values []ident.OverlayValue
	for _, k := range keys {
		v, ok := over[k]
		if !ok {
			if v, err = valueIn(content, k); err != nil {
				return nil, err
			}
		}
		if v != nil {
			values = append(values, ident.OverlayValue{
				Key: k, Value: v,
			})
		}
	}
	return values, nil
}

// hold appends the overlays of a hold, all of them or none.
func (m *Machine) hold(ctx context.Context, id, reason string, values []ident.OverlayValue) error {
	var batch []events.Event
	for _, o := range parts(id, reason, values) {
		batch = append(batch, events.Event{ID: m.cfg.NewID(), Observed: m.cfg.Now(), Actor: m.cfg.ID, Body: o})
	}
	failpoint.At(failpoint.BuilderHold)
	appended, err := m.appendOverlays(ctx, batch)
	switch {
	case errors.Is(err, events.ErrTooLarge), errors.Is(err, events.ErrInvalid):
		// Nothing can be put on the log, and nothing may be lost unheld.
		if m.holdErr == nil {
			m.log.Error("a mass loss can neither be held nor published", "hold", id, "reason", reason, "error", err)
		}
		m.holdErr = fmt.Errorf("%s, and what was lost is too large to be held: nothing is published until it is back, or until MeshPolicy default disables the guard: %w", reason, err)
		return nil
	case err != nil:
		return fmt.Errorf("append hold %s: %w", id, err)
	case !appended:
		return nil
	}
	failpoint.At(failpoint.BuilderHeld)
	m.stats.Holds++
	m.log.Warn("a mass loss is held until it is approved", "hold", id, "reason", reason, "advice", "see `meshlog approve`")
	return nil
}

// appendOverlays appends what a builder says of overlays, all of it or nothing,
// if no other builder's word came between: appended says so.
func (m *Machine) appendOverlays(ctx context.Context, batch []events.Event) (appended bool, err error) {
	var last uint64
	rec, err := m.cfg.Log.Last(ctx, events.BuilderOverlaySubject)
	if err == nil {
		last = rec.Seq
	} else if !errors.Is(err, events.ErrNotFound) {
		return false, fmt.Errorf("last overlay on the log: %w", err)
	}
	fence := events.Fence{Kind: events.FenceSubject, Subject: events.BuilderOverlaySubject, Seq: last, Generation: m.logGen}
	if _, err = m.cfg.Log.Append(ctx, batch, fence); errors.Is(err, events.ErrConflict) {
		m.stats.Conflicts++
		return false, nil
	}
	return err == nil, err
}

// overlaid are the values that the overlays of a content serve; nil: they keep
// the key from being served.
func overlaid(content *store.Snapshot) (map[ident.Key]*ident.Value, error) {
	over := map[ident.Key]*ident.Value{}
	for row := range content.Rows() {
		_, id, err := ident.ParseRow(row.Key)
		if err != nil || id == "" {
			continue
		}
		o, err := world.UnmarshalOverlay(id, row.Value)
		if err != nil {
			return nil, err
		}
		for _, v := range o.Values {
			if v.Resource == nil {
				over[v.Key] = v.Value
			}
		}
	}
	return over, nil
}

func valueIn(content *store.Snapshot, k ident.Key) (*ident.Value, error) {
	b, ok := content.Get(k.Row())
	if !ok {
		return nil, nil
	}
	v, err := world.UnmarshalValue(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k, err)
	}
	return &v, nil
}

func compareShards(a, b ident.Shard) int {
	return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Instance, b.Instance))
}

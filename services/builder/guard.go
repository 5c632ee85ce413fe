package builder

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/services/internal/model"
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
	lost := map[model.Shard][]model.Key{}
	for _, row := range delta.Remove {
		k, overlay, err := model.ParseRow(row)
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
		o := &events.Overlay{
			ID:     fmt.Sprintf("hold-%d-%s-%s-%s", m.fold.Position().Epoch, m.head.Version(), shard.Source, shard.Instance),
			Kind:   events.Hold,
			Reason: fmt.Sprintf("%s lost %d of its %d objects at once", shard, len(keys), total),
		}
		if o.Values, err = served(before, keys); err != nil {
			return false, fmt.Errorf("content of head %s: %w", m.head.Version(), err)
		}
		unheld := func(v events.OverlayValue) bool { return !m.fold.Held(model.Key(v.Key)) }
		if m.fold.OverlayRemoved(o.ID) || !slices.ContainsFunc(o.Values, unheld) {
			continue // approved before it was ever published, or held already
		}
		// Of a hold that is on the log and not published yet, the next one with
		// its id takes the place: more was lost meanwhile.
		return true, m.hold(ctx, o)
	}
	return false, nil
}

// served are the values that content serves for keys; those that an overlay
// keeps from being served are left out.
func served(content *store.Snapshot, keys []model.Key) ([]events.OverlayValue, error) {
	over, err := overlaid(content)
	if err != nil {
		return nil, err
	}
	var values []events.OverlayValue
	for _, k := range keys {
		v, ok := over[k]
		if !ok {
			if v, err = valueIn(content, k); err != nil {
				return nil, err
			}
		}
		if v != nil {
			values = append(values, events.OverlayValue{
				Key: events.Key(k), Payload: &events.Payload{Type: v.Type, Bytes: v.Bytes}, Created: v.Created,
			})
		}
	}
	return values, nil
}

// hold appends the overlay. Its fence: no other builder's word came between.
func (m *Machine) hold(ctx context.Context, o *events.Overlay) error {
	var last uint64
	rec, err := m.cfg.Log.Last(ctx, events.BuilderOverlaySubject)
	if err == nil {
		last = rec.Seq
	} else if !errors.Is(err, events.ErrNotFound) {
		return fmt.Errorf("last overlay on the log: %w", err)
	}
	ev := events.Event{ID: m.cfg.NewID(), Observed: m.cfg.Now(), Actor: m.cfg.ID, Body: o}
	fence := events.Fence{Kind: events.FenceSubject, Subject: events.BuilderOverlaySubject, Seq: last, Generation: m.logGen}
	_, err = m.cfg.Log.Append(ctx, []events.Event{ev}, fence)
	if errors.Is(err, events.ErrConflict) {
		m.stats.Conflicts++
		return nil
	}
	if err != nil {
		return fmt.Errorf("append hold %s: %w", o.ID, err)
	}
	m.stats.Holds++
	m.log.Warn("a mass loss is held until it is approved", "hold", o.ID, "reason", o.Reason, "advice", "see `meshlog approve`")
	return nil
}

// overlaid are the values that the overlays of a content serve; nil: they keep
// the key from being served.
func overlaid(content *store.Snapshot) (map[model.Key]*model.Value, error) {
	over := map[model.Key]*model.Value{}
	for row := range content.Rows() {
		_, id, err := model.ParseRow(row.Key)
		if err != nil || id == "" {
			continue
		}
		o, err := model.UnmarshalOverlay(id, row.Value)
		if err != nil {
			return nil, err
		}
		for _, v := range o.Values {
			over[v.Key] = v.Value
		}
	}
	return over, nil
}

func valueIn(content *store.Snapshot, k model.Key) (*model.Value, error) {
	b, ok := content.Get(k.Row())
	if !ok {
		return nil, nil
	}
	v, err := model.UnmarshalValue(b)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", k, err)
	}
	return &v, nil
}

func compareShards(a, b model.Shard) int {
	return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Instance, b.Instance))
}

package jury

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/store"
)

// Hold keeps objects in service that a source lost at once, until an operator
// approves the loss.
type Hold struct {
	ID, Reason string
	// Parts are the overlays of the hold, each small enough for a message. The
	// first has the hold's id, the others ID/2, ID/3 and so on. They count only
	// together.
	Parts []*events.Overlay
}

// Guard returns the hold that must be on the log before the next version: before
// is the content of the head, delta leads from there to the next version. It
// returns nil if no source would lose as much at once as the policy limits (I12).
//
// An object that is still offered and has become invalid is no loss: its last
// good value is served. One that came back after an operator froze its source is one.
func Guard(f *fold.Fold, policy world.Guard, head ident.Position, before *store.Snapshot, delta store.Delta) (*Hold, error) {
	if policy.Disabled {
		return nil, nil
	}
	lost := map[ident.Shard][]ident.Key{}
	for _, row := range delta.Remove {
		k, overlay, err := ident.ParseRow(row)
		if err != nil || overlay != "" {
			continue
		}
		if _, offered := f.Offered(k); !offered || f.Frozen(k) {
			lost[k.Shard()] = append(lost[k.Shard()], k)
		}
	}
	for _, shard := range slices.SortedFunc(maps.Keys(lost), compareShards) {
		keys := lost[shard]
		total := f.CountKeys(shard) + len(keys)
		if len(keys) < policy.MinKeys || len(keys)*100 < policy.MaxLossPercent*total {
			continue
		}
		id := fmt.Sprintf("hold-%d-%s-%s-%s", f.Position().Epoch, head, shard.Source, shard.Instance)
		values, err := served(before, keys)
		if err != nil {
			return nil, fmt.Errorf("content of head %s: %w", head, err)
		}
		unheld := func(v ident.OverlayValue) bool { return !f.Held(v.Key) }
		if f.OverlayRemoved(id) || !slices.ContainsFunc(values, unheld) {
			continue // approved before it was ever published, or held already
		}
		// If more was lost since a hold was appended that is not published yet,
		// this one has the same id and replaces it.
		reason := fmt.Sprintf("%s lost %d of its %d objects at once", shard, len(keys), total)
		return &Hold{id, reason, parts(id, reason, values)}, nil
	}
	return nil, nil
}

// maxHold is the maximum number of bytes of values in one overlay, so that it fits
// into a message.
const maxHold = 400 << 10

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

// served returns the values that a content serves for keys, without those that
// an overlay keeps from being served.
func served(content *store.Snapshot, keys []ident.Key) ([]ident.OverlayValue, error) {
	over, err := overlaid(content)
	if err != nil {
		return nil, err
	}
	var values []ident.OverlayValue
	for _, k := range keys {
		v, ok := over[k]
		if !ok {
			b, found := content.Get(k.Row())
			if !found {
				continue
			}
			value, err := world.UnmarshalValue(b)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", k, err)
			}
			v = &value
		}
		if v != nil {
			values = append(values, ident.OverlayValue{Key: k, Value: v})
		}
	}
	return values, nil
}

// overlaid returns the values that the overlays of a content serve; nil: the
// overlay keeps the key from being served.
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
		if o.ForSome() {
			continue // only some proxies are served its values
		}
		for _, v := range o.Values {
			if v.Resource == nil {
				over[v.Key] = v.Value
			}
		}
	}
	return over, nil
}

func compareShards(a, b ident.Shard) int {
	return cmp.Or(cmp.Compare(a.Source, b.Source), cmp.Compare(a.Instance, b.Instance))
}

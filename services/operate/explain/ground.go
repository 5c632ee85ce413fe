package explain

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// ground is what an answer stands on: a proxy, and the content that it was served.
type ground struct {
	past     *past.Past
	moment   command.Moment
	proxy    *proxy.Proxy
	rows     *store.Snapshot
	world    *world.World             // with the served values in place of those that overlays cover
	covers   map[ident.Key]string     // the overlay whose value of a key is served
	overlays map[string]world.Overlay // by id
	problems []command.Diagnostic     // of the version
}

// flags name the proxy and the version.
type flags struct{ node, version *string }

// open finds the proxy and what it was served.
func (f *flags) open(ctx context.Context, e *command.Env, id string) (*ground, error) {
	p, err := e.Past(ctx)
	if err != nil {
		return nil, err
	}
	g := &ground{past: p, covers: map[ident.Key]string{}, overlays: map[string]world.Overlay{}}
	q := command.ProxyQuery{ID: id, File: *f.node}
	if g.proxy, err = q.Find(ctx, e.Target, p); err != nil {
		return nil, err
	}
	if g.moment, err = command.FindMoment(ctx, p, cmp.Or(*f.version, command.Latest)); err != nil {
		return nil, err
	}
	if g.rows, err = g.moment.Content(ctx, p); err != nil {
		return nil, err
	}
	g.problems = command.Diagnostics(g.moment.Manifest.GetDiagnostics(), "")
	return g, g.flatten()
}

// flatten makes the world without overlays over objects, with the values that they serve.
// In it every object can be varied.
func (g *ground) flatten() error {
	w, err := ledger.World(g.rows)
	if err != nil {
		return err
	}
	over, ids, err := past.Layers(g.rows)
	if err != nil {
		return err
	}
	pin := index.Classify(index.NewPushContext(w), g.proxy).CDS.Pin
	var rows []world.RowChange
	for _, id := range ids {
		b, _ := g.rows.Get(ident.OverlayRow(id))
		o, err := world.UnmarshalOverlay(id, b)
		if err != nil {
			return err
		}
		g.overlays[id] = o
		if o.ForSome() || slices.ContainsFunc(o.Values, func(v ident.OverlayValue) bool { return v.Resource == nil }) {
			rows = append(rows, world.RowChange{Row: ident.OverlayRow(id)})
		}
	}
	for _, v := range g.overlays[pin].Values {
		rolledBack := slices.ContainsFunc(over[v.Key], func(id string) bool { return g.overlays[id].Kind == ident.Rollback })
		if g.overlays[pin].Kind == ident.Pin || !rolledBack {
			over[v.Key] = []string{pin}
		}
	}
	w, _ = w.View(pin)
	for k, ids := range over {
		if len(ids) == 0 {
			continue
		}
		row := world.RowChange{Row: k.Row(), Key: k}
		if o := w.Served(k); o != nil {
			row.Value = world.MarshalValue(o.Value)
		}
		g.covers[k] = ids[0]
		rows = append(rows, row)
	}
	g.world, _, err = w.Apply(world.Change{Rows: rows})
	return err
}

// objectView is an object and where it came from.
type objectView struct {
	Object string   `json:"object"`
	Key    past.Key `json:"key"`
	// Record carried the served value; absent: the log does not have it any more.
	Record *recordView `json:"record,omitempty"`
	// Overlay is served in place of the value of the source.
	Overlay *overlayView `json:"overlay,omitempty"`
	// Problems are the errors of the object: a newer value of it is refused.
	Problems []command.Diagnostic `json:"problems,omitempty"`
}

// recordView is the record that carried an object or an overlay.
type recordView struct {
	Seq    uint64    `json:"seq"`
	Time   time.Time `json:"time"` // the server's
	What   string    `json:"what"`
	Origin string    `json:"origin,omitempty"`
	Actor  string    `json:"actor,omitempty"`
}

type overlayView struct {
	ID     string `json:"id"`
	Kind   string `json:"kind"`
	Reason string `json:"reason,omitempty"`
	Actor  string `json:"actor,omitempty"`
}

// String says which overlay it is, who made it and why.
func (o *overlayView) String() string {
	text := "the " + o.Kind + " " + o.ID
	if o.Actor != "" {
		text += " of " + o.Actor
	}
	return text + ": " + o.Reason
}

func viewOverlay(o world.Overlay) *overlayView {
	return &overlayView{ID: o.ID, Kind: past.OverlayKinds[o.Kind], Reason: o.Reason, Actor: o.Actor}
}

// objects returns where objects came from.
func (g *ground) objects(ctx context.Context, keys []ident.Key) ([]objectView, error) {
	values := map[ident.Key]ident.Value{}
	var overlays []string
	for _, k := range keys {
		if id := g.covers[k]; id != "" {
			overlays = append(overlays, ident.OverlayRow(id))
		} else if o := g.world.Served(k); o != nil {
			values[k] = o.Value
		}
	}
	carriers, err := past.Carriers(ctx, g.past, g.moment.Version, values)
	if err != nil {
		return nil, err
	}
	var seqs map[string]uint64
	if len(overlays) > 0 {
		if seqs, err = past.Causes(ctx, g.past, ident.Position{}, g.moment.Version, overlays); err != nil {
			return nil, err
		}
	}
	var all []objectView
	for _, k := range keys {
		v := objectView{Object: k.String(), Key: past.Key(k)}
		if id := g.covers[k]; id != "" {
			v.Overlay = viewOverlay(g.overlays[id])
			v.Record = g.record(ctx, seqs[ident.OverlayRow(id)])
		} else if r := carriers[k]; r != nil {
			v.Record = viewRecord(*r)
		}
		for _, d := range g.problems {
			if d.Object == v.Object && d.Severity == "error" {
				v.Problems = append(v.Problems, d)
			}
		}
		all = append(all, v)
	}
	return all, nil
}

// record returns the record seq; nil if the log does not have it any more.
func (g *ground) record(ctx context.Context, seq uint64) *recordView {
	if g.past.Log == nil || seq == 0 {
		return nil
	}
	r, err := g.past.Log.Get(ctx, seq)
	if err != nil {
		return nil
	}
	return viewRecord(r)
}

func viewRecord(r events.Record) *recordView {
	v := &recordView{Seq: r.Seq, Time: r.Time.UTC(), What: past.What(r), Actor: r.Event.Actor}
	if o, ok := r.Event.Body.(*events.Object); ok {
		v.Origin = o.Origin
	}
	return v
}

// add adds the row of an object to a table, with what else there is to say below it.
func (v *objectView) add(t *command.Rows) {
	seq, what, origin, actor, at := "", "", "", "", time.Time{}
	if r := v.Record; r != nil {
		seq, what, origin, actor, at = fmt.Sprintf("#%d", r.Seq), strings.ToUpper(r.What), r.Origin, r.Actor, r.Time
	}
	t.Add(v.Object, seq, at, what, origin, actor)
	if o := v.Overlay; o != nil {
		t.Note("served by " + o.String())
	}
	for _, d := range v.Problems {
		for i, line := range lines(d) {
			t.Note(strings.Repeat("  ", min(i, 1)) + line)
		}
	}
}

func lines(d command.Diagnostic) []string {
	text := d.Severity + ": "
	if d.Origin != "" {
		text += d.Origin + ": "
	}
	if d.Field != "" {
		text += d.Field + ": "
	}
	all := []string{text + d.Reason}
	if d.Effect != "" {
		all = append(all, "meanwhile "+d.Effect)
	}
	return all
}

func objectRows() command.Rows {
	return command.Rows{Head: []string{"OBJECT", "RECORD", "TIME", "WHAT", "FROM", "BY"}}
}

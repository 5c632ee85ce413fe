package web

import (
	"context"
	"strings"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/console/record"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/history"
	"meshlog.dev/store"
)

// Limits of a page of the timeline: versions that it shows, and versions that it reads to find
// some that match.
const (
	timelineRows = 50
	timelineRead = 5000
)

// timelineData is a stretch of versions, the newest first.
type timelineData struct {
	Rows  []timelineRow
	Older string // the version from which an older page goes on; empty: there is none
	Read  int    // versions that were looked at
	Strip []stripMark
}

type timelineRow struct {
	*history.VersionView
	Actor, Origin    string
	Applied, Streams uint32
	Overlays         []string // ids of overlays that it put or removed
	// Recorded is how it reached the proxies; nil: that was not recorded.
	Recorded *record.Version
}

// stripMark is a version on the strip, whose width is stripWidth.
type stripMark struct {
	X       float64
	Version ident.Position
	Title   string
	Current bool
}

const stripWidth = 1000

// timeline lists versions, from the one that the parameter before names on.
func timeline(ctx context.Context, p *page) (any, error) {
	v := timelineData{}
	only, actor := filterOf(p), p.Param("actor")
	var end ident.Position
	if before := p.Param("before"); before != "" {
		m, err := command.FindMoment(ctx, p.mesh.Past, before)
		if err != nil {
			return nil, err
		}
		end = m.Version
	}
	for m, err := range p.mesh.Past.Versions.History(ctx) {
		if err != nil {
			return nil, err
		}
		at := store.VersionOf(m.GetVersion())
		if !end.IsZero() && end.Less(at) {
			continue
		}
		if len(v.Rows) == timelineRows || v.Read == timelineRead {
			v.Older = at.String()
			break
		}
		v.Read++
		if row, ok := timelineOf(ctx, p, m, only, actor); ok {
			v.Rows = append(v.Rows, row)
		}
	}
	v.strip(p.moment.Version)
	return v, nil
}

// timelineOf returns the row of a version; false: the filters leave it out.
func timelineOf(ctx context.Context, p *page, m *store.Manifest, only *command.Objects, actor string) (timelineRow, bool) {
	row := timelineRow{}
	matches := only.IsEmpty()
	var seq uint64
	for _, c := range m.GetChanges() {
		k, overlay, err := ident.ParseRow(c.GetKey())
		if err != nil {
			continue
		}
		if overlay != "" {
			row.Overlays = append(row.Overlays, overlay)
		} else if !matches && only.Match(k) {
			matches = true
		}
		if seq == 0 {
			seq = c.GetSeq()
		}
	}
	if !matches {
		return row, false
	}
	if seq != 0 {
		if r, err := p.mesh.Past.Log.Get(ctx, seq); err == nil {
			row.Actor, row.Origin = r.Event.Actor, originOf(r)
		}
	}
	if actor != "" && !strings.Contains(strings.ToLower(row.Actor), strings.ToLower(actor)) {
		return row, false
	}
	row.VersionView = history.VersionOf(m)
	row.Applied, row.Streams = p.Mesh.Applied(row.Version)
	if r := p.mesh.Recorder; r != nil {
		if v, ok := r.Version(row.Version); ok {
			row.Recorded = &v
			if row.Streams == 0 { // no report of the present
				row.Applied, row.Streams = v.Applied, v.Streams
			}
		}
	}
	return row, true
}

// strip places the versions by time.
func (v *timelineData) strip(current ident.Position) {
	if len(v.Rows) == 0 {
		return
	}
	at := func(r timelineRow) time.Time { return r.PublishedAt }
	first, last := at(v.Rows[len(v.Rows)-1]), at(v.Rows[0])
	span := last.Sub(first).Seconds()
	for i := range v.Rows {
		r := v.Rows[len(v.Rows)-1-i]
		x := stripWidth / 2.
		if span > 0 {
			x = 10 + (stripWidth-20)*at(r).Sub(first).Seconds()/span
		}
		v.Strip = append(v.Strip, stripMark{x, r.Version, r.Version.String() + ", " + clock(at(r)) + ": " + r.Because(), r.Version == current})
	}
}

// originOf returns the file and line, or the field manager, of a record.
func originOf(r events.Record) string {
	if o, ok := r.Event.Body.(*events.Object); ok {
		return o.Origin
	}
	return ""
}

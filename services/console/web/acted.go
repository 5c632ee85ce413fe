package web

import (
	"context"
	"strconv"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// actedData is a record of an operator, and which proxies have what it changed.
type actedData struct {
	Seq              uint64
	Time             time.Time
	What, Actor      string
	ID, Reason       string
	Signed           bool
	Version          ident.Position // the first one that has it; zero: none yet
	Applied, Streams int
}

// acted shows the record that an act has appended, from the log: it shows nothing that is not
// there, whatever its address says.
func acted(ctx context.Context, p *page) (any, error) {
	seq, err := strconv.ParseUint(p.Param("record"), 10, 64)
	if err != nil {
		return nil, command.Usage("record %q: want its number, as `meshlog log` prints it", p.Param("record"))
	}
	r, err := p.mesh.Past.Log.Get(ctx, seq)
	if err != nil { // the console's copy may not have it yet
		if log, away := p.mesh.Target.Log(ctx); away == nil {
			r, err = log.Get(ctx, seq)
		}
	}
	if err != nil {
		return nil, command.NotFound("record %d: %w", seq, err)
	}
	o, ok := r.Event.Body.(*events.Overlay)
	if !ok {
		return nil, command.NotFound("record %d is no act of an operator", seq)
	}
	v := actedData{Seq: seq, Time: r.Time, What: past.What(r), Actor: r.Event.Actor, ID: o.ID, Reason: o.Reason, Signed: r.Event.Signature != nil}
	for m, err := range p.mesh.Past.Versions.History(ctx) {
		if err != nil {
			return nil, err
		}
		at := store.VersionOf(m.GetVersion())
		if at.Seq < seq || !v.Version.IsZero() && at.Epoch != v.Version.Epoch {
			break
		}
		v.Version = at
	}
	if !v.Version.IsZero() {
		applied, streams := p.Mesh.Applied(v.Version)
		v.Applied, v.Streams = int(applied), int(streams)
	}
	return v, nil
}

package bisect

import (
	"context"
	"fmt"
	"strings"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// view is the result of a search.
type view struct {
	Proxy string         `json:"proxy"`
	Good  ident.Position `json:"good"` // as given
	Bad   ident.Position `json:"bad"`
	Tests []testView     `json:"tests"`
	// Found says whether the configuration is good or bad from Version on.
	Found   verdict          `json:"found"`
	Version ident.Position   `json:"version"`
	Before  ident.Position   `json:"before"`            // the last version that is otherwise
	Skipped []ident.Position `json:"skipped,omitempty"` // versions between them that could not be tested
	// Records made the difference: one, or several if those between could not be tested.
	Records []recordView `json:"records,omitempty"`
	// Unknown says why there is no record; Changes is what the version changed then.
	Unknown string              `json:"unknown,omitempty"`
	Changes []past.ObjectChange `json:"changes,omitempty"`
	// XDS are the proxy's resources that differ.
	XDS        []past.ObjectChange `json:"xds,omitempty"`
	CallBefore []string            `json:"callBefore,omitempty"`
	CallAfter  []string            `json:"callAfter,omitempty"`

	before, after *store.Snapshot
}

type testView struct {
	At      ident.Position `json:"at"`
	Verdict verdict        `json:"verdict"`
	Says    string         `json:"says"`
}

// recordView is a record that changed the content. What it changed came with the records of
// Changes, if it is the last of a batch or ends a listing.
type recordView struct {
	Seq     uint64         `json:"seq"`
	First   uint64         `json:"first,omitempty"` // of those that act as one, if there are several
	Time    time.Time      `json:"time"`            // the server's
	What    string         `json:"what"`
	Object  string         `json:"object,omitempty"`
	Origin  string         `json:"origin,omitempty"`
	Actor   string         `json:"actor,omitempty"`
	Changes []causedChange `json:"changes"`
}

// causedChange is a change, and where the value came from, if another record brought it.
type causedChange struct {
	past.ObjectChange
	Origin string `json:"origin,omitempty"`
	Actor  string `json:"actor,omitempty"`
}

func (b *bisection) viewStep(ctx context.Context, s step) recordView {
	v := viewRecord(s.Record)
	first := s.from
	for _, c := range s.Changes {
		if c.Seq != 0 {
			first = min(first, c.Seq)
		}
	}
	if first < v.Seq {
		v.First = first
	}
	for _, c := range past.Objects(s.Changes) {
		cause := causedChange{ObjectChange: c}
		if c.Seq != 0 && c.Seq != v.Seq {
			if r, err := b.past.Log.Get(ctx, c.Seq); err == nil {
				by := viewRecord(r)
				cause.Origin, cause.Actor = by.Origin, by.Actor
			}
		}
		v.Changes = append(v.Changes, cause)
	}
	return v
}

func viewRecord(r events.Record) recordView {
	v := recordView{Seq: r.Seq, Time: r.Time.UTC(), What: past.What(r), Actor: r.Event.Actor, Changes: []causedChange{}}
	switch body := r.Event.Body.(type) {
	case *events.Object:
		v.Object, v.Origin = body.Key.String(), body.Origin
	case *events.Alive:
		v.Object = body.Shard.String()
	case *events.Begin:
		v.Object = body.Shard.String()
	case *events.Overlay:
		v.Object = "overlay " + body.ID
	}
	return v
}

func (v *view) show(out *command.Output) {
	if len(v.Skipped) > 0 {
		out.Line("The first %s version is one of %s: those before it could not be tested.", v.Found, command.Plural(len(v.Skipped)+1, "version", "versions"))
	}
	color := map[verdict]string{good: command.Green, bad: command.Red}[v.Found]
	out.Line("%s", out.Paint(fmt.Sprintf("%s is the first %s version; %s is %s.", v.Version, v.Found, v.Before, other(v.Found)), color))
	switch {
	case v.Unknown != "":
		out.Line("Which record made the difference is not known: %s.", v.Unknown)
	case len(v.Records) > 1:
		out.Line("One of these %d records made the difference; those between could not be tested:", len(v.Records))
	}
	for _, r := range v.Records {
		r.show(out)
	}
	for _, c := range v.Changes {
		showChange(out, "", c)
	}
	if len(v.CallAfter) > 0 {
		out.Line("\nThe call before:")
		lines(out, v.CallBefore)
		out.Line("The call since:")
		lines(out, v.CallAfter)
	}
	if len(v.XDS) == 0 {
		return
	}
	out.Line("\nThe xDS of %s:", v.Proxy)
	for _, c := range v.XDS {
		showChange(out, "", c)
	}
}

func other(v verdict) verdict {
	if v == good {
		return bad
	}
	return good
}

func (r *recordView) show(out *command.Output) {
	title := fmt.Sprintf("record #%d  %s  %s %s", r.Seq, command.Clock(r.Time), strings.ToUpper(r.What), r.Object)
	if r.First != 0 {
		title = fmt.Sprintf("records #%d to #%d, which act as one  %s", r.First, r.Seq, command.Clock(r.Time))
	}
	for _, more := range [][2]string{{"", r.Origin}, {"by ", r.Actor}} {
		if more[1] != "" {
			title += "  " + more[0] + more[1]
		}
	}
	out.Line("\n%s", title)
	for _, c := range r.Changes {
		by := ""
		if c.Origin != "" || c.Actor != "" {
			by = fmt.Sprintf("  #%d %s by %s", c.Seq, c.Origin, c.Actor)
		}
		showChange(out, by, c.ObjectChange)
	}
}

func showChange(out *command.Output, by string, c past.ObjectChange) {
	out.Line("%s", command.ChangeTitle(c, out)+out.Paint(by, command.Faint))
	all := command.ChangeLines(c)
	more := len(all) - mostLines
	if more <= 1 {
		more = 0
	}
	for _, l := range all[:len(all)-more] {
		out.Line("    %s", l)
	}
	if more > 0 {
		out.Line("    and %d more fields; -o json has all", more)
	}
}

// mostLines is how many fields of one change are printed.
const mostLines = 20

func lines(out *command.Output, all []string) {
	for _, l := range all {
		out.Line("  %s", l)
	}
}

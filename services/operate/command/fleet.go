package command

import (
	"cmp"
	"errors"
	"fmt"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/store"
)

// ErrNoFrontend says that no frontend answers.
var ErrNoFrontend = errors.New("no frontend answers; is one running, and connected to this bus? `meshlog sources` shows which watchers answer")

// Newest returns the builder that leads or, between leaders, the one that has
// read the most of the log; nil if there is none.
func Newest(bs []*reportv1.BuilderReport) (newest *reportv1.BuilderReport) {
	for _, b := range bs {
		ahead := store.VersionOf(newest.GetPosition()).Less(store.VersionOf(b.GetPosition()))
		if newest == nil || b.GetLeader() && !newest.GetLeader() || b.GetLeader() == newest.GetLeader() && ahead {
			newest = b
		}
	}
	return newest
}

// NewestHead returns the newest head that builders report or, if no builder
// answers, the newest version that a frontend serves.
func NewestHead(r *bus.Reports) ident.Position {
	if b := Newest(r.Builders); b != nil {
		return store.VersionOf(b.GetHead())
	}
	var head ident.Position
	for _, f := range r.Frontends {
		if v := store.VersionOf(f.GetServing()); head.Less(v) {
			head = v
		}
	}
	return head
}

// Applied returns how many streams of a frontend have applied version v or a newer
// one.
func Applied(f *reportv1.FrontendReport, v ident.Position) (streams uint32) {
	for _, a := range f.GetApplied() {
		if at := store.VersionOf(a.GetVersion()); !at.IsZero() && !at.Less(v) {
			streams += a.GetStreams()
		}
	}
	return streams
}

// TypeName returns the short name of an xDS type: CDS, EDS, LDS, RDS.
func TypeName(url string) string {
	if t, ok := ident.ResourceTypeOf(url); ok {
		return t.String()
	}
	return url
}

// Diagnostic is a problem as JSON and YAML show it.
type Diagnostic struct {
	Severity string `json:"severity"`
	Code     string `json:"code"`
	Object   string `json:"object,omitempty"`
	Origin   string `json:"origin,omitempty"`
	Field    string `json:"field,omitempty"`
	Reason   string `json:"reason"`
	Advice   string `json:"advice,omitempty"`
	Effect   string `json:"effect,omitempty"`

	Shard string `json:"-"` // of the watcher that reports it
}

// Diagnostics returns problems of a shard's watcher or, without one, of a
// builder.
func Diagnostics(ds []*snapshotv1.Diagnostic, shard string) []Diagnostic {
	views := []Diagnostic{}
	for _, d := range ds {
		views = append(views, Diagnostic{
			Severity: Severity(d.GetSeverity()), Code: d.GetCode(), Object: d.GetObject(), Origin: d.GetOrigin(), Field: d.GetField(),
			Reason: d.GetReason(), Advice: d.GetAdvice(), Effect: d.GetEffect(), Shard: shard,
		})
	}
	return views
}

// Where returns the place of the problem: its origin or else its object.
func (d *Diagnostic) Where() string { return cmp.Or(d.Origin, d.Object) }

// What returns the field and the reason.
func (d *Diagnostic) What() string {
	if d.Field == "" {
		return d.Reason
	}
	return d.Field + ": " + d.Reason
}

// String returns the problem in one line.
func (d *Diagnostic) String() string {
	if where := d.Where(); where != "" {
		return d.Severity + ": " + where + ": " + d.What()
	}
	return d.Severity + ": " + d.What()
}

// Show prints the problem for people.
func (d *Diagnostic) Show(out *Output) {
	color := map[string]string{"error": Red, "warning": Yellow}[d.Severity]
	what, object := d.What(), d.Object
	if where := d.Where(); where != "" {
		what = where + ": " + what
	}
	out.Line("%s  %s", out.Paint(d.Severity, color), what)
	if d.Where() == object {
		object = ""
	}
	for _, more := range [][2]string{{"object", object}, {"to do", d.Advice}, {"meanwhile", d.Effect}} {
		if more[1] != "" {
			out.Line("  %s %s", out.Paint(fmt.Sprintf("%-10s", more[0]), Faint), more[1])
		}
	}
}

// Severity returns the name of a severity.
func Severity(s snapshotv1.Severity) string { return problem.Severity(s).String() }

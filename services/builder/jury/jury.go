// Package jury decides which changes proxies must not receive: resources that
// proxies reject (quarantines), and the loss of many objects of a source at once
// (holds).
//
// It proposes overlays and writes nothing: the leader appends them to the log,
// and only then do they count, for every builder alike.
package jury

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/gate"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
)

// Gate generates the resources that proxies are served; see gate.Gate.
type Gate interface {
	Keep(classes []gate.ClassOf)
	Content(class gate.ClassOf, release, name string) *gate.Content
	Stands(class gate.ClassOf, q *ident.Resource) bool
	Served(w *world.World) func(class gate.ClassOf, name string) (value []byte, sum [16]byte)
}

// Jury evaluates the rejections that frontends report. One goroutine uses it.
type Jury struct {
	gate      Gate
	log       *slog.Logger
	since     time.Time                   // reports are counted since then
	frontends map[string]report           // the last report of each
	heard     int                         // bytes of all verdicts in frontends
	dropped   time.Time                   // when a report exceeded the limits last
	deaf      bool                        // that was lately
	suspects  map[ident.Rejected]*suspect // only a leader has some
	crowded   bool                        // there are MaxQuarantines
	crowders  []string                    // identities and addresses with MaxByOne of them
}

// New returns a Jury that counts reports from now on.
func New(g Gate, now time.Time, log *slog.Logger) *Jury {
	return &Jury{gate: g, log: log, since: now, frontends: map[string]report{}, suspects: map[ident.Rejected]*suspect{}}
}

// Rest drops the suspects: this builder does not lead.
func (j *Jury) Rest() {
	clear(j.suspects)
	j.gate.Keep(nil)
}

// Idle reports whether there is nothing to decide: no frontend reported
// anything, and nothing is in quarantine.
func (j *Jury) Idle(f *fold.Fold) bool { return len(j.frontends) == 0 && len(f.Quarantines()) == 0 }

// Suspects returns the resources that some proxy rejects, sorted. The leader
// asks every frontend about them.
func (j *Jury) Suspects() []*reportv1.Suspect {
	var all []*reportv1.Suspect
	for _, x := range sortedKeys(j.suspects) {
		all = append(all, &reportv1.Suspect{TypeUrl: x.Type, Name: x.Name, Sum: x.Sum[:], Client: x.Client})
	}
	return all
}

// Diagnostics returns a diagnostic for each reason why rejections may not count.
func (j *Jury) Diagnostics() []problem.Diagnostic {
	full := func(reason string) problem.Diagnostic {
		return problem.Diagnostic{
			Severity: problem.Error, Code: "quarantines", Reason: reason,
			Advice: "correct what `meshlog diagnostics` says is rejected",
			Effect: "further rejected resources are sent to every new proxy, and held back only from proxies that have rejected them",
		}
	}
	var all []problem.Diagnostic
	if j.crowded {
		all = append(all, full(fmt.Sprintf("%d rejections are in quarantine, which is the most there can be", MaxQuarantines)))
	}
	for _, by := range j.crowders {
		all = append(all, full(fmt.Sprintf("%d rejections in quarantine come from %s alone, which is the most that one client may cause", MaxByOne, by)))
	}
	if j.deaf {
		all = append(all, problem.Diagnostic{
			Severity: problem.Error, Code: "quarantines",
			Reason: fmt.Sprintf("frontends report too much: %d of them, %d verdicts of each and %d MiB in all count", maxFrontends, maxVerdicts, maxHeard>>20),
			Advice: "see who reports with `meshlog status`; if these are not your frontends, replace the frontends' key on the bus",
			Effect: "further reports do not count, and what they say is rejected may not be held back",
		})
	}
	return all
}

// Quarantines returns the quarantines of a fold, for reports.
func Quarantines(f *fold.Fold) []*reportv1.Quarantine { return QuarantinesIn(f.Quarantines()) }

// QuarantinesIn returns the quarantines among overlays, for reports.
func QuarantinesIn(overlays []world.Overlay) []*reportv1.Quarantine {
	var all []*reportv1.Quarantine
	for _, o := range overlays {
		if o.Kind != ident.Quarantine {
			continue
		}
		for _, v := range o.Values {
			all = append(all, &reportv1.Quarantine{
				Id: o.ID, TypeUrl: v.Resource.Type, Name: v.Resource.Name, Client: v.Resource.Client,
				Reason: o.Reason, Since: timestamppb.New(o.Observed), LastGood: v.Value != nil && !v.Resource.Closed,
				Piece: v.Resource.Piece, Closed: v.Resource.Closed,
			})
		}
	}
	slices.SortFunc(all, func(a, b *reportv1.Quarantine) int {
		return cmp.Or(
			cmp.Compare(a.GetTypeUrl(), b.GetTypeUrl()), cmp.Compare(a.GetName(), b.GetName()),
			cmp.Compare(a.GetPiece(), b.GetPiece()), cmp.Compare(a.GetId(), b.GetId()),
		)
	})
	return all
}

// Holds returns the holds of a fold that wait for approval, for reports.
func Holds(f *fold.Fold) []*reportv1.Hold { return HoldsIn(f.Holds()) }

// HoldsIn returns the holds among overlays, for reports. overlays are sorted by id.
func HoldsIn(overlays []world.Overlay) []*reportv1.Hold {
	var all []*reportv1.Hold
	byID := map[string]*reportv1.Hold{}
	for _, o := range overlays {
		if o.Kind != ident.Hold || len(o.Values) == 0 {
			continue
		}
		id, _, _ := strings.Cut(o.ID, partOf)
		h := byID[id]
		if h == nil {
			s := o.Values[0].Key.Shard()
			h = &reportv1.Hold{Id: id, Source: s.Source, Instance: s.Instance, Reason: o.Reason}
			byID[id] = h
			all = append(all, h)
		}
		h.Keys += uint32(len(o.Values))
		h.Parts = append(h.Parts, o.ID)
	}
	return all
}

// partOf separates the id of a hold from the number of its part.
const partOf = "/"

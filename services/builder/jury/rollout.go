package jury

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/builder/rollout"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/gate"
	"meshlog.dev/store"
)

// Heard returns what the frontends say about the running rollout. complete: every frontend
// had the time to report.
func (j *Jury) Heard(now time.Time) (all []rollout.Heard, complete bool) {
	j.expire(now)
	for _, name := range slices.Sorted(maps.Keys(j.frontends)) {
		r := j.frontends[name]
		h := rollout.Heard{
			Frontend: name, Serving: r.serving, Rollout: r.reached.GetRollout(), Step: int(r.reached.GetStep()),
			Streams: r.reached.GetStreams(), Applied: map[ident.Position]uint32{},
		}
		for _, a := range r.reached.GetApplied() {
			h.Applied[store.VersionOf(a.GetVersion())] += a.GetStreams()
		}
		all = append(all, h)
	}
	if now.Before(j.since) {
		j.since = now // the clock was set back
	}
	return all, now.Sub(j.since) >= allReport
}

// blame returns the overlay that stops the running rollout, if a suspect has been given to
// its proxies by it: those that it has not reached get another content. One proxy that
// rejects it is enough, because the others are to be spared.
func (j *Jury) blame(f *fold.Fold) *events.Overlay {
	running := f.Running()
	if running == "" {
		return nil
	}
	for _, x := range sortedKeys(j.suspects) {
		e := j.evidence(x)
		of, ok := classOf(x, e.class)
		if !ok || len(e.places) == 0 || of.Class.Pin(of.Type) != "" || !j.sends(of, x) || j.sends(inView(of, running), x) {
			continue
		}
		for _, r := range f.Rollouts() {
			if r.ID == running {
				message := strings.Join(strings.Fields(e.message), " ") // one line
				return rollout.Stop(&r, fmt.Sprintf("%s rejects %s: %s", x.Client, kindOf(x), message))
			}
		}
	}
	return nil
}

// sends reports whether clients of a class are sent x.
func (j *Jury) sends(of gate.ClassOf, x ident.Rejected) bool {
	c := j.gate.Content(of, x.Client, x.Name)
	return c != nil && c.Sent != nil && c.SentSum == x.Sum
}

// inView returns a class as that of proxies which a rollout has not reached.
func inView(of gate.ClassOf, rollout string) gate.ClassOf {
	return gate.ClassOf{Type: of.Type, Class: of.Class.InView(rollout).Only(of.Type)}
}

// kindOf returns the type and name of a resource for people.
func kindOf(x ident.Rejected) string {
	if t, ok := ident.ResourceTypeOf(x.Type); ok {
		return t.Message() + " " + x.Name
	}
	return x.Type + " " + x.Name
}

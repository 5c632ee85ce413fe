package draft

import (
	"crypto/rand"
	"fmt"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/tracing"
	"meshlog.dev/services/operate/command"
)

// maxEvent is the largest event that every log takes, with its headers.
const maxEvent = 510 << 10

// put returns the event of an item.
func put(i *Item, session string, pseq, low uint64) events.Event {
	o := &events.Object{Key: i.Key, Op: events.Put, Value: i.Value, Session: session, Pseq: pseq, Low: low}
	if i.Document != nil {
		o.Origin = i.Place("")
	}
	if i.Value.Type == "" {
		o.Op, o.Value = events.Delete, ident.Value{}
	}
	e := events.Event{ID: fmt.Sprintf("%s/%s/%d", i.Key.Shard(), session, pseq), Observed: time.Now(), Actor: command.Operator(), Body: o}
	if tracing.Context(i.Trace).IsValid() {
		e.Trace = i.Trace
	}
	return e
}

// NewSession returns the name of a session.
func NewSession() string { return "apply-" + rand.Text() }

// Session returns the events of a session that makes the steps: begin, objects, and the
// alive that ends it. The alive is partial, so that nothing is swept (API-1).
func Session(name ident.Shard, id, holder string, steps []Step) []events.Event {
	control := func(what string, body events.Body) events.Event {
		return events.Event{ID: fmt.Sprintf("%s/%s/%s", name, id, what), Observed: time.Now(), Actor: holder, Body: body}
	}
	all := []events.Event{control("begin", &events.Begin{Shard: name, Session: id, Holder: holder})}
	for n, st := range steps {
		i := *st.Item
		if st.Action == Deleted {
			i.Value = ident.Value{}
		}
		all = append(all, put(&i, id, uint64(n+1), 1))
	}
	return append(all, control("alive", &events.Alive{
		Shard: name, Session: id, Low: uint64(len(steps) + 1), Partial: true, Ends: true,
	}))
}

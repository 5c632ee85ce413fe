package history

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
)

// recordView is a record of the log.
type recordView struct {
	Seq      uint64    `json:"seq"`
	Time     time.Time `json:"time"` // the server's
	Hash     string    `json:"hash"`
	What     string    `json:"what"` // put, delete, begin, alive, overlay, segment, refused, unreadable
	ID       string    `json:"id,omitempty"`
	Observed time.Time `json:"observed,omitzero"`
	Actor    string    `json:"actor,omitempty"`
	Operator string    `json:"operator,omitempty"` // who has signed it
	Void     string    `json:"void,omitempty"`     // why it changes nothing although an operator could append it
	Trace    string    `json:"trace,omitempty"`
	Error    string    `json:"error,omitempty"` // of refused and unreadable

	Object  *objectView  `json:"object,omitempty"`
	Session *sessionView `json:"session,omitempty"`
	Overlay *overlayView `json:"overlay,omitempty"`
	Segment *segmentView `json:"segment,omitempty"`
}

type objectView struct {
	Key           past.Key        `json:"key"`
	Type          string          `json:"type,omitempty"`
	Spec          json.RawMessage `json:"spec,omitempty"`
	Raw           string          `json:"raw,omitempty"` // base64, where spec cannot be shown
	SourceVersion string          `json:"sourceVersion,omitempty"`
	Created       time.Time       `json:"created,omitzero"`
	Origin        string          `json:"origin,omitempty"`
	Session       string          `json:"session,omitempty"`
	Pseq          uint64          `json:"pseq,omitempty"`
	Batch         events.Batch    `json:"batch,omitzero"`
}

type sessionView struct {
	Source   string `json:"source"`
	Instance string `json:"instance"`
	Session  string `json:"session"`
	Holder   string `json:"holder,omitempty"`  // of begin
	Digest   string `json:"digest,omitempty"`  // of alive
	Listed   int    `json:"listed,omitempty"`  // buckets of 1024 that were sent
	Partial  bool   `json:"partial,omitempty"` // a part of the source could not be read
	// Kinds are the kinds that the session publishes; none: all.
	Kinds []string `json:"kinds,omitempty"`
	Ends  bool     `json:"ends,omitempty"` // the last record of the session
}

type overlayView struct {
	ID     string             `json:"id"`
	Kind   string             `json:"kind,omitempty"`
	Reason string             `json:"reason,omitempty"`
	Remove bool               `json:"remove,omitempty"`
	Keeps  string             `json:"keeps,omitempty"` // what stays as it is
	Batch  events.Batch       `json:"batch,omitzero"`  // messages that act as one
	Values []overlayValueView `json:"values,omitempty"`

	Resources []resourceView `json:"resources,omitempty"` // of a quarantine
}

// resourceView is a resource that proxies reject.
type resourceView struct {
	Type     string `json:"type"` // CDS, EDS, ...
	Name     string `json:"name"`
	Sum      string `json:"sum"` // of name and content
	Client   string `json:"client"`
	LastGood bool   `json:"lastGood,omitempty"` // the last good content is served
	Piece    string `json:"piece,omitempty"`    // of the resource; empty: the whole
	Closed   bool   `json:"closed,omitempty"`   // requests or connections are refused
}

type overlayValueView struct {
	Key  past.Key        `json:"key"`
	Base string          `json:"base,omitempty"` // hash of the content that it covers
	Spec json.RawMessage `json:"spec,omitempty"`
	Gone bool            `json:"gone,omitempty"` // the key is not served
}

type segmentView struct {
	Epoch uint64         `json:"epoch"`
	Build string         `json:"build"`
	Base  string         `json:"base,omitempty"`
	Head  ident.Position `json:"head,omitzero"`
}

func viewRecord(r events.Record) recordView {
	v := recordView{Seq: r.Seq, Time: r.Time.UTC(), Hash: r.Hash.String(), What: past.What(r)}
	if r.Err != nil {
		v.Error = r.Err.Error()
		return v
	}
	e := r.Event
	v.ID, v.Actor, v.Trace, v.Observed = e.ID, e.Actor, e.Trace, command.Stamp(e.Observed)
	switch b := e.Body.(type) {
	case *events.Object:
		v.Object = viewObject(b)
	case *events.Begin:
		v.Session = &sessionView{Source: b.Shard.Source, Instance: b.Shard.Instance, Session: b.Session, Holder: b.Holder}
	case *events.Alive:
		v.Session = &sessionView{
			Source: b.Shard.Source, Instance: b.Shard.Instance, Session: b.Session,
			Digest: fmt.Sprintf("%x", b.Digest), Listed: b.Listed.Len(), Partial: b.Partial,
			Kinds: b.Kinds, Ends: b.Ends,
		}
	case *events.Overlay:
		v.What, v.Overlay = "overlay", viewOverlay(b)
	case *events.Segment:
		v.Segment = &segmentView{Epoch: b.Epoch, Build: b.Build, Head: b.Head}
		if !b.Base.IsZero() {
			v.Segment.Base = b.Base.String()
		}
	}
	return v
}

func viewObject(o *events.Object) *objectView {
	v := &objectView{
		Key: past.Key(o.Key), Type: o.Value.Type, SourceVersion: o.SourceVersion, Created: command.Stamp(o.Value.Created),
		Origin: o.Origin, Session: o.Session, Pseq: o.Pseq, Batch: o.Batch,
	}
	if o.Op == events.Put {
		var err error
		if v.Spec, err = past.Document(o.Key.Kind, o.Value); err != nil {
			v.Raw = base64.StdEncoding.EncodeToString(o.Value.Bytes)
		}
	}
	return v
}

func viewOverlay(o *events.Overlay) *overlayView {
	v := &overlayView{ID: o.ID, Kind: past.OverlayKinds[o.Kind], Reason: o.Reason, Remove: o.Remove, Batch: o.Batch}
	if o.Scope != nil {
		v.Keeps = o.Scope.String()
	}
	for _, value := range o.Values {
		if r := value.Resource; r != nil {
			v.Resources = append(v.Resources, resourceView{
				Type: command.TypeName(r.Type), Name: r.Name, Sum: fmt.Sprintf("%x", r.Sum[:]), Client: r.Client,
				LastGood: value.Value != nil && !r.Closed, Piece: r.Piece, Closed: r.Closed,
			})
			continue
		}
		vv := overlayValueView{Key: past.Key(value.Key), Gone: value.Value == nil}
		if !value.Base.IsZero() {
			vv.Base = value.Base.String()
		}
		if value.Value != nil {
			vv.Spec, _ = past.Document(value.Key.Kind, *value.Value) // none if this build cannot read it
		}
		v.Values = append(v.Values, vv)
	}
	return v
}

// summary returns the object and the details of a record, for a table.
func summary(r events.Record) (object, detail string) {
	if r.Err != nil {
		return "", r.Err.Error()
	}
	switch b := r.Event.Body.(type) {
	case *events.Object:
		object, detail = b.Key.String(), b.Origin
		if b.Batch.Total > 1 {
			detail += fmt.Sprintf(" (%d of %d)", b.Batch.Index+1, b.Batch.Total)
		}
	case *events.Begin:
		object, detail = b.Shard.String(), "session "+shortSession(b.Session)
	case *events.Alive:
		object, detail = b.Shard.String(), "session "+shortSession(b.Session)
		if n := b.Listed.Len(); n > 0 {
			detail += fmt.Sprintf(", listed %d of %d buckets", n, events.Buckets)
		}
		if b.Partial {
			detail += ", partial"
		}
		if n := len(b.Kinds); n > 0 {
			detail += ", of " + command.Plural(n, "kind", "kinds")
		}
		if b.Ends {
			detail += ", ends"
		}
	case *events.Overlay:
		object, detail = b.ID, b.Reason
		switch {
		case b.Remove:
		case b.Kind == ident.Rollout:
			detail = b.Rollout.State.String()
			if b.Rollout.State == ident.RolloutRunning {
				detail = fmt.Sprintf("step %d reaches %s", b.Rollout.Step, b.Rollout.Reached)
			}
			if len(b.Values) > 0 {
				detail += ", " + command.Plural(len(b.Values), "key", "keys")
			}
			if b.Reason != "" {
				detail += ": " + b.Reason
			}
		case b.Kind == ident.Quarantine:
			detail = command.Plural(len(b.Values), "resource", "resources") + ": " + b.Reason
		case b.Kind == ident.Freeze:
			detail = "freezes " + b.Scope.String() + ": " + b.Reason
		case b.Kind == ident.Pin:
			detail = "pins " + b.Proxies.String() + ", " + command.Plural(len(b.Values), "key", "keys") + ": " + b.Reason
		default:
			detail = command.Plural(len(b.Values), "key", "keys") + ": " + b.Reason
			if b.Scope != nil {
				detail = "keeps " + b.Scope.String() + ", " + detail
			}
		}
		if b.Batch.Total > 1 {
			detail += fmt.Sprintf(" (%d of %d)", b.Batch.Index+1, b.Batch.Total)
		}
	case *events.Segment:
		object, detail = fmt.Sprintf("epoch %d", b.Epoch), "build "+b.Build
	}
	return object, detail
}

// shortSession returns enough of a session to tell it from its neighbors.
func shortSession(s string) string {
	random, n, ok := strings.Cut(s, "-")
	if !ok || len(random) < 7 {
		return s
	}
	return random[:6] + "-" + n
}

// whatCell shows what a record is, in the color of its sort.
func whatCell(what string) command.Cell {
	c := command.Cell{Text: strings.ToUpper(what), Color: command.Faint}
	switch what {
	case "put":
		c.Color = command.Green
	case "delete", "refused", "unreadable":
		c.Color = command.Red
	case "overlay", "remove", "segment":
		c.Color = command.Yellow
	}
	return c
}

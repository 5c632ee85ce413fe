package events

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/proto/ident"
)

// check returns an error that names the first invalid field of an event, as the
// schema does. Encode and Decode both call it, so Encode writes only events that
// Decode reads.
func check(e Event) error {
	if err := checkID(e.ID); err != nil {
		return err
	}
	err := cmp.Or(
		checkTime("observed_time", e.Observed),
		text("actor", e.Actor),
		text("traceparent", e.Trace),
	)
	if err != nil {
		return err
	}
	switch b := e.Body.(type) {
	case *Object:
		err = checkObject(b)
	case *Begin:
		err = cmp.Or(
			within("begin.shard", checkShard(b.Shard)),
			required("begin.session", b.Session),
			required("begin.holder", b.Holder),
		)
	case *Alive:
		err = cmp.Or(
			within("alive.shard", checkShard(b.Shard)),
			required("alive.session", b.Session),
			within("alive", checkKinds(b.Kinds)),
		)
	case *Overlay:
		err = checkOverlay(b)
	case *Segment:
		err = checkSegment(b)
	default:
		err = errors.New("body: is missing")
	}
	if err != nil {
		return err
	}
	_, err = SubjectOf(e)
	return err
}

// checkID refuses ids that a message header would change: drivers recognize a
// retry by comparing ids.
func checkID(id string) error {
	if id == "" {
		return errors.New("id: is missing")
	}
	if strings.TrimSpace(id) != id {
		return errors.New("id: begins or ends with a space")
	}
	if i := strings.IndexFunc(id, func(r rune) bool { return r < ' ' || r == 0x7f }); i >= 0 {
		return fmt.Errorf("id: has a control character at byte %d", i)
	}
	return text("id", id)
}

func checkObject(o *Object) error {
	err := cmp.Or(
		within("object.key", checkKey(o.Key)),
		text("object.payload.type_url", o.Value.Type),
		text("object.source_version", o.SourceVersion),
		checkTime("object.create_time", o.Value.Created),
		text("object.origin", o.Origin),
		required("object.session", o.Session),
	)
	if err != nil {
		return err
	}
	switch o.Op {
	case Put:
		if o.Value.Type == "" {
			return errors.New("object.payload.type_url: is missing in a PUT")
		}
	case Delete:
		if o.Value.Type != "" || len(o.Value.Bytes) != 0 {
			return errors.New("object.payload: must be absent in a DELETE")
		}
	default:
		return fmt.Errorf("object.op: %d is neither PUT nor DELETE", o.Op)
	}
	if o.Pseq == 0 {
		return errors.New("object.pseq: is missing; it counts from 1")
	}
	if o.Low > o.Pseq {
		return fmt.Errorf("object.low: %d is above pseq %d, of which no acknowledgement exists yet", o.Low, o.Pseq)
	}
	return checkBatch(o.Batch)
}

func checkBatch(b Batch) error {
	if b.Total == 0 {
		if b != (Batch{}) {
			return errors.New("object.batch.total: must be at least 1")
		}
		return nil
	}
	if b.Index >= b.Total {
		return fmt.Errorf("object.batch.index: %d is not below the total of %d", b.Index, b.Total)
	}
	return required("object.batch.id", b.ID)
}

func checkOverlay(o *Overlay) error {
	if err := cmp.Or(required("overlay.id", o.ID), text("overlay.reason", o.Reason)); err != nil {
		return err
	}
	if o.Remove {
		if o.Kind != 0 && o.Kind != ident.Quarantine || len(o.Values) != 0 {
			return errors.New("overlay.remove: values must be empty in a removal, and kind too, or QUARANTINE")
		}
		return nil
	}
	if o.Kind != ident.Rollback && o.Kind != ident.Hold && o.Kind != ident.Quarantine {
		return fmt.Errorf("overlay.kind: %d is none of ROLLBACK, HOLD and QUARANTINE", o.Kind)
	}
	if len(o.Values) == 0 {
		return errors.New("overlay.values: is empty")
	}
	seen := make(map[ident.Key]bool, len(o.Values))
	for i, v := range o.Values {
		err := checkOverlayValue(o.Kind, v)
		switch {
		case err != nil:
		case o.Kind == ident.Quarantine:
			if slices.ContainsFunc(o.Values[:i], func(w ident.OverlayValue) bool { return w.Resource.Rejected == v.Resource.Rejected }) {
				err = fmt.Errorf("resource: %s %q occurs twice", v.Resource.Type, v.Resource.Name)
			}
		case seen[v.Key]:
			err = fmt.Errorf("key: %s occurs twice", v.Key)
		}
		if err != nil {
			return within(fmt.Sprintf("overlay.values[%d]", i), err)
		}
		seen[v.Key] = true
	}
	return nil
}

func checkOverlayValue(k ident.OverlayKind, v ident.OverlayValue) error {
	var err error
	switch {
	case k == ident.Quarantine:
		err = within("resource", checkResource(v))
	case v.Resource != nil:
		err = errors.New("resource: must be absent but in a QUARANTINE")
	default:
		err = within("key", checkKey(v.Key))
	}
	if err == nil && v.Value != nil {
		err = cmp.Or(checkTime("create_time", v.Value.Created), required("payload.type_url", v.Value.Type))
	}
	return err
}

func checkResource(v ident.OverlayValue) error {
	r := v.Resource
	switch {
	case r == nil:
		return errors.New("type_url: is missing in a QUARANTINE")
	case v.Key != ident.Key{} || !v.Base.IsZero() || v.Value != nil && !v.Value.Created.IsZero():
		return errors.New("name: key, base and create_time must be absent beside it")
	}
	return cmp.Or(
		required("type_url", r.Type),
		required("name", r.Name),
		required("client", r.Client),
	)
}

func checkSegment(s *Segment) error {
	if s.Epoch == 0 {
		return errors.New("segment.epoch: is missing; epochs count from 1")
	}
	if s.Head.Epoch == 0 && s.Head.Seq != 0 {
		return errors.New("segment.head_epoch: is missing beside head_seq")
	}
	return required("segment.build", s.Build)
}

// checkKey does not require a namespace: some kinds have none.
func checkKey(k ident.Key) error {
	return cmp.Or(
		required("source", k.Source),
		required("instance", k.Instance),
		required("kind", k.Kind),
		text("namespace", k.Namespace),
		required("name", k.Name),
	)
}

func checkShard(s ident.Shard) error {
	return cmp.Or(
		required("source", s.Source),
		required("instance", s.Instance),
	)
}

// checkKinds requires the one encoding of a set: sorted, each kind once.
func checkKinds(kinds Kinds) error {
	for i, k := range kinds {
		field := fmt.Sprintf("kinds[%d]", i)
		if err := required(field, k); err != nil {
			return err
		}
		if i > 0 && k <= kinds[i-1] {
			return fmt.Errorf("%s: %q must come after %q; kinds are sorted, each once", field, k, kinds[i-1])
		}
	}
	return nil
}

// within prefixes the field that err names with the field around it.
func within(field string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s.%w", field, err)
}

func checkTime(field string, t time.Time) error {
	if t.IsZero() {
		return nil
	}
	if err := timestamppb.New(t).CheckValid(); err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	return nil
}

func required(field, value string) error {
	if value == "" {
		return fmt.Errorf("%s: is missing", field)
	}
	return text(field, value)
}

func text(field, value string) error {
	if !utf8.ValidString(value) {
		return fmt.Errorf("%s: %q is not UTF-8", field, value)
	}
	return nil
}

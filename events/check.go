package events

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/proto/ident"
	eventv1 "meshlog.dev/proto/meshlog/event/v1"
)

// check returns an error that names the first invalid field of an event. Encode
// and Decode both call it, so Encode writes only events that Decode reads.
func check(m *eventv1.Event) error {
	err := cmp.Or(
		checkID(m.GetId()),
		checkTime("observed_time", m.GetObservedTime()),
		text("actor", m.GetActor()),
		text("traceparent", m.GetTraceparent()),
		within("signature", checkSignature(m.GetSignature())),
	)
	if err != nil {
		return err
	}
	switch b := m.GetBody().(type) {
	case *eventv1.Event_Object:
		return within("object", checkObject(b.Object))
	case *eventv1.Event_Begin:
		return within("begin", cmp.Or(
			within("shard", checkShard(b.Begin.GetShard())),
			required("session", b.Begin.GetSession()),
			required("holder", b.Begin.GetHolder()),
			text("identity", b.Begin.GetIdentity()),
		))
	case *eventv1.Event_Alive:
		return within("alive", checkAlive(b.Alive))
	case *eventv1.Event_Overlay:
		return within("overlay", checkOverlay(b.Overlay))
	case *eventv1.Event_Segment:
		return within("segment", checkSegment(b.Segment))
	}
	return errors.New("body: is missing, or of a type that a newer build writes")
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

func checkObject(o *eventv1.Object) error {
	payload := o.GetPayload()
	err := cmp.Or(
		within("key", checkKey(o.GetKey())),
		text("payload.type_url", payload.GetTypeUrl()),
		text("source_version", o.GetSourceVersion()),
		checkTime("create_time", o.GetCreateTime()),
		text("origin", o.GetOrigin()),
		required("session", o.GetSession()),
		checkBatch(o.GetBatch()),
	)
	isPut, isDelete := o.GetOp() == eventv1.Op_OP_PUT, o.GetOp() == eventv1.Op_OP_DELETE
	switch {
	case err != nil:
		return err
	case isPut && payload == nil:
		return errors.New("payload: is missing in a PUT")
	case isPut && payload.GetTypeUrl() == "":
		return errors.New("payload.type_url: is missing in a PUT")
	case isDelete && payload != nil:
		return errors.New("payload: must be absent in a DELETE")
	case !isPut && !isDelete:
		return fmt.Errorf("op: %d is neither PUT nor DELETE", o.GetOp())
	case o.GetPseq() == 0:
		return errors.New("pseq: is missing; it counts from 1")
	case o.GetLow() > o.GetPseq():
		return fmt.Errorf("low: %d is above pseq %d, which is not acknowledged yet", o.GetLow(), o.GetPseq())
	}
	return nil
}

func checkBatch(b *eventv1.Batch) error {
	switch {
	case b == nil:
		return nil
	case b.GetTotal() == 0:
		return errors.New("batch.total: must be at least 1")
	case b.GetIndex() >= b.GetTotal():
		return fmt.Errorf("batch.index: %d is not below the total of %d", b.GetIndex(), b.GetTotal())
	}
	return required("batch.id", b.GetId())
}

func checkAlive(a *eventv1.Alive) error {
	err := cmp.Or(
		within("shard", checkShard(a.GetShard())),
		required("session", a.GetSession()),
		size("digest", a.GetDigest(), len(Digest{})),
		checkKinds(a.GetKinds()),
		text("identity", a.GetIdentity()),
	)
	if n := len(a.GetListed()); err == nil && n != 0 && n != Buckets/8 {
		err = fmt.Errorf("listed: has %d bytes instead of none or %d", n, Buckets/8)
	}
	return err
}

func checkOverlay(o *eventv1.Overlay) error {
	err := cmp.Or(required("id", o.GetId()), text("reason", o.GetReason()))
	kind := o.GetKind()
	_, known := eventv1.OverlayKind_name[int32(kind)]
	quarantine, rollout := kind == eventv1.OverlayKind_OVERLAY_KIND_QUARANTINE, kind == eventv1.OverlayKind_OVERLAY_KIND_ROLLOUT
	switch {
	case err != nil:
		return err
	case !known:
		return fmt.Errorf("kind: this build does not know %d", kind)
	case o.GetRemove() && (kind != 0 && !quarantine && !rollout || len(o.GetValues()) != 0 || o.GetScope() != nil || o.GetProxies() != nil || o.GetBatch() != nil):
		return errors.New("remove: values, scope, proxies and batch must be absent in a removal, and kind too, or QUARANTINE or ROLLOUT")
	case o.GetRemove() && rollout != (o.GetRollout().GetState() != 0):
		return errors.New("rollout: a removal has the state of the rollout that it removes, and kind ROLLOUT, or neither")
	case o.GetRemove():
		return nil
	case kind == 0:
		return errors.New("kind: 0 is none of ROLLBACK, HOLD, QUARANTINE, FREEZE, PIN and ROLLOUT")
	}
	if err := checkReach(o); err != nil {
		return err
	}
	type target struct {
		key      ident.Key
		rejected ident.Rejected
	}
	seen := make(map[target]bool, len(o.GetValues()))
	for i, v := range o.GetValues() {
		if err := checkOverlayValue(v, quarantine); err != nil {
			return within(fmt.Sprintf("values[%d]", i), err)
		}
		at := target{key: keyFromProto(v.GetKey())}
		if quarantine {
			at.rejected = rejectedFromProto(v.GetResource())
		}
		switch {
		case seen[at] && quarantine:
			return fmt.Errorf("values[%d].resource: %s %q occurs twice", i, at.rejected.Type, at.rejected.Name)
		case seen[at]:
			return fmt.Errorf("values[%d].key: %s occurs twice", i, at.key)
		}
		seen[at] = true
	}
	return nil
}

// checkReach checks what an overlay is about: values, a scope, or both.
func checkReach(o *eventv1.Overlay) error {
	rollback, freeze := o.GetKind() == eventv1.OverlayKind_OVERLAY_KIND_ROLLBACK, o.GetKind() == eventv1.OverlayKind_OVERLAY_KIND_FREEZE
	pin, rollout := o.GetKind() == eventv1.OverlayKind_OVERLAY_KIND_PIN, o.GetKind() == eventv1.OverlayKind_OVERLAY_KIND_ROLLOUT
	switch scope := o.GetScope(); {
	case freeze && len(o.GetValues()) != 0:
		return errors.New("values: must be empty in a FREEZE")
	case freeze && scope == nil:
		return errors.New("scope: is missing in a FREEZE")
	case pin && o.GetProxies() == nil:
		return errors.New("proxies: is missing in a PIN")
	case !pin && o.GetProxies() != nil:
		return errors.New("proxies: must be absent but in a PIN")
	case rollout && o.GetRollout() == nil:
		return errors.New("rollout: is missing in a ROLLOUT")
	case !rollout && o.GetRollout() != nil:
		return errors.New("rollout: must be absent but in a ROLLOUT")
	case scope == nil && len(o.GetValues()) == 0 && !pin && !rollout: // they keep what changes later
		return errors.New("values: is empty")
	case scope != nil && !rollback && !freeze:
		return errors.New("scope: must be absent but in a ROLLBACK or a FREEZE")
	case freeze && scope.GetShard() == nil, freeze && scope.GetConfig():
		return errors.New("scope: is not a shard alone in a FREEZE")
	case scope != nil && rollback && (!scope.GetConfig() || scope.GetShard() != nil):
		return errors.New("scope: is not configuration in a ROLLBACK")
	case freeze && scope.GetNamespace() != "":
		return errors.New("scope.namespace: must be empty in a FREEZE")
	case o.GetBatch() != nil && !rollback && !pin:
		return errors.New("batch: must be absent but in a ROLLBACK or a PIN")
	case o.GetBatch().GetTotal() > MaxBatch: // the fold keeps them until the last one comes
		return fmt.Errorf("batch.total: %d is above %d, the largest number of events in one append", o.GetBatch().GetTotal(), MaxBatch)
	}
	if freeze {
		return within("scope.shard", checkShard(o.GetScope().GetShard()))
	}
	if pin {
		return cmp.Or(within("proxies", checkProxies(o.GetProxies())), checkBatch(o.GetBatch()))
	}
	if rollout {
		return within("rollout", checkRollout(o.GetRollout(), len(o.GetValues())))
	}
	return cmp.Or(text("scope.namespace", o.GetScope().GetNamespace()), checkBatch(o.GetBatch()))
}

func checkProxies(p *eventv1.Proxies) error {
	if p.GetId() == "" && p.GetNamespace() == "" && p.GetCluster() == "" && len(p.GetLabels()) == 0 {
		return errors.New("selects no proxies")
	}
	err := cmp.Or(text("id", p.GetId()), text("namespace", p.GetNamespace()), text("cluster", p.GetCluster()))
	for name, value := range p.GetLabels() {
		err = cmp.Or(err, required("labels", name), text("labels", value))
	}
	return err
}

// checkRollout checks how far a rollout is. One that an operator has ordered has no values:
// they are those that the builder gave it.
func checkRollout(r *eventv1.Rollout, values int) error {
	switch state := r.GetState(); {
	case eventv1.RolloutState_name[int32(state)] == "" || state == 0:
		return fmt.Errorf("state: %d is none of WAITING, RUNNING and STOPPED", state)
	case state == eventv1.RolloutState_ROLLOUT_STATE_RUNNING && r.GetStep() == 0:
		return errors.New("step: is missing in a rollout that is RUNNING")
	case r.GetStep() > maxSteps:
		return fmt.Errorf("step: %d is above %d", r.GetStep(), maxSteps)
	case r.GetPercent() > 100:
		return fmt.Errorf("percent: %d is above 100", r.GetPercent())
	case r.GetOrdered() && values > 0:
		return errors.New("ordered: values must be absent in what an operator orders")
	}
	for i, p := range r.GetReached() {
		if err := checkProxies(p); err != nil {
			return within(fmt.Sprintf("reached[%d]", i), err)
		}
	}
	return nil
}

// maxSteps is the largest number of a step, far above what a policy has.
const maxSteps = 1000

func checkOverlayValue(v *eventv1.OverlayValue, quarantine bool) error {
	var err error
	switch {
	case quarantine:
		err = within("resource", checkResource(v))
	case v.GetResource() != nil:
		err = errors.New("resource: must be absent but in a QUARANTINE")
	default:
		err = within("key", checkKey(v.GetKey()))
	}
	err = cmp.Or(err, checkHash("base", v.GetBase()), checkTime("create_time", v.GetCreateTime()))
	if err == nil && v.GetPayload() != nil {
		err = required("payload.type_url", v.GetPayload().GetTypeUrl())
	}
	return err
}

func checkResource(v *eventv1.OverlayValue) error {
	r := v.GetResource()
	switch {
	case r == nil:
		return errors.New("type_url: is missing in a QUARANTINE")
	case v.GetKey() != nil || len(v.GetBase()) != 0 || v.GetCreateTime() != nil:
		return errors.New("name: key, base and create_time must be absent beside it")
	}
	return cmp.Or(
		required("type_url", r.GetTypeUrl()),
		required("name", r.GetName()),
		required("client", r.GetClient()),
		size("sum", r.GetSum(), len(ident.Rejected{}.Sum)),
		text("piece", r.GetPiece()),
		text("by", r.GetBy()),
	)
}

func checkSegment(s *eventv1.Segment) error {
	switch {
	case s.GetEpoch() == 0:
		return errors.New("epoch: is missing; epochs count from 1")
	case s.GetHeadEpoch() == 0 && s.GetHeadSeq() != 0:
		return errors.New("head_epoch: is missing beside head_seq")
	}
	return cmp.Or(required("build", s.GetBuild()), checkHash("base", s.GetBase()))
}

// checkKey does not require a namespace: some kinds have none.
func checkKey(k *eventv1.Key) error {
	return cmp.Or(
		required("source", k.GetSource()),
		required("instance", k.GetInstance()),
		required("kind", k.GetKind()),
		text("namespace", k.GetNamespace()),
		required("name", k.GetName()),
	)
}

func checkShard(s *eventv1.Shard) error {
	return cmp.Or(required("source", s.GetSource()), required("instance", s.GetInstance()))
}

// checkKinds requires the one encoding of a set: sorted, each kind once.
func checkKinds(kinds []string) error {
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

func checkTime(field string, t *timestamppb.Timestamp) error {
	if t == nil {
		return nil
	}
	if err := t.CheckValid(); err != nil {
		return fmt.Errorf("%s: %w", field, err)
	}
	if t.AsTime().IsZero() {
		return fmt.Errorf("%s: is the zero time; leave it absent", field)
	}
	return nil
}

// checkHash accepts a hash, or no bytes, which are the zero hash.
func checkHash(field string, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	return size(field, b, len(ident.Hash{}))
}

func size(field string, b []byte, want int) error {
	if len(b) != want {
		return fmt.Errorf("%s: has %d bytes instead of %d", field, len(b), want)
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

package events

import (
	"bytes"
	"encoding/hex"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	eventv1 "meshlog.dev/proto/meshlog/event/v1"
)

var update = flag.Bool("update", false, "rewrite the golden files")

var (
	exampleTime = time.Date(2026, 3, 14, 15, 9, 26, 535897932, time.UTC)
	exampleKey  = ident.Key{Source: "file", Instance: "default", Kind: "Resource", Namespace: "shop", Name: "web"}
)

// examples returns an event of every form, with all fields set, in a fixed order.
func examples() []struct {
	name  string
	event Event
} {
	envelope := func(body Body) Event {
		return Event{
			ID: "file/default/s1/7", Observed: exampleTime, Actor: "jane",
			Trace: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", Body: body,
		}
	}
	shard := exampleKey.Shard()
	var listed BucketSet
	listed.Add(0)
	listed.Add(9)
	listed.Add(1023)
	payload := ident.Value{Type: "type.googleapis.com/x.Y", Bytes: []byte{0, 1, 0xff}}
	created := func(t time.Time) ident.Value {
		v := payload
		v.Created = t
		return v
	}
	return []struct {
		name  string
		event Event
	}{
		{"put", envelope(&Object{
			Key: exampleKey, Op: Put, Value: created(exampleTime.Add(-time.Hour)),
			SourceVersion: "42", Origin: "web.yaml:3",
			Session: "s1", Pseq: 7, Low: 5, Batch: Batch{ID: "b", Index: 1, Total: 2},
		})},
		{"put-empty-payload", Event{ID: "x", Body: &Object{
			Key: exampleKey, Op: Put, Value: ident.Value{Type: "t"}, Session: "s1", Pseq: 1,
		}}},
		{"delete", envelope(&Object{Key: exampleKey, Op: Delete, Session: "s1", Pseq: 8, Low: 8})},
		{"begin", envelope(&Begin{Shard: shard, Session: "s1", Holder: "host-1", Identity: "datacenter dc1"})},
		{"alive", envelope(&Alive{Shard: shard, Session: "s1", Low: 9, Digest: Digest{1, 2, 15: 3}, Listed: listed, Partial: true, Identity: "datacenter dc1"})},
		{"alive-of-kinds", envelope(&Alive{Shard: shard, Session: "s1", Low: 1, Kinds: KindsOf("Service", "Pod", "Service"), Ends: true})},
		{"alive-nothing-listed", envelope(&Alive{Shard: shard, Session: "s1"})},
		{"rollback", envelope(&Overlay{ID: "o1", Kind: ident.Rollback, Reason: "bad canary", Values: []ident.OverlayValue{
			{Key: exampleKey, Base: ident.Hash{1, 31: 2}, Value: new(created(exampleTime))},
			{Key: ident.Key{Source: "a", Instance: "b", Kind: "c", Name: "d"}},
		}})},
		{"hold", envelope(&Overlay{ID: "o2", Kind: ident.Hold, Values: []ident.OverlayValue{{Key: exampleKey, Value: &payload}}})},
		{"quarantine", envelope(&Overlay{ID: "o3", Kind: ident.Quarantine, Reason: "no such filter", Values: []ident.OverlayValue{
			{Resource: &ident.Resource{Rejected: ident.Rejected{Type: "t", Name: "web", Sum: [16]byte{1, 15: 2}, Client: "envoy 1.38.0"}, Class: []byte("{}")}, Value: &payload},
			{Resource: &ident.Resource{Rejected: ident.Rejected{Type: "t", Name: "api", Sum: [16]byte{3}, Client: "envoy 1.38.0"}}},
		}})},
		{"quarantine-lifted", envelope(&Overlay{ID: "o3", Kind: ident.Quarantine, Remove: true})},
		{"rollback-of-all", envelope(&Overlay{ID: "o4", Kind: ident.Rollback, Reason: "503", Scope: &ident.Scope{Config: true}, Batch: Batch{ID: "b", Index: 1, Total: 2}, Values: []ident.OverlayValue{
			{Key: exampleKey},
		}})},
		{"rollback-of-nothing-yet", envelope(&Overlay{ID: "o5", Kind: ident.Rollback, Scope: &ident.Scope{Config: true, Namespace: "shop"}})},
		{"freeze", envelope(&Overlay{ID: "o6", Kind: ident.Freeze, Reason: "flaps", Scope: &ident.Scope{Shard: exampleKey.Shard()}})},
		{"overlay-removed", envelope(&Overlay{ID: "o2", Reason: "approved", Remove: true})},
		{"segment", envelope(&Segment{Epoch: 3, Build: "v1", Base: ident.Hash{9}, Head: ident.Position{Epoch: 2, Seq: 100}, VersionsSeq: 17, EpochRecord: 99})},
		{"segment-first", envelope(&Segment{Epoch: 1, Build: "v1"})},
	}
}

func TestGoldenBytes(t *testing.T) {
	const file = "testdata/events.golden"
	var got strings.Builder
	got.WriteString("# name, hex of Encode, RecordHash at " + exampleTime.Format(time.RFC3339Nano) + "\n")
	for _, x := range examples() {
		raw, err := Encode(x.event)
		if err != nil {
			t.Fatalf("%s: %v", x.name, err)
		}
		fmt.Fprintf(&got, "%s %x %s\n", x.name, raw, RecordHash(raw, exampleTime))
	}
	if *update {
		if err := os.WriteFile(file, []byte(got.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got.String()); diff != "" {
		t.Errorf("bytes on the log changed; records written before would be read otherwise.\n"+
			"Run go test . -update if that is meant (-%s +now):\n%s", file, diff)
	}
}

// TestGoldenRead decodes the bytes in the golden file, not the bytes that this
// build encodes.
func TestGoldenRead(t *testing.T) {
	b, err := os.ReadFile("testdata/events.golden")
	if err != nil {
		t.Fatal(err)
	}
	raw := map[string][]byte{}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); f[0] != "#" {
			if raw[f[0]], err = hex.DecodeString(f[1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, x := range examples() {
		got, err := Decode(raw[x.name])
		if err != nil {
			t.Errorf("%s: %v", x.name, err)
		}
		if diff := cmp.Diff(x.event, got); diff != "" {
			t.Errorf("%s: (-written +read):\n%s", x.name, diff)
		}
	}
}

func TestDecodeKeepsNothingOfRaw(t *testing.T) {
	raw, err := Encode(examples()[0].event)
	if err != nil {
		t.Fatal(err)
	}
	e, err := Decode(raw)
	if err != nil {
		t.Fatal(err)
	}
	clear(raw)
	if diff := cmp.Diff(examples()[0].event, e); diff != "" {
		t.Errorf("changed with raw:\n%s", diff)
	}
}

func TestDecodeSkipsUnknownFields(t *testing.T) {
	raw, err := Encode(examples()[0].event)
	if err != nil {
		t.Fatal(err)
	}
	raw = protowire.AppendTag(raw, 500, protowire.BytesType)
	raw = protowire.AppendString(raw, "of a newer build")
	if _, err := Decode(raw); err != nil {
		t.Error(err)
	}
}

// TestEncodeRefuses changes one field of a valid event.
func TestEncodeRefuses(t *testing.T) {
	object := func(change func(*Object)) Event {
		o := &Object{Key: exampleKey, Op: Put, Value: ident.Value{Type: "t"}, Session: "s", Pseq: 3, Low: 2}
		change(o)
		return Event{ID: "x", Body: o}
	}
	quarantine := func(change func(*Overlay)) Event {
		o := &Overlay{ID: "o", Kind: ident.Quarantine, Values: []ident.OverlayValue{{Resource: &ident.Resource{Rejected: ident.Rejected{Type: "t", Name: "web", Client: "envoy 1.38.0"}}}}}
		change(o)
		return Event{ID: "x", Body: o}
	}
	overlay := func(change func(*Overlay)) Event {
		o := &Overlay{ID: "o", Kind: ident.Hold, Values: []ident.OverlayValue{{Key: exampleKey}}}
		change(o)
		return Event{ID: "x", Body: o}
	}
	shard := exampleKey.Shard()
	tests := []struct {
		want  string // part of the error
		event Event
	}{
		{"id: is missing", Event{Body: &Begin{}}},
		{"id: begins or ends", Event{ID: "x ", Body: &Begin{}}},
		{"id: has a control character at byte 1", Event{ID: "x\ny", Body: &Begin{}}},
		{"observed_time", Event{ID: "x", Observed: time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC), Body: &Begin{}}},
		{"body: is missing", Event{ID: "x"}},
		{"object.key.source", object(func(o *Object) { o.Key.Source = "" })},
		{"object.key.instance", object(func(o *Object) { o.Key.Instance = "" })},
		{"object.key.kind", object(func(o *Object) { o.Key.Kind = "" })},
		{"object.key.name", object(func(o *Object) { o.Key.Name = "" })},
		{"object.op: 0", object(func(o *Object) { o.Op = 0 })},
		{"object.payload.type_url", object(func(o *Object) { o.Value.Type = "" })},
		{"object.payload: must be absent", object(func(o *Object) { o.Op = Delete })},
		{"object.session", object(func(o *Object) { o.Session = "" })},
		{"object.pseq", object(func(o *Object) { o.Pseq = 0 })},
		{"object.low: 4", object(func(o *Object) { o.Low = 4 })},
		{"object.create_time", object(func(o *Object) { o.Value.Created = time.Date(-1, 1, 1, 0, 0, 0, 0, time.UTC) })},
		{"object.batch.total", object(func(o *Object) { o.Batch.ID = "b" })},
		{"object.batch.index: 2", object(func(o *Object) { o.Batch = Batch{ID: "b", Index: 2, Total: 2} })},
		{"object.batch.id", object(func(o *Object) { o.Batch.Total = 1 })},
		{"object.key.name: \"\\xff\" is not UTF-8", object(func(o *Object) { o.Key.Name = "\xff" })},
		{"subject of 5018 bytes", object(func(o *Object) { o.Key.Kind = strings.Repeat("k", 5000) })},
		{"begin.shard.source", Event{ID: "x", Body: &Begin{Session: "s", Holder: "h"}}},
		{"begin.session", Event{ID: "x", Body: &Begin{Shard: shard, Holder: "h"}}},
		{"begin.holder", Event{ID: "x", Body: &Begin{Shard: shard, Session: "s"}}},
		{"alive.shard.instance", Event{ID: "x", Body: &Alive{Shard: ident.Shard{Source: "file"}, Session: "s"}}},
		{"alive.session", Event{ID: "x", Body: &Alive{Shard: shard}}},
		{"alive.kinds[1]: \"Pod\" must come after", Event{ID: "x", Body: &Alive{Shard: shard, Session: "s", Kinds: Kinds{"Service", "Pod"}}}},
		{"alive.kinds[1]: \"Pod\" must come after", Event{ID: "x", Body: &Alive{Shard: shard, Session: "s", Kinds: Kinds{"Pod", "Pod"}}}},
		{"alive.kinds[0]: is missing", Event{ID: "x", Body: &Alive{Shard: shard, Session: "s", Kinds: Kinds{""}}}},
		{"overlay.id", overlay(func(o *Overlay) { o.ID = "" })},
		{"overlay.kind", overlay(func(o *Overlay) { o.Kind = 0 })},
		{"overlay.values: is empty", overlay(func(o *Overlay) { o.Values = nil })},
		{"overlay.values[0].key.name", overlay(func(o *Overlay) { o.Values[0].Key.Name = "" })},
		{"overlay.values[0].payload.type_url", overlay(func(o *Overlay) { o.Values[0].Value = &ident.Value{} })},
		{"overlay.values[1].key: Resource shop/web (file/default) occurs twice", overlay(func(o *Overlay) { o.Values = append(o.Values, o.Values[0]) })},
		{"overlay.scope: must be absent but in a ROLLBACK or a FREEZE", overlay(func(o *Overlay) { o.Scope = &ident.Scope{Config: true} })},
		{"overlay.batch: must be absent but in a ROLLBACK", overlay(func(o *Overlay) { o.Batch = Batch{ID: "b", Total: 2} })},
		{"overlay.batch.index", overlay(func(o *Overlay) { o.Kind, o.Batch = ident.Rollback, Batch{ID: "b", Index: 2, Total: 2} })},
		{"overlay.batch.total: 501 is above 500", overlay(func(o *Overlay) { o.Kind, o.Batch = ident.Rollback, Batch{ID: "b", Total: 501} })},
		{"overlay.scope: is not configuration in a ROLLBACK", overlay(func(o *Overlay) {
			o.Kind, o.Scope = ident.Rollback, &ident.Scope{Shard: exampleKey.Shard()}
		})},
		{"overlay.values: must be empty in a FREEZE", overlay(func(o *Overlay) { o.Kind = ident.Freeze })},
		{"overlay.scope: is missing in a FREEZE", overlay(func(o *Overlay) { o.Kind, o.Values = ident.Freeze, nil })},
		{"overlay.scope: is not a shard alone in a FREEZE", overlay(func(o *Overlay) {
			o.Kind, o.Values, o.Scope = ident.Freeze, nil, &ident.Scope{Shard: exampleKey.Shard(), Config: true}
		})},
		{"overlay.scope.shard.instance: is missing", overlay(func(o *Overlay) {
			o.Kind, o.Values, o.Scope = ident.Freeze, nil, &ident.Scope{Shard: ident.Shard{Source: "file"}}
		})},
		{"overlay.remove", overlay(func(o *Overlay) { o.Remove, o.Values, o.Kind, o.Scope = true, nil, 0, &ident.Scope{Config: true} })},
		{"overlay.remove", overlay(func(o *Overlay) { o.Remove = true })},
		{"overlay.remove", overlay(func(o *Overlay) { o.Remove, o.Values = true, nil })},
		{"overlay.values[0].resource: must be absent", overlay(func(o *Overlay) { o.Values[0].Resource = &ident.Resource{} })},
		{"overlay.values[0].resource.type_url: is missing", overlay(func(o *Overlay) { o.Kind = ident.Quarantine })},
		{"overlay.values[0].resource.name: key", quarantine(func(o *Overlay) { o.Values[0].Key = exampleKey })},
		{"overlay.values[0].resource.name", quarantine(func(o *Overlay) { o.Values[0].Resource.Name = "" })},
		{"overlay.values[0].resource.client", quarantine(func(o *Overlay) { o.Values[0].Resource.Client = "" })},
		{"overlay.values[0].payload.type_url", quarantine(func(o *Overlay) { o.Values[0].Value = &ident.Value{} })},
		{`overlay.values[1].resource: t "web" occurs twice`, quarantine(func(o *Overlay) { o.Values = append(o.Values, o.Values[0]) })},
		{"segment.epoch", Event{ID: "x", Body: &Segment{Build: "b"}}},
		{"segment.build", Event{ID: "x", Body: &Segment{Epoch: 1}}},
		{"segment.head_epoch", Event{ID: "x", Body: &Segment{Epoch: 1, Build: "b", Head: ident.Position{Seq: 1}}}},
	}
	for _, test := range tests {
		if raw, err := Encode(test.event); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: Encode = %x, %v", test.want, raw, err)
		}
	}
}

// TestDecodeRefuses decodes bytes that Encode never writes.
func TestDecodeRefuses(t *testing.T) {
	tests := []struct {
		example string
		want    string
		change  func(*eventv1.Event)
	}{
		{"put", "body: is missing", func(m *eventv1.Event) { m.Body = nil }},
		{"put", "observed_time: proto", func(m *eventv1.Event) { m.ObservedTime.Nanos = -1 }},
		{"put", "object.op: 7", func(m *eventv1.Event) { m.GetObject().Op = 7 }},
		{"put", "object.payload: is missing", func(m *eventv1.Event) { m.GetObject().Payload = nil }},
		{"delete", "object.payload: must be absent", func(m *eventv1.Event) { m.GetObject().Payload = payloadToProto(ident.Value{}) }},
		{"put", "object.batch.total", func(m *eventv1.Event) { m.GetObject().Batch.Total = 0 }},
		{"put", "object.create_time: is the zero time", func(m *eventv1.Event) {
			m.GetObject().CreateTime.Seconds, m.GetObject().CreateTime.Nanos = -62135596800, 0
		}},
		{"put", "object.key.source", func(m *eventv1.Event) { m.GetObject().Key = nil }},
		{"begin", "begin.shard.source", func(m *eventv1.Event) { m.GetBegin().Shard = nil }},
		{"alive", "alive.digest: has 3 bytes", func(m *eventv1.Event) { m.GetAlive().Digest = []byte{1, 2, 3} }},
		{"alive", "alive.digest: has 17 bytes", func(m *eventv1.Event) { m.GetAlive().Digest = make([]byte, 17) }},
		{"alive", "alive.listed: has 1 bytes", func(m *eventv1.Event) { m.GetAlive().Listed = []byte{1} }},
		{"hold", "overlay.kind: this build does not know 9", func(m *eventv1.Event) { m.GetOverlay().Kind = 9 }},
		{"rollback", "overlay.values[0].base: has 1 bytes", func(m *eventv1.Event) { m.GetOverlay().Values[0].Base = []byte{1} }},
		{"quarantine", "overlay.values[0].resource.sum: has 1 bytes", func(m *eventv1.Event) { m.GetOverlay().Values[0].Resource.Sum = []byte{1} }},
		{"rollback", "overlay.values[0].create_time", func(m *eventv1.Event) { m.GetOverlay().Values[0].CreateTime.Nanos = -1 }},
		{"segment", "segment.base: has 33 bytes", func(m *eventv1.Event) { m.GetSegment().Base = make([]byte, 33) }},
	}
	byName := map[string]Event{}
	for _, x := range examples() {
		byName[x.name] = x.event
	}
	for _, test := range tests {
		m := toProto(byName[test.example])
		test.change(m)
		raw, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := Decode(raw); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%q: Decode = %v", test.want, err)
		}
	}
	if _, err := Decode([]byte("\xffno event")); err == nil {
		t.Error("Decode accepts anything")
	}
}

// FuzzDecode checks that Decode never panics, that an accepted event stays the
// same when it is encoded and decoded again, and that its encoding never changes.
func FuzzDecode(f *testing.F) {
	for _, x := range examples() {
		raw, err := Encode(x.event)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(raw)
	}
	f.Fuzz(func(t *testing.T, raw []byte) {
		e, err := Decode(raw)
		if err != nil {
			return
		}
		once, err := Encode(e)
		if err != nil {
			t.Fatalf("Decode accepted an event that Encode refuses: %v", err)
		}
		again, err := Decode(once)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(e, again); diff != "" {
			t.Fatal(diff)
		}
		twice, err := Encode(again)
		if err != nil || !bytes.Equal(once, twice) {
			t.Fatalf("one event was encoded as %x and as %x (%v)", once, twice, err)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	e := benchEvent()
	for b.Loop() {
		if _, err := Encode(e); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDecode(b *testing.B) {
	raw, err := Encode(benchEvent())
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(raw)))
	for b.Loop() {
		if _, err := Decode(raw); err != nil {
			b.Fatal(err)
		}
	}
}

// benchEvent returns an object of 1 KB.
func benchEvent() Event {
	e := examples()[0].event
	o := *e.Body.(*Object)
	o.Value.Bytes = bytes.Repeat([]byte("x"), 1024)
	e.Body = &o
	return e
}

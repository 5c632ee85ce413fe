package fold

import (
	"fmt"
	"strings"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

func (w words) overlay() *events.Overlay {
	o := &events.Overlay{ID: w.args[0], Kind: ident.Rollback, Reason: "a reason", Batch: w.batch()}
	if scope, ok := w.options["scope"]; ok {
		if o.Scope = (&ident.Scope{Config: true}); scope != "config" {
			o.Scope.Namespace = scope
		}
	}
	switch w.args[1] {
	case "hold":
		o.Kind = ident.Hold
	case "quarantine":
		resource, value, _ := strings.Cut(w.args[2], ":")
		return quarantine(o.ID, resource, value)
	}
	for _, arg := range w.args[2:] {
		word, rest, _ := strings.Cut(arg, ":")
		value, base, _ := strings.Cut(rest, "/")
		v := ident.OverlayValue{Key: testKey(w.shard, word), Base: testHash(testKey(w.shard, word), base)}
		if value != "-" {
			p := testPayload(value)
			v.Value = &p
		}
		o.Values = append(o.Values, v)
	}
	return o
}

// pin returns an overlay that keeps the proxies of a namespace on values.
func (w words) pin() *events.Overlay {
	namespace := w.args[1]
	w.args = append([]string{w.args[0], "rollback"}, w.args[2:]...)
	o := w.overlay()
	o.Kind, o.Proxies = ident.Pin, &ident.Proxies{Namespace: namespace}
	return o
}

// rollout returns an overlay that gives new values to the proxies of a namespace first.
func (w words) rollout() *events.Overlay {
	states := map[string]ident.RolloutState{"waiting": ident.RolloutWaiting, "running": ident.RolloutRunning, "stopped": ident.RolloutStopped}
	_, ordered := w.options["ordered"]
	staging := &ident.Staging{State: states[w.args[1]], Ordered: ordered}
	if _, err := fmt.Sscan(w.args[2], &staging.Step); err != nil {
		panic(err)
	}
	if namespace, ok := w.options["reached"]; ok {
		staging.Reached.Proxies = []ident.Proxies{{Namespace: namespace}}
	}
	w.args = append([]string{w.args[0], "rollback"}, w.args[3:]...)
	o := w.overlay()
	o.Kind, o.Rollout = ident.Rollout, staging
	return o
}

// quarantine returns an overlay that keeps a resource from clients. value is served
// instead; - means no value.
func quarantine(id, resource, value string) *events.Overlay {
	v := ident.OverlayValue{Resource: &ident.Resource{Rejected: ident.Rejected{Type: testType, Name: resource, Sum: [16]byte{1}, Client: "envoy 1.38.0"}, Class: []byte("{}")}}
	if value != "-" {
		p := testPayload(value)
		v.Value = &p
	}
	return &events.Overlay{ID: id, Kind: ident.Quarantine, Reason: "a reason", Values: []ident.OverlayValue{v}}
}

package problem

import (
	"cmp"

	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
)

// Severity of a Diagnostic.
type Severity uint8

// The severities, as on the wire.
const (
	Info    Severity = 1
	Warning Severity = 2
	Error   Severity = 3
)

// String is lower case.
func (s Severity) String() string {
	switch s {
	case Info:
		return "info"
	case Warning:
		return "warning"
	case Error:
		return "error"
	}
	return "unknown"
}

// Diagnostic is a problem in user data: what and where it is, what to do, and
// what happens meanwhile. It is comparable.
type Diagnostic struct {
	Severity Severity
	// Code is a stable word for programs: "invalid", "undecoded", "conflict".
	Code string
	Key  ident.Key
	// Resource is that of xDS which it is about, where it is about no object:
	// "Listener ingress".
	Resource string
	Origin   string // "file:line"
	Field    string // path of the field
	Reason   string
	Advice   string
	Effect   string // what happens meanwhile
}

// Compare orders diagnostics the same way everywhere.
func (d Diagnostic) Compare(e Diagnostic) int {
	return cmp.Or(
		cmp.Compare(e.Severity, d.Severity),
		cmp.Compare(d.Key.Row(), e.Key.Row()),
		cmp.Compare(d.Resource, e.Resource),
		cmp.Compare(d.Code, e.Code),
		cmp.Compare(d.Field, e.Field),
		cmp.Compare(d.Reason, e.Reason),
		cmp.Compare(d.Origin, e.Origin), cmp.Compare(d.Advice, e.Advice), cmp.Compare(d.Effect, e.Effect),
	)
}

// Proto is d on the wire.
func (d Diagnostic) Proto() *snapshotv1.Diagnostic {
	object := d.Resource
	if d.Key != (ident.Key{}) {
		object = d.Key.String()
	}
	return &snapshotv1.Diagnostic{
		Severity: snapshotv1.Severity(d.Severity), Code: d.Code, Object: object, Origin: d.Origin,
		Field: d.Field, Reason: d.Reason, Advice: d.Advice, Effect: d.Effect,
	}
}

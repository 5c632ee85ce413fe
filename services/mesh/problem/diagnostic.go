// Package problem holds the type for a problem in user data: which object and
// field, what is wrong, what to do, and what the system does meanwhile.
//
// It is pure.
package problem

import (
	"cmp"
	"fmt"

	"meshlog.dev/proto/ident"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
)

// Severity is how bad a problem is.
type Severity uint8

// The severities, with their numbers on the wire.
const (
	Info    Severity = 1
	Warning Severity = 2
	Error   Severity = 3
)

// String returns the severity in lower case.
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

// Unenforced is the Code of a security policy that no proxy enforces; metrics
// count it.
const Unenforced = "unenforced"

// Diagnostic is a problem in user data: what is wrong and where, what to do, and
// what the system does meanwhile. It is comparable. A *Diagnostic is also the
// error of functions that decode user data.
type Diagnostic struct {
	Severity Severity
	// Code is a stable word for programs: "invalid", "undecoded", "conflict".
	Code string
	Key  ident.Key // of the object; zero: the problem is in none
	// Resource names the xDS resource, "Listener ingress", if Key is zero.
	Resource string
	Origin   string // "file:line"
	// Line is the line of the parsed text, from 1; 0: not known. Only parsers
	// set it: the reader of the file makes it part of Origin.
	Line   int
	Field  string // path
	Reason string
	Advice string
	Effect string // what happens meanwhile
}

// Error returns the line, the field and the reason, as far as they are known.
func (d *Diagnostic) Error() string {
	s := d.Reason
	if d.Field != "" {
		s = d.Field + ": " + s
	}
	if d.Line > 0 {
		s = fmt.Sprintf("line %d: %s", d.Line, s)
	}
	return s
}

// Compare orders diagnostics: the worst first, then by object.
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

// Proto returns d in its form on the wire.
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

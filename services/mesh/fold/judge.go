package fold

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
)

// Judge says what values are worth. Its answers depend on its arguments only.
type Judge interface {
	// Judge says what is wrong with v, and whether it may be served all the
	// same. The fold fills in Key, Origin and Effect of the diagnostics.
	Judge(k ident.Key, v ident.Value) (problems []problem.Diagnostic, good bool)
	// EndpointsOnly says whether the two differ in endpoints only. nil: the
	// key has no value there.
	EndpointsOnly(k ident.Key, old, new *ident.Value) bool
}

// KindJudge judges by the table of kinds: the Judge of production.
type KindJudge struct{}

// Judge decodes and validates v as its kind says.
func (KindJudge) Judge(k ident.Key, v ident.Value) ([]problem.Diagnostic, bool) {
	kd, ok := kind.ByName(k.Kind)
	if !ok {
		return []problem.Diagnostic{{
			Severity: problem.Error, Code: "unknown-kind",
			Reason: fmt.Sprintf("this build knows no kind %q", k.Kind),
			Advice: "run a newer build, or remove the object at its source",
		}}, false
	}
	m, err := kd.Decode(v.Type, v.Bytes)
	if err != nil {
		d := problem.Diagnostic{Severity: problem.Error, Code: "undecoded", Reason: err.Error(), Advice: "correct the object at its source"}
		if said := (*kind.UndecodedError)(nil); errors.As(err, &said) {
			d.Field, d.Reason = said.Field, said.Reason
		}
		return []problem.Diagnostic{d}, false
	}
	problems := append(misplaced(kd, k), notYet(kd)...)
	good := true
	for _, p := range kd.Validate(m) {
		d := problem.Diagnostic{Severity: problem.Warning, Code: "invalid", Field: p.Field, Reason: p.Reason, Advice: p.Advice}
		switch {
		case p.NoEffect:
			d.Code = "no-effect"
		case !p.Warning:
			d.Severity, good = problem.Error, false
		}
		problems = append(problems, d)
	}
	return problems, good
}

// misplaced warns of an object that nothing will ever look at.
func misplaced(kd *kind.Kind, k ident.Key) []problem.Diagnostic {
	d := problem.Diagnostic{Severity: problem.Warning, Code: "ignored"}
	switch {
	case kd.Only != "" && k.Name != kd.Only:
		d.Field, d.Reason = "metadata.name", fmt.Sprintf("only the %s named %q counts", kd.Name, kd.Only)
		d.Advice = "rename or remove it"
	case !kd.Namespaced && k.Namespace != "":
		d.Field, d.Reason = "metadata.namespace", fmt.Sprintf("a %s has no namespace", kd.Name)
		d.Advice = "leave the namespace out"
	default:
		return nil
	}
	return []problem.Diagnostic{d}
}

// notYet warns of an object that is carried and does nothing so far.
func notYet(kd *kind.Kind) []problem.Diagnostic {
	if kd.Meaning != kind.NotYet {
		return nil
	}
	d := problem.Diagnostic{
		Severity: problem.Warning, Code: "not-yet",
		Reason: fmt.Sprintf("the %s is carried on the log and has no effect yet", kd.Name),
		Advice: "nothing is to be done; do not rely on it",
	}
	if kd.Security {
		d.Reason = fmt.Sprintf("NOT ENFORCED: the %s is carried on the log, and no proxy is told of it yet", kd.Name)
		d.Advice = "protect the workloads by other means; what it forbids is allowed"
	}
	return []problem.Diagnostic{d}
}

// EndpointsOnly asks the kind; what cannot be decoded is no endpoint.
func (KindJudge) EndpointsOnly(k ident.Key, old, new *ident.Value) bool {
	kd, ok := kind.ByName(k.Kind)
	if !ok {
		return false
	}
	var messages [2]proto.Message
	for i, v := range []*ident.Value{old, new} {
		if v == nil {
			continue
		}
		m, err := kd.Decode(v.Type, v.Bytes)
		if err != nil {
			return false
		}
		messages[i] = m
	}
	return kd.EndpointsOnly(messages[0], messages[1])
}

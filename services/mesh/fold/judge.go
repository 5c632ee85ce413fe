package fold

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
)

// Judge decides which values are served. Its answers depend on its arguments
// only.
type Judge interface {
	// Judge decodes v and returns its problems and whether it may be served.
	// A nil message means that World.Apply decodes v. The fold sets Key, Origin
	// and Effect of the problems.
	Judge(k ident.Key, v ident.Value) (m proto.Message, problems []problem.Diagnostic, good bool)
	// Closed returns the value that is served in place of v, which is not good, if no
	// value of k ever was; ok is false if nothing is.
	Closed(k ident.Key, v ident.Value) (closed ident.Value, ok bool)
	// EndpointsOnly reports whether two values of a key differ in endpoints
	// only; nil: the key has no value. The objects may lack their Message.
	EndpointsOnly(k ident.Key, old, new *world.Object) bool
	// Configures reports whether objects of a kind are configuration, which operators
	// may roll back.
	Configures(kind string) bool
	// Stages reports whether some proxies may have objects of a kind that differ from
	// those of all others, as those of a pin.
	Stages(kind string) bool
}

// KindJudge judges by the table of kinds: the Judge of production.
type KindJudge struct {
	// Trial returns the errors of a valid object that only generation finds:
	// trial.Problems, in production. nil: there is no trial.
	Trial func(proto.Message) []problem.Diagnostic
}

// Judge decodes and validates v by the rules of its kind, and tries it.
func (j KindJudge) Judge(k ident.Key, v ident.Value) (proto.Message, []problem.Diagnostic, bool) {
	kd, ok := kind.ByName(k.Kind)
	if !ok {
		return nil, []problem.Diagnostic{{
			Severity: problem.Error, Code: "unknown-kind",
			Reason: fmt.Sprintf("this build knows no kind %q", k.Kind),
			Advice: "run a newer build, or remove the object at its source",
		}}, false
	}
	m, err := kd.Decode(v.Type, v.Bytes)
	if err != nil {
		var undecoded *problem.Diagnostic
		errors.As(err, &undecoded) // as Decode promises
		return nil, []problem.Diagnostic{*undecoded}, false
	}
	problems := append(misplaced(kd, k), notYet(kd)...)
	good := true
	for _, d := range kd.Validate(k.Namespace, m) {
		good = good && d.Severity != problem.Error
		problems = append(problems, d)
	}
	if d := hostless(k, m); d != nil {
		good, problems = false, append(problems, *d)
	}
	if good && j.Trial != nil {
		found := j.Trial(m)
		good, problems = len(found) == 0, append(found, problems...)
	}
	return m, problems, good
}

// hostless returns the problem of a registry's Service that names no host: only a
// Service of Kubernetes has the host that follows from its name (AGG-1).
func hostless(k ident.Key, m proto.Message) *problem.Diagnostic {
	s, ok := m.(*registryv1.Service)
	if !ok || world.OfKubernetes(k) || s.GetHostname() != "" {
		return nil
	}
	return &problem.Diagnostic{
		Severity: problem.Error, Code: "invalid", Field: "hostname",
		Reason: fmt.Sprintf("is missing, and the host that would follow from the name is that of a Service of Kubernetes: %s may not have it", k.Shard()),
		Advice: "make the watcher of the source name the host",
	}
}

// Closed asks the kind.
func (KindJudge) Closed(k ident.Key, v ident.Value) (ident.Value, bool) {
	kd, ok := kind.ByName(k.Kind)
	if !ok {
		return ident.Value{}, false
	}
	return kd.Closed(v)
}

// misplaced warns of an object that meshlog ignores for its name or namespace.
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

// notYet warns of an object that has no effect in this build.
func notYet(kd *kind.Kind) []problem.Diagnostic {
	if kd.Meaning != kind.NotYet {
		return nil
	}
	return []problem.Diagnostic{{
		Severity: problem.Warning, Code: "not-yet",
		Reason: fmt.Sprintf("the %s is carried on the log and has no effect yet", kd.Name),
		Advice: "nothing is to be done; do not rely on it",
	}}
}

// Configures asks the kind; false for a kind that this build does not know.
func (KindJudge) Configures(name string) bool {
	kd, ok := kind.ByName(name)
	return ok && !kd.State
}

// Stages asks the kind; false for a kind that this build does not know.
func (KindJudge) Stages(name string) bool {
	kd, ok := kind.ByName(name)
	return ok && kd.Staged()
}

// EndpointsOnly asks the kind; false if a value cannot be decoded.
func (KindJudge) EndpointsOnly(k ident.Key, old, new *world.Object) bool {
	kd, ok := kind.ByName(k.Kind)
	if !ok {
		return false
	}
	var messages [2]proto.Message
	for i, o := range []*world.Object{old, new} {
		if o == nil {
			continue
		}
		if messages[i] = o.Message; o.Message != nil {
			continue
		}
		m, err := kd.Decode(o.Value.Type, o.Value.Bytes)
		if err != nil {
			return false
		}
		messages[i] = m
	}
	return kd.EndpointsOnly(messages[0], messages[1])
}

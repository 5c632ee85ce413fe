package validate

import (
	"google.golang.org/protobuf/proto"
	telemetry "istio.io/api/telemetry/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"meshlog.dev/services/mesh/problem"
)

// Telemetry checks a Telemetry (TL-1, TL-3, TL-5).
func Telemetry(m proto.Message) []problem.Diagnostic {
	t := m.(*telemetry.Telemetry)
	c := checker{kind: "Telemetry"}
	c.selection(t.GetSelector(), t.GetTargetRef(), t.GetTargetRefs())
	if one := t.GetTargetRef(); one != nil {
		c.observed(root.field("targetRef.kind"), one)
	}
	for i, one := range t.GetTargetRefs() {
		c.observed(root.field("targetRefs").item(i).field("kind"), one)
	}
	for i, entry := range t.GetTracing() {
		c.tracing(root.field("tracing").item(i), entry)
	}
	c.noEffect(len(t.GetMetrics()) > 0, root.field("metrics"))
	for i, l := range t.GetAccessLogging() {
		at := root.field("accessLogging").item(i)
		c.mode(at, l.GetMatch().GetMode())
		for j, p := range l.GetProviders() {
			c.errorIf(p.GetName() == "", at.field("providers").item(j).field("name"), "name one of MeshConfig.extensionProviders", isMissing)
		}
		if f := l.GetFilter(); f != nil {
			c.expression(at.field("filter.expression"), f.GetExpression())
		}
	}
	return c.result()
}

// observed warns of a target that selects no proxy: those of waypoints, and of the classes
// of Gateway API.
func (c *checker) observed(at *fieldPath, t *typev1beta1.PolicyTargetReference) {
	if _, known := targetKinds[t.GetKind()]; known && t.GetKind() != "Gateway" {
		c.noEffect(true, at, t.GetKind())
	}
}

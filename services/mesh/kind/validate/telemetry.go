package validate

import (
	"google.golang.org/protobuf/proto"
	telemetry "istio.io/api/telemetry/v1alpha1"
	typev1beta1 "istio.io/api/type/v1beta1"

	"meshlog.dev/services/mesh/problem"
)

// Telemetry checks a Telemetry (TL-1, TL-5).
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
	c.noEffect(len(t.GetTracing()) > 0, root.field("tracing"))
	c.noEffect(len(t.GetMetrics()) > 0, root.field("metrics"))
	for i, l := range t.GetAccessLogging() {
		at := root.field("accessLogging").item(i)
		mode := l.GetMatch().GetMode()
		if _, known := telemetry.WorkloadMode_name[int32(mode)]; !known {
			c.errorf(at.field("match.mode"), "use CLIENT, SERVER or CLIENT_AND_SERVER", "%d is not a mode", mode)
		}
		for j, p := range l.GetProviders() {
			c.errorIf(p.GetName() == "", at.field("providers").item(j).field("name"), "name one of MeshConfig.extensionProviders", isMissing)
		}
		c.noEffect(l.GetFilter() != nil, at.field("filter"))
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

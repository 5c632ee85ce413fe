// Package tracing makes the tracing of connection managers from Telemetries and MeshConfig
// (TL-3, TL-4).
//
// It is pure.
package tracing

import (
	"cmp"
	"maps"
	"slices"

	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	uuidv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/request_id/uuid/v3"
	tracingv3 "github.com/envoyproxy/go-control-plane/envoy/type/tracing/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind/validate"
	"meshlog.dev/services/mesh/xds/accesslog"
	"meshlog.dev/services/mesh/xds/callee"
	"meshlog.dev/services/mesh/xds/piece"
)

// defaultSampling is how many percent of requests are traced if nothing says otherwise: the
// default of Istio's PILOT_TRACE_SAMPLING.
const defaultSampling = 1

// Proxies says whose requests are traced.
type Proxies struct {
	Selected index.SelectorSet // LDSClass.Telemetry
	Server   bool              // requests to the workload
	From     callee.Caller
	Name     string // LDSClass.ServiceName
}

// Of returns the fields of a connection manager that trace its requests; nil: they are not
// traced. Telemetries decide, from the widest on, and then defaultProviders.tracing of
// MeshConfig. If neither says anything, enableTracing of MeshConfig does, as in Istio
// (Telemetries.Tracing in pilot/pkg/model/telemetry.go).
func Of(r *index.Reader, of Proxies) *hcmv3.HttpConnectionManager {
	mesh := r.Mesh()
	s, said := merge(mesh, levelsOf(r, of.Selected), of.Server)
	if !said {
		if !mesh.GetEnableTracing() {
			return nil
		}
		s.provider = legacy(mesh)
	}
	if s.disabled || s.provider == nil {
		return nil
	}
	m, reason, _ := tracerOf(r, s.provider, of)
	if reason != "" {
		return nil
	}
	config := mesh.GetDefaultConfig().GetTracing()
	m.ClientSampling, m.OverallSampling = &typev3.Percent{Value: 100}, &typev3.Percent{Value: 100}
	m.RandomSampling = &typev3.Percent{Value: s.percentage(config)}
	m.CustomTags = s.tags(config)
	if m.GetMaxPathTagLength() == nil && config.GetMaxPathTagLength() > 0 {
		m.MaxPathTagLength = wrapperspb.UInt32(config.GetMaxPathTagLength())
	}
	out := &hcmv3.HttpConnectionManager{Tracing: m}
	if s.independent {
		out.RequestIdExtension = &hcmv3.RequestIDExtension{
			TypedConfig: piece.Any(&uuidv3.UuidRequestIdConfig{UseRequestIdForTraceSampling: wrapperspb.Bool(false)}),
		}
	}
	return out
}

// spec is what Telemetries say about the requests of proxies.
type spec struct {
	provider    *provider
	disabled    bool
	sampling    *float64
	customTags  map[string]*telemetry.Tracing_CustomTag
	independent bool // the id of a request does not decide whether it is traced
}

// levelsOf returns the Telemetries that say something about traces, the widest first.
func levelsOf(r *index.Reader, selected index.SelectorSet) []*telemetry.Telemetry {
	var levels []*telemetry.Telemetry
	for _, o := range r.Telemetry(selected) {
		if t, ok := o.Message.(*telemetry.Telemetry); ok && len(t.GetTracing()) > 0 {
			levels = append(levels, t)
		}
	}
	return levels
}

// merge merges the levels, the widest first, and defaultProviders.tracing. said is false if
// there is none of them.
func merge(mesh *meshconfig.MeshConfig, levels []*telemetry.Telemetry, server bool) (s spec, said bool) {
	if names := mesh.GetDefaultProviders().GetTracing(); len(names) > 0 {
		said, s.provider = true, validate.Provider(mesh, names[0])
	}
	for _, t := range levels {
		said = true
		for _, entry := range t.GetTracing() {
			if accesslog.InMode(entry.GetMatch().GetMode(), server) {
				s.take(mesh, entry)
			}
		}
	}
	return s, said
}

// take lets an entry replace what the entries before it say.
func (s *spec) take(mesh *meshconfig.MeshConfig, entry *telemetry.Tracing) {
	if len(entry.GetProviders()) > 0 { // Envoy reports to one
		s.provider = validate.Provider(mesh, entry.GetProviders()[0].GetName())
	}
	if v := entry.GetDisableSpanReporting(); v != nil {
		s.disabled = v.GetValue()
	}
	if entry.GetCustomTags() != nil {
		s.customTags = entry.GetCustomTags()
	}
	if v := entry.GetRandomSamplingPercentage(); v != nil {
		percentage := v.GetValue()
		s.sampling = &percentage
	}
	if v := entry.GetUseRequestIdForTraceSampling(); v != nil {
		s.independent = !v.GetValue()
	}
}

// percentage returns how many percent of requests without a decision of their caller are
// traced (TL-4).
func (s *spec) percentage(config *meshconfig.Tracing) float64 {
	if s.sampling != nil {
		return *s.sampling
	}
	return cmp.Or(config.GetSampling(), defaultSampling)
}

// tags returns the tags of Telemetries, or else those of MeshConfig, by name.
func (s *spec) tags(config *meshconfig.Tracing) []*tracingv3.CustomTag {
	var all []*tracingv3.CustomTag
	add := func(tag *tracingv3.CustomTag) {
		if tag.GetType() != nil {
			all = append(all, tag)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.customTags)) {
		tag := s.customTags[name]
		out := &tracingv3.CustomTag{Tag: name}
		switch {
		case tag.GetLiteral() != nil:
			out.Type = literal(tag.GetLiteral().GetValue())
		case tag.GetEnvironment() != nil:
			out.Type = environment(tag.GetEnvironment())
		case tag.GetHeader() != nil:
			out.Type = header(tag.GetHeader())
		}
		add(out)
	}
	if len(s.customTags) > 0 {
		return all
	}
	for _, name := range slices.Sorted(maps.Keys(config.GetCustomTags())) {
		tag := config.GetCustomTags()[name]
		out := &tracingv3.CustomTag{Tag: name}
		switch {
		case tag.GetLiteral() != nil:
			out.Type = literal(tag.GetLiteral().GetValue())
		case tag.GetEnvironment() != nil:
			out.Type = environment(tag.GetEnvironment())
		case tag.GetHeader() != nil:
			out.Type = header(tag.GetHeader())
		}
		add(out)
	}
	return all
}

// named is what the tags of environments and headers have in Telemetry and MeshConfig.
type named interface {
	GetName() string
	GetDefaultValue() string
}

func literal(value string) *tracingv3.CustomTag_Literal_ {
	return &tracingv3.CustomTag_Literal_{Literal: &tracingv3.CustomTag_Literal{Value: value}}
}

func environment(n named) *tracingv3.CustomTag_Environment_ {
	return &tracingv3.CustomTag_Environment_{Environment: &tracingv3.CustomTag_Environment{Name: n.GetName(), DefaultValue: n.GetDefaultValue()}}
}

func header(n named) *tracingv3.CustomTag_RequestHeader {
	return &tracingv3.CustomTag_RequestHeader{RequestHeader: &tracingv3.CustomTag_Header{Name: n.GetName(), DefaultValue: n.GetDefaultValue()}}
}

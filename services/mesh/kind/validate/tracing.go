package validate

import (
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
	meshconfig "istio.io/api/mesh/v1alpha1"
	telemetry "istio.io/api/telemetry/v1alpha1"
)

// mode checks for which calls an entry of a Telemetry is.
func (c *checker) mode(at *fieldPath, mode telemetry.WorkloadMode) {
	if _, known := telemetry.WorkloadMode_name[int32(mode)]; !known {
		c.errorf(at.field("match.mode"), "use CLIENT, SERVER or CLIENT_AND_SERVER", "%d is not a mode", mode)
	}
}

// tracing checks what a Telemetry says about traces (TL-3).
func (c *checker) tracing(at *fieldPath, t *telemetry.Tracing) {
	c.mode(at, t.GetMatch().GetMode())
	for i, p := range t.GetProviders() {
		at := at.field("providers").item(i)
		c.errorIf(p.GetName() == "", at.field("name"), "name one of MeshConfig.extensionProviders", isMissing)
		if i > 0 {
			c.warnf(at, "name one provider", "Envoy reports a request to one provider, so only the first counts")
		}
	}
	if p := t.GetRandomSamplingPercentage(); p != nil {
		c.percent(at.field("randomSamplingPercentage"), p.GetValue())
	}
	c.noEffect(t.GetEnableIstioTags() != nil, at.field("enableIstioTags"))
	c.noEffect(t.GetDisableContextPropagation() != nil, at.field("disableContextPropagation"))
	for _, name := range slices.Sorted(maps.Keys(t.GetCustomTags())) {
		tag, at := t.GetCustomTags()[name], at.field("customTags").entry(name)
		c.errorIf(name == "", at, "name the tag", isMissing)
		switch {
		case tag.GetLiteral() != nil:
			c.tagText(at.field("literal.value"), tag.GetLiteral().GetValue())
		case tag.GetEnvironment() != nil:
			c.tagText(at.field("environment.name"), tag.GetEnvironment().GetName())
		case tag.GetHeader() != nil:
			c.header(at.field("header.name"), tag.GetHeader().GetName())
		case tag.GetType() == nil:
			c.errorf(at, "add literal, environment or header", "has no value")
		}
		c.noEffect(tag.GetFormatter() != nil, at.field("formatter"))
	}
}

// tagText checks the value of a tag of spans, or where it comes from.
func (c *checker) tagText(at *fieldPath, s string) {
	c.errorIf(s == "", at, "write a text", isMissing)
	c.oneLine(at, s)
}

// traceProvider checks a provider of traces (TL-3).
func (c *checker) traceProvider(at *fieldPath, p *extensionProvider) {
	if z := p.GetZipkin(); z != nil {
		at := at.field("zipkin")
		c.called(at, z)
		c.urlPath(at.field("path"), z.GetPath())
		c.reportTimeout(at.field("timeout"), z.GetTimeout())
		c.sentHeaders(at.field("headers"), z.GetHeaders())
	}
	if d := p.GetDatadog(); d != nil {
		c.called(at.field("datadog"), d)
	}
	if s := p.GetSkywalking(); s != nil {
		c.called(at.field("skywalking"), s)
		c.oneLine(at.field("skywalking.accessToken"), s.GetAccessToken())
	}
	if o := p.GetOpentelemetry(); o != nil {
		c.openTelemetry(at.field("opentelemetry"), o)
	}
}

func (c *checker) openTelemetry(at *fieldPath, o *meshconfig.MeshConfig_ExtensionProvider_OpenTelemetryTracingProvider) {
	c.called(at, o)
	if h, at := o.GetHttp(), at.field("http"); h != nil {
		c.errorIf(h.GetPath() == "", at.field("path"), "write the path of the collector, such as /v1/traces", isMissing)
		c.urlPath(at.field("path"), h.GetPath())
		c.reportTimeout(at.field("timeout"), h.GetTimeout())
		c.sentHeaders(at.field("headers"), h.GetHeaders())
		c.errorIf(o.GetGrpc() != nil, at, "keep one of them", "does not go with grpc")
	}
	c.atLeast(at.field("grpc.timeout"), o.GetGrpc().GetTimeout(), time.Millisecond)
	c.sentHeaders(at.field("grpc.initialMetadata"), o.GetGrpc().GetInitialMetadata())
	c.noEffect(o.GetDynatraceSampler() != nil, at.field("dynatraceSampler"))
	if e := o.GetServiceAttributeEnrichment(); e != meshconfig.MeshConfig_ExtensionProvider_ISTIO_CANONICAL {
		c.noEffect(true, at.field("serviceAttributeEnrichment"), e.String())
	}
}

// tooLongReport is the first timeout of a call by HTTP that Envoy's API refuses.
const tooLongReport = 1 << 32 * time.Second

// reportTimeout checks how long a report by HTTP may take.
func (c *checker) reportTimeout(at *fieldPath, d *durationpb.Duration) {
	c.atLeast(at, d, time.Millisecond)
	c.errorIf(d.AsDuration() >= tooLongReport, at, "use 136 years or less", "is more than Envoy takes")
}

// urlPath checks a path on a collector.
func (c *checker) urlPath(at *fieldPath, path string) {
	notGraphic := func(r rune) bool { return r <= ' ' || r > '~' }
	c.errorIf(strings.ContainsFunc(path, notGraphic), at, "encode it as in a URL", "%q has characters that no path has", path)
}

// sentHeaders checks headers with which a provider is called.
func (c *checker) sentHeaders(at *fieldPath, headers []*meshconfig.MeshConfig_ExtensionProvider_HttpHeader) {
	for i, h := range headers {
		at := at.item(i)
		c.header(at.field("name"), h.GetName())
		c.oneLine(at.field("value"), h.GetValue())
		c.noEffect(h.GetEnvName() != "", at.field("envName"))
	}
}

// meshTracing checks the traces of all proxies (TL-4).
func (c *checker) meshTracing(m *meshconfig.MeshConfig) {
	config, at := m.GetDefaultConfig().GetTracing(), root.field("defaultConfig.tracing")
	c.percent(at.field("sampling"), config.GetSampling())
	for _, name := range slices.Sorted(maps.Keys(config.GetCustomTags())) {
		tag := config.GetCustomTags()[name]
		at := at.field("customTags").entry(name)
		c.errorIf(name == "", at, "name the tag", isMissing)
		switch {
		case tag.GetLiteral() != nil:
			c.tagText(at.field("literal.value"), tag.GetLiteral().GetValue())
		case tag.GetEnvironment() != nil:
			c.tagText(at.field("environment.name"), tag.GetEnvironment().GetName())
		case tag.GetHeader() != nil:
			c.header(at.field("header.name"), tag.GetHeader().GetName())
		default:
			c.errorf(at, "add literal, environment or header", "has no value")
		}
	}
	for i, name := range m.GetDefaultProviders().GetTracing() {
		at := root.field("defaultProviders.tracing").item(i)
		switch {
		case i > 0:
			c.warnf(at, "name one provider", "Envoy reports a request to one provider, so only the first counts")
		case Provider(m, name) == nil:
			c.warnf(at, "name one of extensionProviders", "extensionProviders has no provider %s", name)
		}
	}
}

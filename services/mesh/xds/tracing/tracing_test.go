package tracing_test

import (
	"strings"
	"testing"

	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/xds/callee"
	"meshlog.dev/services/mesh/xds/tracing"
)

const mesh = `
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: traces, namespace: traces}
spec:
  hosts: [traces.example]
  resolution: STATIC
  ports: [{number: 4317, name: grpc, protocol: GRPC}, {number: 80, name: http, protocol: HTTP}]
---
apiVersion: mesh.istio.io/v1alpha1
kind: MeshConfig
metadata: {name: default}
spec: SPEC
---
apiVersion: telemetry.istio.io/v1
kind: Telemetry
metadata: {name: mesh, namespace: istio-system}
spec: {tracing: TRACING}
`

func read(t *testing.T, spec, entries string) *index.Reader {
	t.Helper()
	return meshtest.PushContext(t, meshtest.YAML(t, strings.NewReplacer("SPEC", spec, "TRACING", entries).Replace(mesh))...).Read()
}

// TL-4: which share of requests is traced. Each setting counts before those above it.
func TestSampling(t *testing.T) {
	const otlp = `extensionProviders: [{name: p, opentelemetry: {service: traces.example, port: 4317}}], defaultProviders: {tracing: [P]}`
	for _, test := range []struct {
		name, spec, entries string
		want                float64
	}{
		{"the default", "{" + otlp + "}", `[]`, 1},
		{"MeshConfig", "{" + otlp + ", defaultConfig: {tracing: {sampling: 20}}}", `[]`, 20},
		{"a Telemetry", "{" + otlp + ", defaultConfig: {tracing: {sampling: 20}}}", `[{randomSamplingPercentage: 30}]`, 30},
		{"none", "{" + otlp + ", defaultConfig: {tracing: {sampling: 20}}}", `[{randomSamplingPercentage: 0}]`, 0},
		{"the last entry", "{" + otlp + "}", `[{randomSamplingPercentage: 30}, {randomSamplingPercentage: 40}, {match: {mode: CLIENT}, randomSamplingPercentage: 50}]`, 40},
		{"enableTracing", `{enableTracing: true, defaultConfig: {tracing: {sampling: 25, datadog: {address: "traces.example:80"}}}}`, `[]`, 25},
	} {
		t.Run(test.name, func(t *testing.T) {
			m := tracing.Of(read(t, test.spec, test.entries), tracing.Proxies{Server: true, Name: "web"}).GetTracing()
			if m == nil || m.GetRandomSampling().GetValue() != test.want || m.GetClientSampling().GetValue() != 100 || m.GetOverallSampling().GetValue() != 100 {
				t.Errorf("%v, want random sampling %v", m, test.want)
			}
			if err := m.ValidateAll(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TL-3: what a Telemetry or MeshConfig says in vain is reported, and nothing is traced.
func TestProblems(t *testing.T) {
	for _, test := range []struct{ name, spec, entries, want string }{
		{"no such provider", `{}`, `[{providers: [{name: none}]}]`, "spec.tracing[0].providers[0].name: extensionProviders has no provider none"},
		{"no provider at all", `{}`, `[{randomSamplingPercentage: 1}]`, "spec.tracing[0].providers: it names no provider"},
		{
			"a provider of access logs", `{extensionProviders: [{name: p, envoyFileAccessLog: {}}]}`, `[{providers: [{name: p}]}]`,
			`spec.tracing[0].providers[0].name: proxies cannot report to the provider "p": the provider p of extensionProviders reports no traces`,
		},
		{
			"a port that is not HTTP/2", `{extensionProviders: [{name: p, skywalking: {service: traces.example, port: 80}}]}`, `[{providers: [{name: p}]}]`,
			`spec.tracing[0].providers[0].name: proxies cannot report to the provider "p": port 80 of the service traces/traces.example is not known as HTTP/2`,
		},
		{
			"the default provider", `{extensionProviders: [{name: p, zipkin: {service: away.example, port: 80}}], defaultProviders: {tracing: [p]}}`, `[]`,
			`spec.defaultProviders.tracing[0]: proxies cannot report to the provider "p": there is no service away.example`,
		},
		{"enableTracing without a tracer", `{enableTracing: true}`, `[]`, "spec.enableTracing: no provider of traces is named"},
		{
			"enableTracing with an address of none", `{enableTracing: true, defaultConfig: {tracing: {zipkin: {address: zipkin}}}}`, `[]`,
			`spec.defaultConfig.tracing: "zipkin" is no host and port`,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			r := read(t, test.spec, test.entries)
			if m := tracing.Of(r, tracing.Proxies{Server: true}); m != nil {
				t.Errorf("traced: %v", m)
			}
			if !tracing.Named(r, "") {
				t.Error("Named reports no tracer")
			}
			_, ds := tracing.Problems{From: callee.Caller{}}.Make(r)
			if len(ds) != 1 || !strings.HasPrefix(ds[0].Field+": "+ds[0].Reason, test.want) || ds[0].Advice == "" || ds[0].Effect == "" || ds[0].Key.Name == "" {
				t.Errorf("%+v, want %s", ds, test.want)
			}
		})
	}
}

// TL-3: Telemetries that replace what others say.
func TestTracedRequests(t *testing.T) {
	const spec = `{extensionProviders: [{name: p, zipkin: {service: traces.example, port: 80, maxTagLength: 7}}], defaultProviders: {tracing: [p]}, defaultConfig: {tracing: {maxPathTagLength: 9, customTags: {a: {literal: {value: b}}}}}}`
	r := read(t, spec, `[{match: {mode: CLIENT}, disableSpanReporting: true}, {match: {mode: SERVER}, useRequestIdForTraceSampling: false}]`)
	if m := tracing.Of(r, tracing.Proxies{}); m != nil {
		t.Errorf("calls of the workload are traced: %v", m)
	}
	m := tracing.Of(r, tracing.Proxies{Server: true})
	if m.GetRequestIdExtension() == nil || m.GetTracing().GetMaxPathTagLength().GetValue() != 7 || len(m.GetTracing().GetCustomTags()) != 1 {
		t.Errorf("%v", m)
	}
	r = read(t, strings.Replace(spec, ", maxTagLength: 7", "", 1), `[{customTags: {x: {header: {name: x-a}}, y: {environment: {name: Y}}}}]`)
	m = tracing.Of(r, tracing.Proxies{Server: true})
	if m.GetRequestIdExtension() != nil || m.GetTracing().GetMaxPathTagLength().GetValue() != 9 || len(m.GetTracing().GetCustomTags()) != 2 {
		t.Errorf("%v", m)
	}
}

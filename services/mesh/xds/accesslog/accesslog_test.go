package accesslog_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"

	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/xds/accesslog"
	"meshlog.dev/services/mesh/xds/callee"
)

// MC-12, TL-5: what the access log of a mesh is made of. Each field changes it.
func TestOfMesh(t *testing.T) {
	for _, test := range []struct {
		name, spec string
		want, not  []string // parts of the log
	}{
		{"the default is none", `{}`, nil, nil},
		{"Istio's text", `{accessLogFile: /log}`, []string{`"path":"/log"`, `[%START_TIME%]`, `%ROUTE_NAME%\n`}, nil},
		{"a format gets a line break", `{accessLogFile: /log, accessLogFormat: "%PROTOCOL%"}`, []string{`"inlineString":"%PROTOCOL%\n"`}, nil},
		{"Istio's JSON", `{accessLogFile: /log, accessLogEncoding: JSON}`, []string{`"jsonFormat":{`, `"request_id":"%REQ(X-REQUEST-ID)%"`}, nil},
		{
			"fields", `{accessLogFile: /log, accessLogEncoding: JSON, accessLogFormat: '{"a": {"b": "%PROTOCOL%"}}'}`,
			[]string{`"jsonFormat":{"a":{"b":"%PROTOCOL%"}}`}, []string{"request_id"},
		},
		{"the built-in provider", `{accessLogFile: /log, defaultProviders: {accessLogging: [envoy]}}`, []string{`"path":"/dev/stdout"`, `[%START_TIME%]`}, []string{`"/log"`}},
		{
			"a provider", `{defaultProviders: {accessLogging: [p]}, extensionProviders: [{name: p, envoyFileAccessLog: {path: /p, omitEmptyValues: true, logFormat: {labels: {}}}}]}`,
			[]string{`"path":"/p"`, `"omitEmptyValues":true`, `"request_id"`}, nil,
		},
		{
			"a provider of the built-in name", `{defaultProviders: {accessLogging: [envoy]}, extensionProviders: [{name: envoy, envoyFileAccessLog: {path: /p, logFormat: {text: x}}}]}`,
			[]string{`"path":"/p"`, `"inlineString":"x\n"`}, []string{"omitEmptyValues"},
		},
		{"a provider that the mesh lacks", `{accessLogFile: /log, defaultProviders: {accessLogging: [none]}}`, []string{`"path":"/log"`}, nil},
		{"only a provider that the mesh lacks", `{defaultProviders: {accessLogging: [none]}}`, nil, nil},
		{
			"the built-in provider in the format of the mesh", `{accessLogFormat: "%PROTOCOL%", defaultProviders: {accessLogging: [Envoy]}, extensionProviders: [{name: envoy, envoyFileAccessLog: {path: /p}}]}`,
			[]string{`"path":"/p"`, `"inlineString":"%PROTOCOL%\n"`}, nil,
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			pc := meshtest.PushContext(t, meshtest.YAML(t, "apiVersion: mesh.istio.io/v1alpha1\nkind: MeshConfig\nmetadata: {name: default}\nspec: "+test.spec+"\n")...)
			logs := accesslog.Of(pc.Read(), "", false, callee.Caller{})
			if len(logs) != min(len(test.want), 1) {
				t.Fatalf("%d logs: %v", len(logs), logs)
			}
			if len(logs) == 0 {
				return
			}
			if err := logs[0].ValidateAll(); err != nil {
				t.Error(err)
			}
			b, err := protojson.Marshal(logs[0])
			if err != nil {
				t.Fatal(err)
			}
			text := strings.ReplaceAll(string(b), " ", "")
			for _, s := range test.want {
				if !strings.Contains(text, strings.ReplaceAll(s, " ", "")) {
					t.Errorf("no %s in %s", s, b)
				}
			}
			for _, s := range test.not {
				if strings.Contains(text, s) {
					t.Errorf("%s in %s", s, b)
				}
			}
		})
	}
}

package kind_test

import (
	"errors"
	"testing"

	"google.golang.org/protobuf/proto"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/problem"
)

// The error about an unknown field names the field that was probably meant, as the users of
// the kind write it, wherever the field is; so does the object on the log.
func TestMisspelt(t *testing.T) {
	for _, c := range []struct{ kind, spec, want string }{
		{"VirtualService", `{"hosts": ["a"], "http": [{}, {"route": [{"destination": {"host": "a", "subsett": "v1"}}]}]}`, `unknown field "subsett"; did you mean subset?`},
		{"VirtualService", `{"https": [{}]}`, `unknown field "https"; did you mean http?`},
		{"VirtualService", `{"http": [{"match": [{"headers": {"x": {"exakt": "a"}}}]}]}`, `unknown field "exakt"; did you mean exact?`},
		{"DestinationRule", `{"trafficPolicy": {"outlier_detecton": {}}}`, `unknown field "outlier_detecton"; did you mean outlierDetection?`},
		{"Resource", `{"resource": {"@type": "type.googleapis.com/envoy.config.listener.v3.Listener", "filter_chain": []}}`, `unknown field "filter_chain"; did you mean filter_chains?`},
		{"VirtualService", `{"color": "red"}`, `unknown field "color"`},
	} {
		_, err := mustKind(t, c.kind).DecodeJSON([]byte(c.spec))
		bad, ok := errors.AsType[*problem.Diagnostic](err)
		if !ok {
			t.Fatalf("%s: %v", c.spec, err)
		}
		var u registryv1.Undecoded
		if err := proto.Unmarshal(kind.Undecoded(nil, "", bad).Bytes, &u); err != nil || u.GetError() != c.want {
			t.Errorf("%s: %s, want %s", c.spec, u.GetError(), c.want)
		}
	}
}

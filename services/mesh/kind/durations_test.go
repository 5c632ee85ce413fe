package kind_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	networking "istio.io/api/networking/v1alpha3"
)

// TestDurations checks that DecodeJSON reads durations as users of Istio write
// them, in any field, and that line numbers in errors stay correct.
func TestDurations(t *testing.T) {
	for _, c := range []struct{ name, kind, json, want string }{
		{"forms", "VirtualService", `{"http": [{"timeout": "1m30s"}, {"timeout": "250ms"}, {"timeout": "0s"}, {"timeout": "2.5s"}, {"retries": {"per_try_timeout": "-1h"}}]}`,
			`{"http": [{"timeout": "90s"}, {"timeout": "0.250s"}, {"timeout": "0s"}, {"timeout": "2.5s"}, {"retries": {"perTryTimeout": "-3600s"}}]}`},
		{"text that looks like a duration", "VirtualService", `{"hosts": ["1m"], "http": [{"name": "5m", "match": [{"headers": {"timeout": {"exact": "5m"}}}]}]}`, ""},
		{"within a map", "MeshConfig", `{"defaultConfig": {"proxyMetadata": {"timeout": "5m"}, "drainDuration": "1m"}}`,
			`{"defaultConfig": {"proxyMetadata": {"timeout": "5m"}, "drainDuration": "60s"}}`},
		{"escaped", "VirtualService", `{"http": [{"timeout": "\u0035s"}]}`, `{"http": [{"timeout": "5s"}]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			k := mustKind(t, c.kind)
			got, err := k.DecodeJSON([]byte(c.json))
			if err != nil {
				t.Fatal(err)
			}
			want := got.ProtoReflect().New().Interface()
			if c.want == "" {
				c.want = c.json
			}
			if err := protojson.Unmarshal([]byte(c.want), want); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(got, want) {
				t.Errorf("got %v, want %v", got, want)
			}
		})
	}
	_, err := mustKind(t, "VirtualService").DecodeJSON([]byte("{\"http\": [\n{\"timeout\": \"1m\"},\n{\"timeout\": \"7d\"}]}"))
	if err == nil || !strings.Contains(err.Error(), `line 3: invalid google.protobuf.Duration value "7d"`) {
		t.Errorf("got %v", err)
	}
}

func TestEndpointsOnlyOfServiceEntries(t *testing.T) {
	se := func(r networking.ServiceEntry_Resolution, hosts, address string) proto.Message {
		return &networking.ServiceEntry{Hosts: []string{hosts}, Resolution: r, Endpoints: []*networking.WorkloadEntry{{Address: address}}}
	}
	static, dns := networking.ServiceEntry_STATIC, networking.ServiceEntry_DNS
	for _, c := range []struct {
		name     string
		old, new proto.Message
		want     bool
	}{
		{"another endpoint", se(static, "a", "1"), se(static, "a", "2"), true},
		{"another host", se(static, "a", "1"), se(static, "b", "1"), false},
		{"resolved by name", se(dns, "a", "1"), se(dns, "a", "2"), false},
		{"another resolution", se(static, "a", "1"), se(dns, "a", "1"), false},
		{"new", nil, se(static, "a", "1"), false},
		{"gone", se(static, "a", "1"), nil, false},
	} {
		if got := mustKind(t, "ServiceEntry").EndpointsOnly(c.old, c.new); got != c.want {
			t.Errorf("%s: %t, want %t", c.name, got, c.want)
		}
	}
	for _, name := range []string{"EndpointSlice", "Pod", "WorkloadEntry"} {
		if !mustKind(t, name).EndpointsOnly(nil, nil) {
			t.Errorf("a change of a %s is not endpoints only", name)
		}
	}
}

// TestWithoutEndpointsKnowsEveryField fails if Istio's API gets a new field, which
// withoutEndpoints must then copy.
func TestWithoutEndpointsKnowsEveryField(t *testing.T) {
	if n := (*networking.ServiceEntry)(nil).ProtoReflect().Descriptor().Fields().Len(); n != 9 {
		t.Errorf("a ServiceEntry has %d fields; withoutEndpoints knows the endpoints and 8 others", n)
	}
}

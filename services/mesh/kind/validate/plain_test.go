package validate

import (
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
)

// assignments of each form, and whether they are plain. An assignment that is not
// plain has to be decoded and checked.
var assignments = []struct {
	name, json string
	plain      bool
}{
	{"one endpoint", `{"clusterName": "a", "endpoints": [{"lbEndpoints": [{"endpoint": {"address": {"socketAddress": {"address": "10.0.0.1", "portValue": 80}}}}]}]}`, true},
	{"everything", `{"clusterName": "a", "endpoints": [{"locality": {"region": "r", "zone": "z", "subZone": "s"}, "loadBalancingWeight": 3, "priority": 128, "lbEndpoints": [
		{"healthStatus": "DRAINING", "loadBalancingWeight": 1, "endpoint": {"hostname": "h", "address": {"socketAddress": {"protocol": "UDP", "address": "::1", "portValue": 65535}}}},
		{"endpoint": {"address": {"socketAddress": {"address": "10.0.0.2", "portValue": 80}}}}]}, {}]}`, true},
	{"no endpoints", `{"clusterName": "a"}`, true},
	{"no name", `{"endpoints": [{}]}`, false},
	{"a host name", `{"clusterName": "a", "endpoints": [{"lbEndpoints": [{"endpoint": {"address": {"socketAddress": {"address": "example.com", "portValue": 80}}}}]}]}`, false},
	{"a large port", `{"clusterName": "a", "endpoints": [{"lbEndpoints": [{"endpoint": {"address": {"socketAddress": {"address": "10.0.0.1", "portValue": 65536}}}}]}]}`, false},
	{"no port", `{"clusterName": "a", "endpoints": [{"lbEndpoints": [{"endpoint": {"address": {"socketAddress": {"address": "10.0.0.1"}}}}]}]}`, false},
	{"an unknown protocol", `{"clusterName": "a", "endpoints": [{"lbEndpoints": [{"endpoint": {"address": {"socketAddress": {"protocol": 2, "address": "10.0.0.1", "portValue": 80}}}}]}]}`, false},
	{"a pipe", `{"clusterName": "a", "endpoints": [{"lbEndpoints": [{"endpoint": {"address": {"pipe": {"path": "/p"}}}}]}]}`, false},
	{"no weight", `{"clusterName": "a", "endpoints": [{"loadBalancingWeight": 0}]}`, false},
	{"a high priority", `{"clusterName": "a", "endpoints": [{"priority": 129}]}`, false},
	{"metadata", `{"clusterName": "a", "endpoints": [{"metadata": {}}]}`, false},
	{"a policy", `{"clusterName": "a", "policy": {"endpointStaleAfter": "-1s"}}`, false},
}

func TestPlain(t *testing.T) {
	for _, test := range assignments {
		t.Run(test.name, func(t *testing.T) {
			m := new(endpointv3.ClusterLoadAssignment)
			if err := protojson.Unmarshal([]byte(test.json), m); err != nil {
				t.Fatal(err)
			}
			b, err := proto.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			if got := plainAssignment.holds(b); got != test.plain {
				t.Errorf("plain: %v, want %v", got, test.plain)
			}
		})
	}
}

// FuzzPlain checks that plain bytes decode and have no problems.
func FuzzPlain(f *testing.F) {
	for _, test := range assignments {
		m := new(endpointv3.ClusterLoadAssignment)
		if err := protojson.Unmarshal([]byte(test.json), m); err != nil {
			f.Fatal(err)
		}
		b, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
		f.Add(append(b, b...)) // each field twice
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if !plainAssignment.holds(b) {
			return
		}
		m := new(endpointv3.ClusterLoadAssignment)
		if err := proto.Unmarshal(b, m); err != nil {
			t.Fatalf("%x is plain: %v", b, err)
		}
		if problems := CheckEnvoy(m); len(problems) > 0 || m.GetClusterName() == "" {
			t.Fatalf("%x is plain: %v", b, problems)
		}
	})
}

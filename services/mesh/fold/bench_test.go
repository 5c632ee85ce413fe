package fold

import (
	"fmt"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
)

const benchKeys = 100_000

// BenchmarkApply measures one PUT of a changed object in a world of 100,000 keys:
// bare (1 KB, a judge that validates nothing), and as in production, with raw
// clusters (1 KB) and endpoints (4 hosts each).
func BenchmarkApply(b *testing.B) {
	kilobyte := strings.Repeat("x", 1000)
	for _, bench := range []struct {
		name    string
		judge   Judge
		payload func(i int) ident.Value
	}{
		{"bare", testJudge("A"), func(i int) ident.Value { return testPayload(fmt.Sprint("good", i, kilobyte)) }},
		{"clusters", KindJudge{}, func(i int) ident.Value { return cluster(b, i, kilobyte) }},
		{"endpoints", KindJudge{}, func(i int) ident.Value { return assignment(b, i) }},
		{"mixed", KindJudge{}, func(i int) ident.Value {
			if i%10 == 0 {
				return cluster(b, i, kilobyte)
			}
			return assignment(b, i)
		}},
	} {
		b.Run(bench.name, func(b *testing.B) {
			payloads := make([]ident.Value, 5000)
			for i := range payloads {
				payloads[i] = bench.payload(i)
			}
			f, seq := full(b, bench.judge, payloads)
			put := &events.Object{Op: events.Put, Session: "s1"}
			keys := make([]ident.Key, benchKeys)
			for i := range keys {
				keys[i] = benchKey(i)
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				o := *put
				o.Key, o.Value = keys[i%benchKeys], payloads[(i*7+i/benchKeys+1)%len(payloads)]
				o.Pseq, o.Low = uint64(benchKeys+i+1), uint64(benchKeys+i+1)
				seq++
				if _, _, err := f.Apply(events.Record{Seq: seq, Event: events.Event{Body: &o}}, nil); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
		})
	}
}

// BenchmarkAlive measures a heartbeat in a world of 100,000 keys of one kind and
// one key each of 20 others: from a session that covers all kinds, and from one
// that does not cover the large kind.
func BenchmarkAlive(b *testing.B) {
	f, seq := full(b, testJudge("A"), []ident.Value{testPayload("good")})
	var kinds []string
	alive := &events.Alive{Shard: benchKey(0).Shard(), Session: "s1", Low: benchKeys + 1}
	apply := func(body events.Body) {
		seq++
		if _, _, err := f.Apply(events.Record{Seq: seq, Event: events.Event{Body: body}}, nil); err != nil {
			b.Fatal(err)
		}
	}
	for i := range 20 {
		k := benchKey(i)
		k.Kind = fmt.Sprint("Kind", i)
		kinds = append(kinds, k.Kind)
		apply(&events.Object{Key: k, Op: events.Put, Value: testPayload("good"), Session: "s1", Pseq: uint64(benchKeys + i + 1), Low: 1})
	}
	for _, bench := range []struct {
		name  string
		kinds events.Kinds
	}{{"all kinds", nil}, {"some kinds", events.KindsOf(kinds...)}} {
		b.Run(bench.name, func(b *testing.B) {
			a := *alive
			a.Kinds = bench.kinds
			a.Digest = f.shards[a.Shard].digest(a.Kinds)
			for b.Loop() {
				apply(&a)
			}
			if len(f.Needs()) > 0 {
				b.Fatal(f.Needs())
			}
		})
	}
}

// BenchmarkRestore measures a restart: it restores a fold of 100,000 keys of 1 KB
// from its rows.
func BenchmarkRestore(b *testing.B) {
	payload := testPayload("good" + strings.Repeat("x", 1000))
	f, _ := full(b, testJudge("A"), []ident.Value{payload})
	rows := collect(f.Rows())
	b.ReportAllocs()
	for b.Loop() {
		if _, err := Restore("A", testJudge("A"), each(rows)); err != nil {
			b.Fatal(err)
		}
	}
}

func benchKey(i int) ident.Key {
	return ident.Key{Source: "file", Instance: "default", Kind: "Resource", Namespace: fmt.Sprint("ns", i%100), Name: fmt.Sprint("object-", i)}
}

// full returns a fold that has applied a complete listing of benchKeys keys, and
// its last sequence number.
func full(b *testing.B, j Judge, payloads []ident.Value) (*Fold, uint64) {
	b.Helper()
	f, seq := New("A", j), uint64(0)
	apply := func(body events.Body) {
		seq++
		if _, _, err := f.Apply(events.Record{Seq: seq, Event: events.Event{Body: body}}, nil); err != nil {
			b.Fatal(err)
		}
	}
	apply(&events.Segment{Epoch: 1, Build: "A"})
	apply(&events.Begin{Shard: benchKey(0).Shard(), Session: "s1", Holder: "h"})
	var digests events.ShardDigests
	for i := range benchKeys {
		o := &events.Object{
			Key: benchKey(i), Op: events.Put, Value: payloads[i*7%len(payloads)],
			Session: "s1", Pseq: uint64(i + 1), Low: uint64(i + 1),
		}
		digests.Toggle(o.Key, events.ContentHash(o.Key, o.Value))
		apply(o)
	}
	apply(&events.Alive{Shard: benchKey(0).Shard(), Session: "s1", Digest: digests.Sum(), Listed: events.AllBuckets()})
	if n := f.CountKeys(benchKey(0).Shard()); n != benchKeys || len(f.Needs()) > 0 {
		b.Fatalf("%d keys, needs %v", n, f.Needs())
	}
	f.Checkpoint()
	return f, seq
}

func resource(b testing.TB, m proto.Message) ident.Value {
	b.Helper()
	inner, err := anypb.New(m)
	if err != nil {
		b.Fatal(err)
	}
	raw, err := proto.Marshal(&configv1.Resource{Resource: inner})
	if err != nil {
		b.Fatal(err)
	}
	return ident.Value{Type: "type.googleapis.com/meshlog.config.v1.Resource", Bytes: raw}
}

func cluster(b testing.TB, i int, filler string) ident.Value {
	return resource(b, &clusterv3.Cluster{
		Name:                 fmt.Sprint("cluster-", i),
		AltStatName:          filler,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
		EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: &corev3.ConfigSource{
			ResourceApiVersion:    corev3.ApiVersion_V3,
			ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}},
		}},
	})
}

func assignment(b testing.TB, i int) ident.Value {
	group := &endpointv3.LocalityLbEndpoints{}
	for host := range 4 {
		group.LbEndpoints = append(group.LbEndpoints, &endpointv3.LbEndpoint{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
				Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
					Address:       fmt.Sprintf("10.%d.%d.%d", i/250%250, i%250, host+1),
					PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: 8080},
				}}},
			}},
		})
	}
	return resource(b, &endpointv3.ClusterLoadAssignment{ClusterName: fmt.Sprint("cluster-", i), Endpoints: []*endpointv3.LocalityLbEndpoints{group}})
}

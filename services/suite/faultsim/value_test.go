package faultsim

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/fold"
	"meshlog.dev/services/mesh/meshtest"
	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/mesh/world"
)

// value is a key's value at its source: 8*n + flag with a unique n. 0 is no value.
type value int

// The flags of values.
const (
	goodValue    = iota
	onlyB        // good for build B alone
	onlyA        // good for build A alone
	invalidValue // decodes, but is invalid
	rawValue     // the watcher cannot decode it
	badValue     // good, but every proxy rejects it
	pickyValue   // good, but one proxy rejects it
	flags        = 8
)

// The two builds of builders.
const (
	buildA = "A"
	buildB = "B"
)

func (v value) flag() int { return int(v) % flags }

// good reports whether a build serves v.
func (v value) good(build string) bool {
	switch v.flag() {
	case goodValue, badValue, pickyValue:
		return true
	case onlyB:
		return build == buildB
	case onlyA:
		return build == buildA
	}
	return false
}

// rejectedBy reports whether a proxy rejects the value.
func (v value) rejectedBy(proxy string) bool {
	return v.flag() == badValue || v.flag() == pickyValue && proxy == "p0"
}

// payload encodes v for k: a config is a RouteConfiguration of two virtual hosts
// that both change with v. Proxies that reject v blame the one called main.
func (v value) payload(k ident.Key) ident.Value {
	text := strconv.AppendInt(nil, int64(v), 10)
	switch {
	case v.flag() == rawValue:
		return ident.Value{Type: "sim/Raw", Bytes: text}
	case k.Kind == endpoint:
		return ident.Value{Type: "sim/Value", Bytes: text}
	}
	host := func(name string) *routev3.VirtualHost {
		return &routev3.VirtualHost{Name: name, Domains: []string{name}, Routes: []*routev3.Route{{
			Name:   fmt.Sprintf("%s-%d", name, v),
			Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}},
			Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 200}},
		}}}
	}
	row := meshtest.Put("", &routev3.RouteConfiguration{Name: short(k), VirtualHosts: []*routev3.VirtualHost{host("steady"), host(mainHost)}}).Row()
	of, err := world.UnmarshalValue(row.Value)
	if err != nil {
		panic(err)
	}
	return ident.Value{Type: of.Type, Bytes: of.Bytes}
}

func valueFrom(b []byte) value {
	if n, err := strconv.Atoi(string(b)); err == nil {
		return value(n)
	}
	r, c := new(configv1.Resource), new(routev3.RouteConfiguration)
	err := proto.Unmarshal(b, r)
	if err == nil {
		err = r.GetResource().UnmarshalTo(c)
	}
	if err != nil {
		panic(fmt.Sprintf("value %q: %v", b, err))
	}
	return hostValue(c, mainHost)
}

// mainHost is the virtual host that proxies reject.
const mainHost = "main"

// hostValue returns the value of a virtual host; 0: it refuses requests.
func hostValue(c *routev3.RouteConfiguration, name string) value {
	for _, h := range c.GetVirtualHosts() {
		if h.GetName() != name {
			continue
		}
		text, _ := strings.CutPrefix(h.GetRoutes()[0].GetName(), name+"-")
		n, err := strconv.Atoi(text)
		if err != nil {
			return 0
		}
		return value(n)
	}
	panic(fmt.Sprintf("%s has no virtual host %s", c.GetName(), name))
}

// judge judges the values of the sources. It passes the mesh's policy to the
// judge of production.
type judge struct {
	fold.KindJudge
	build   string
	without []string
}

// Without names the rules that a fold with the tag "mutants" leaves out.
func (j judge) Without() []string { return j.without }

func (j judge) Judge(k ident.Key, v ident.Value) (proto.Message, []problem.Diagnostic, bool) {
	if k == policyKey {
		return j.KindJudge.Judge(k, v)
	}
	if valueFrom(v.Bytes).good(j.build) {
		return nil, nil, true
	}
	return nil, []problem.Diagnostic{{Severity: problem.Error, Code: "invalid", Reason: "not for build " + j.build}}, false
}

func (judge) Closed(ident.Key, ident.Value) (ident.Value, bool) { return ident.Value{}, false }

func (judge) EndpointsOnly(k ident.Key, _, _ *world.Object) bool { return k.Kind == endpoint }

// The kinds of keys: endpoints change one by one, configs in batches too.
const (
	endpoint = "Endpoint"
	config   = "Resource"
	perKind  = 4 // keys of each kind in a source
)

// sources is the number of sources. The first one is required.
const sources = 2

// massLoss is the number of keys of a source whose loss at once is held.
const massLoss = 3

func shardOf(source int) ident.Shard {
	return ident.Shard{Source: "file", Instance: "sim" + strconv.Itoa(source)}
}

func keyOf(source int, kind string, n int) ident.Key {
	sh := shardOf(source)
	return ident.Key{Source: sh.Source, Instance: sh.Instance, Kind: kind, Namespace: "s" + strconv.Itoa(source), Name: strconv.Itoa(n)}
}

func compareKeys(a, b ident.Key) int {
	return cmp.Or(cmp.Compare(a.Instance, b.Instance), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Name, b.Name))
}

func sortedKeys[V any](m map[ident.Key]V) []ident.Key {
	return slices.SortedFunc(maps.Keys(m), compareKeys)
}

func short(k ident.Key) string { return k.Instance + "/" + k.Kind + "/" + k.Name }

// policyKey is the MeshPolicy. No source publishes it: the simulation appends it
// first, as `up` does for a mesh without one.
var policyKey = ident.Key{Source: "api", Instance: "default", Kind: "MeshPolicy", Name: "default"}

// policyRecords is the number of records of the policy. No rewind removes them.
const policyRecords = 3

// policy requires the first source, and lets the guard hold small losses. staged: changes
// of configuration reach the proxies by steps. signed: records of operators count with a
// signature only.
func policy(without map[string]bool, staged, signed bool) []events.Event {
	p := &configv1.MeshPolicy{
		RequiredSources: []*configv1.RequiredSource{{Source: shardOf(0).Source, Instance: shardOf(0).Instance}},
		RawResources:    []string{"s0", "s1"}, // of both sources: every proxy is served all of them
		Guard:           &configv1.Guard{MinKeys: massLoss, MaxLossPercent: 1, Disabled: without["guard"]},
	}
	if staged {
		p.Rollout = rolloutSteps()
	}
	if signed && !without["sign"] {
		p.Operators = simOperators()
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(p)
	if err != nil {
		panic(err)
	}
	k := policyKey
	o := &events.Object{
		Key: k, Op: events.Put, Session: "policy", Pseq: 1, Low: 1,
		Value: ident.Value{Type: "type.googleapis.com/" + string(p.ProtoReflect().Descriptor().FullName()), Bytes: b},
	}
	var digests events.ShardDigests
	digests.Toggle(k, events.ContentHash(k, o.Value))
	return []events.Event{
		{ID: "policy-0", Body: &events.Begin{Shard: k.Shard(), Session: "policy", Holder: "mesh"}},
		{ID: "policy-1", Body: o},
		{ID: "policy-2", Body: &events.Alive{Shard: k.Shard(), Session: "policy", Low: 2, Digest: digests.Sum(), Listed: events.AllBuckets()}},
	}
}

package world

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
	meshconfig "istio.io/api/mesh/v1alpha1"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
)

// Policy is the effective MeshPolicy, with the defaults filled in.
type Policy struct {
	// SourcePriority lists sources, the winning one first; other sources come
	// last, by name.
	SourcePriority []string
	// Required sources must each have listed everything before a version is
	// published; without a MeshPolicy there are none.
	Required      []RequiredSource
	Guard         Guard
	RootNamespace string
	DomainSuffix  string
	// SourceRules limit what sources may publish: see mesh/permit.
	SourceRules []*configv1.SourceRule
	// RawResources are the namespaces whose raw resources reach all proxies; none:
	// the root namespace of MeshConfig (XDS-7).
	RawResources []string
	// MaxConnectionDuration limits connections of clients to servers with TLS; 0: no
	// limit (KEY-12).
	MaxConnectionDuration time.Duration
	// CertificatesOnDemand makes routers ask for a certificate of a Gateway when a client
	// first needs it (SDS-12).
	CertificatesOnDemand bool
	// MergeHosts are hosts that several sources may share (AGG-4).
	MergeHosts []*configv1.MergeHosts
	// Sinks say what clients of MCP-over-xDS are sent (MCP-16); none: nothing.
	Sinks []*configv1.McpSink
	// Operators are those whose signatures records of operators need; none: they need no
	// signature.
	Operators []*configv1.Operator
	// Rollout are the steps by which changes of configuration reach the proxies; none: they
	// reach all at once.
	Rollout []RolloutStep
}

// RolloutStep is one step of rollouts.
type RolloutStep struct {
	// Reached are the proxies that have a change once the step has begun, by it and by the
	// steps before.
	Reached ident.Group
	// Selects: the step adds proxies by selectors, and waits until one of them is there.
	Selects bool
	// Hold is how long the step lasts at least.
	Hold time.Duration
	// AckPercent is the share of streams that must have applied the change, 1 to 100.
	AckPercent int
	// Manual: an operator begins the next step.
	Manual bool
}

// rolloutOf returns the steps of a policy.
func rolloutOf(steps []*configv1.RolloutStep) (all []RolloutStep) {
	var reached ident.Group
	for _, s := range steps {
		reached.Percent = max(reached.Percent, int(s.GetPercent()))
		reached.Proxies = slices.Clone(reached.Proxies)
		for _, p := range s.GetProxies() {
			reached.Proxies = append(reached.Proxies, ident.Proxies{
				ID: p.GetId(), Namespace: p.GetNamespace(), Cluster: p.GetCluster(), Labels: p.GetLabels(),
			})
		}
		all = append(all, RolloutStep{
			Reached: reached, Selects: len(s.GetProxies()) > 0, Hold: s.GetHold().AsDuration(),
			AckPercent: cmp.Or(int(s.GetAckPercent()), 100), Manual: s.GetManual(),
		})
	}
	return all
}

// DefaultsSource is the source that `meshlog up` publishes for. Any other
// source's MeshPolicy wins over its own, and no diagnostic says so.
const DefaultsSource = "up"

// RequiredSource is a shard that must be SYNCED before a version.
type RequiredSource struct {
	ident.Shard
	// AcceptPartial: a listing that could not read everything is enough.
	AcceptPartial bool
}

// Guard decides which mass losses are held.
type Guard struct {
	Disabled bool
	// MaxLossPercent is the share of a source's keys that it may lose at once.
	MaxLossPercent int
	// MinKeys: the loss of fewer keys is never held.
	MinKeys int
}

// DefaultPolicy returns the policy of a mesh without a MeshPolicy.
func DefaultPolicy() Policy {
	return Policy{
		SourcePriority: []string{"kubernetes", "file", "api", "mcpxds", "consul", "nacos"},
		Guard:          Guard{MaxLossPercent: 30, MinKeys: 5},
		RootNamespace:  "istio-system",
		DomainSuffix:   "cluster.local",

		MaxConnectionDuration: time.Hour,
	}
}

// policyOf returns m, which may be nil, with the defaults filled in.
func policyOf(m *configv1.MeshPolicy) Policy {
	p := DefaultPolicy()
	if len(m.GetSourcePriority()) > 0 {
		p.SourcePriority = slices.Clone(m.GetSourcePriority())
	}
	for _, r := range m.GetRequiredSources() {
		p.Required = append(p.Required, RequiredSource{ident.Shard{Source: r.GetSource(), Instance: r.GetInstance()}, r.GetAcceptPartial()})
	}
	g := m.GetGuard()
	p.Guard.Disabled = g.GetDisabled()
	p.Guard.MaxLossPercent = cmp.Or(int(g.GetMaxLossPercent()), p.Guard.MaxLossPercent)
	p.Guard.MinKeys = cmp.Or(int(g.GetMinKeys()), p.Guard.MinKeys)
	p.RootNamespace = cmp.Or(m.GetRootNamespace(), p.RootNamespace)
	p.DomainSuffix = cmp.Or(m.GetDomainSuffix(), p.DomainSuffix)
	p.SourceRules = m.GetSourceRules()
	p.MergeHosts = m.GetMergeHosts()
	p.Sinks = m.GetMcp().GetSinks()
	p.Operators = m.GetOperators()
	p.Rollout = rolloutOf(m.GetRollout().GetSteps())
	p.RawResources = slices.Clone(m.GetRawResources())
	p.CertificatesOnDemand = m.GetGatewayCertificates() == "onDemand"
	if d := m.GetMaxConnectionDuration(); d != nil {
		p.MaxConnectionDuration = d.AsDuration()
	}
	return p
}

// Wins orders the copies of one object, or other claims to one thing, the winner
// first: by source priority, then the oldest (no creation time counts as
// youngest), then by namespace/name, then by source/instance.
func Wins(priority []string, a ident.Key, aCreated time.Time, b ident.Key, bCreated time.Time) int {
	return cmp.Or(
		winsBySource(priority, a.Source, b.Source),
		winsByAge(aCreated, bCreated),
		cmp.Compare(a.Namespace, b.Namespace),
		cmp.Compare(a.Name, b.Name),
		cmp.Compare(a.Source, b.Source),
		cmp.Compare(a.Instance, b.Instance),
	)
}

// WhyWins returns, in words, why a wins over b.
func WhyWins(priority []string, a ident.Key, aCreated time.Time, b ident.Key, bCreated time.Time) string {
	switch {
	case winsBySource(priority, a.Source, b.Source) != 0:
		return "comes first by source priority"
	case winsByAge(aCreated, bCreated) != 0:
		return "is older"
	}
	return "comes first by name"
}

func winsBySource(priority []string, a, b string) int {
	place := func(s string) int {
		if i := slices.Index(priority, s); i >= 0 {
			return i
		}
		return len(priority)
	}
	return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a, b))
}

func winsByAge(a, b time.Time) int {
	switch {
	case a.IsZero() && b.IsZero():
		return 0
	case a.IsZero():
		return 1
	case b.IsZero():
		return -1
	}
	return a.Compare(b)
}

// meshConfigOf returns m, which may be nil, with Istio's defaults as far as they
// change what proxies get. A default replaces no part of a message that is set:
// an unset mode in it may be meant, since REGISTRY_ONLY is the number 0.
func meshConfigOf(m *meshconfig.MeshConfig, p Policy) *meshconfig.MeshConfig {
	everywhere := []string{"*"}
	defaults := &meshconfig.MeshConfig{
		ProxyListenPort:                15001,
		ConnectTimeout:                 durationpb.New(10 * time.Second),
		ProtocolDetectionTimeout:       durationpb.New(0),
		DnsRefreshRate:                 durationpb.New(60 * time.Second),
		RootNamespace:                  p.RootNamespace,
		OutboundTrafficPolicy:          &meshconfig.MeshConfig_OutboundTrafficPolicy{Mode: meshconfig.MeshConfig_OutboundTrafficPolicy_ALLOW_ANY},
		DefaultServiceExportTo:         everywhere,
		DefaultVirtualServiceExportTo:  everywhere,
		DefaultDestinationRuleExportTo: everywhere,
	}
	if m == nil {
		return defaults
	}
	full := proto.Clone(m).(*meshconfig.MeshConfig)
	to := full.ProtoReflect()
	defaults.ProtoReflect().Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		if !to.Has(fd) {
			to.Set(fd, v)
		}
		return true
	})
	return full
}

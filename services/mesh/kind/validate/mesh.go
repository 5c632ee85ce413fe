package validate

import (
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	meshconfig "istio.io/api/mesh/v1alpha1"

	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/problem"
)

var (
	subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	sources   = []string{"kubernetes", "file", "mcpxds", "consul", "nacos"}
)

// MeshConfig checks a MeshConfig.
func MeshConfig(m proto.Message) []problem.Diagnostic {
	mc := m.(*meshconfig.MeshConfig)
	c := checker{kind: "MeshConfig"}
	c.message(root, m.ProtoReflect(), 0)
	baseline, at := mc.GetDefaultTrafficPolicy(), root.field("defaultTrafficPolicy")
	c.connectionPool(at.field("connectionPool"), baseline.GetConnectionPool())
	c.outliers(at.field("outlierDetection"), baseline.GetOutlierDetection())
	for i, s := range mc.GetServiceSettings() {
		for j, h := range s.GetHosts() {
			c.host(root.field("serviceSettings").item(i).field("hosts").item(j), h, true)
		}
	}
	c.meshConfigFields(mc)
	return c.result()
}

// MeshPolicy checks a MeshPolicy.
func MeshPolicy(m proto.Message) []problem.Diagnostic {
	p := m.(*configv1.MeshPolicy)
	c := checker{}
	seen := map[string]bool{}
	for i, s := range p.GetSourcePriority() {
		at := root.field("source_priority").item(i)
		c.errorIf(!first(seen, s), at, "name each source once, the preferred one first", "source %q is there twice", s)
		if !slices.Contains(sources, s) {
			c.warnf(at, "use "+strings.Join(sources, ", "), "meshlog has no source %q", s)
		}
	}
	required := map[string]bool{}
	for i, r := range p.GetRequiredSources() {
		at := root.field("required_sources").item(i)
		shard := r.GetSource() + "/" + r.GetInstance()
		c.errorIf(r.GetSource() == "" || r.GetInstance() == "", at, "write both, like {source: file, instance: default}", "source or instance is missing")
		c.errorIf(!first(required, shard), at, "name each source instance once", isTwice, shard)
	}
	if n := p.GetGuard().GetMaxLossPercent(); n > 100 {
		c.errorf(root.field("guard.max_loss_percent"), "use 1 to 100; 0 means the default of 30", "%d is more than 100 percent", n)
	}
	if ns := p.GetRootNamespace(); ns != "" {
		c.namespace(root.field("root_namespace"), ns)
	}
	if d := p.GetDomainSuffix(); d != "" {
		c.errorIf(!subdomain.MatchString(d), root.field("domain_suffix"), "write it like cluster.local", "%q is not a DNS domain", d)
	}
	return c.result()
}

package validate

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"
	meshconfig "istio.io/api/mesh/v1alpha1"

	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/problem"
)

var (
	label     = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$`)
	subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	sources   = []string{"kubernetes", "file", "mcpxds", "consul", "nacos"}
)

func MeshConfig(m proto.Message) []problem.Problem {
	c := checker{}
	c.message(root, m.ProtoReflect(), 0)
	baseline, at := m.(*meshconfig.MeshConfig).GetDefaultTrafficPolicy(), root.field("defaultTrafficPolicy")
	c.connectionPool(at.field("connectionPool"), baseline.GetConnectionPool())
	c.outliers(at.field("outlierDetection"), baseline.GetOutlierDetection())
	for i, s := range m.(*meshconfig.MeshConfig).GetServiceSettings() {
		for j, h := range s.GetHosts() {
			c.host(root.field("serviceSettings").item(i).field("hosts").item(j), h, true)
		}
	}
	c.noEffect("MeshConfig", m)
	return c.result()
}

func MeshPolicy(m proto.Message) []problem.Problem {
	p := m.(*configv1.MeshPolicy)
	c := checker{}
	seen := map[string]bool{}
	for i, s := range p.GetSourcePriority() {
		field := fmt.Sprintf("spec.source_priority[%d]", i)
		switch {
		case seen[s]:
			c.add(field, fmt.Sprintf("source %q is named twice", s), "name each source once, the one that wins first")
		case !slices.Contains(sources, s):
			c.problems = append(c.problems, problem.Problem{
				Field: field, Reason: fmt.Sprintf("no source of meshlog is called %q", s),
				Advice: "use " + strings.Join(sources, ", "), Warning: true,
			})
		}
		seen[s] = true
	}
	required := map[string]bool{}
	for i, r := range p.GetRequiredSources() {
		field := fmt.Sprintf("spec.required_sources[%d]", i)
		shard := r.GetSource() + "/" + r.GetInstance()
		switch {
		case r.GetSource() == "" || r.GetInstance() == "":
			c.add(field, "source or instance is missing", "write both, like {source: file, instance: default}")
		case required[shard]:
			c.add(field, shard+" is named twice", "name each source instance once")
		}
		required[shard] = true
	}
	if n := p.GetGuard().GetMaxLossPercent(); n > 100 {
		c.add("spec.guard.max_loss_percent", fmt.Sprintf("%d is more than 100 percent", n), "use 1 to 100; 0 means the default of 30")
	}
	if ns := p.GetRootNamespace(); ns != "" && !label.MatchString(ns) {
		c.add("spec.root_namespace", fmt.Sprintf("%q is no name of a namespace", ns), "use lower case letters, digits and -")
	}
	if d := p.GetDomainSuffix(); d != "" && !subdomain.MatchString(d) {
		c.add("spec.domain_suffix", fmt.Sprintf("%q is no DNS domain", d), "write it like cluster.local")
	}
	return c.result()
}

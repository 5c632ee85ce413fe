package mcp

import (
	"slices"

	configv1 "meshlog.dev/proto/meshlog/config/v1"
	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/permit"
	"meshlog.dev/services/mesh/world"
)

// matches reports whether a text matches a glob; an empty one matches everything.
func matches(glob, text string) bool { return glob == "" || permit.Match(glob, text) }

// matchesAny reports whether a text matches one of the globs, or there are none.
func matchesAny(globs []string, text string) bool {
	return len(globs) == 0 || slices.ContainsFunc(globs, func(glob string) bool { return permit.Match(glob, text) })
}

// gets reports whether a sink gets a resource (MCP-16).
func gets(s *configv1.McpSink, e *entry) bool {
	return matchesAny(s.GetSources(), e.source) && matchesAny(s.GetKinds(), e.kind) && matchesAny(s.GetNamespaces(), e.namespace) &&
		(!e.kubernetes || includesKubernetes(s))
}

// includesKubernetes reports whether a sink gets the Services of Kubernetes, which an istiod
// reads itself (MCP-15).
func includesKubernetes(s *configv1.McpSink) bool {
	return slices.Contains(s.GetInclude(), "kubernetes")
}

// isClosed reports whether a policy takes the place of one of which no value was ever good.
func isClosed(o world.Object) bool {
	_, closed := o.Message.(*registryv1.Closed)
	return closed
}

// Package testkit is the module of shared test tools: free ports (testport),
// certificates (certtest), golden files (goldentest), NATS servers (natstest), processes
// and tools (program), a real Kubernetes API server (kubetest), real registries: Consul
// (consultest) and a Nacos server (nacostest), and scripted sources of MCP-over-xDS
// (mcptest). It imports nothing of the other modules.
package testkit

// Package testkit is the module of shared test tools: free ports (testport),
// certificates (certtest), golden files (goldentest), NATS servers (natstest), processes
// and tools (program) and a real Kubernetes API server (kubetest). It imports nothing of
// the other modules.
package testkit

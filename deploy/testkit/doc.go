// Package testkit is the module of shared test tools: free ports (testport),
// certificates (certtest), golden files (goldentest) and a real Kubernetes API
// server (kubetest). It imports nothing of the other modules.
package testkit

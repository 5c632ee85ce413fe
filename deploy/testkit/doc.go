// Package testkit is the module of tools that tests share: ports that no other
// test has (testport), certificates (certtest), golden files (goldentest), and a
// real Kubernetes API server (kubetest). It imports nothing of the other modules.
package testkit

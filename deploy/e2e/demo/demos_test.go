//go:build !registries

package main

import "testing"

func TestDemo(t *testing.T) {
	t.Parallel()
	holds(t, newStage, "What runs", "0/100", "PUT routes.yaml:2", "Everything dies", "what the file held before stays", "envoy-2 answers", "all from shop-v1")
}

func TestDemoKubernetes(t *testing.T) {
	t.Parallel()
	holds(t, newClusterStage, "What runs", "0/100", "by release-bot", "the new one answers", "DOWN, FROZEN", "all from shop-v1")
}

func TestDemoMesh(t *testing.T) {
	t.Parallel()
	holds(t, newSecureStage, "What runs", "called by spiffe://cluster.local/ns/web/sa/web", "replaced 5 times", "refuses connections without mutual TLS",
		"on the connection on which it was 200", "under a new root", "nobody was there", "the certificate of edge 6", "recorded on the bus", "the archive of the log and all versions: none")
}

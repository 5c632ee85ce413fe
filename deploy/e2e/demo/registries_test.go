//go:build registries

package main

import "testing"

func TestDemoRegistries(t *testing.T) {
	holds(t, newRegistriesStage, "What runs", "50/50", "DOWN, FROZEN", "all 6 instances of consul as before", "all 5 instances of nacos as before", "Its MeshConfig says configSources", "0/100", "envoy-2, configured by istiod, follows", "none failed")
}

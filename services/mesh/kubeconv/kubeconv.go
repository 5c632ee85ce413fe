// Package kubeconv turns objects of Kubernetes into what meshlog's log carries
// of them (rows SVC, EPS, POD, NOD and NS of the configuration API).
//
// What is converted is what has a meaning to proxies: two objects with equal
// results are equal to everybody behind the log. Status, resource versions and
// the like are not looked at, unless a row needs them.
//
// It is pure. Its imports are heavy, so only what reads Kubernetes objects
// imports it.
package kubeconv

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
)

// Labels and annotations that count.
const (
	exportToAnnotation          = "networking.istio.io/exportTo"
	distributionAnnotation      = "networking.istio.io/traffic-distribution"
	serviceAccountsAnnotation   = "alpha.istio.io/kubernetes-serviceaccounts"
	canonicalAccountsAnnotation = "alpha.istio.io/canonical-serviceaccounts"
	networkLabel                = "topology.istio.io/network"
	localityLabel               = "topology.istio.io/locality"
	olderLocalityLabel          = "istio-locality"
	tlsModeLabel                = "security.istio.io/tlsMode"
	subZoneLabel                = "topology.istio.io/subzone"
	mutualTLS                   = "istio"
	distributionZone            = "PreferSameZone"
	distributionNode            = "PreferSameNode"
	preferClose                 = "PreferClose" // the older name of PreferSameZone
)

// list splits an annotation that holds names between commas.
func list(s string) []string {
	var out []string
	for _, f := range strings.Split(s, ",") {
		if f = strings.TrimSpace(f); f != "" {
			out = append(out, f)
		}
	}
	return out
}

// Locality is where a Node is, by its labels (NOD-1); nil if they do not say.
func Locality(labels map[string]string) *registryv1.Locality {
	l := &registryv1.Locality{
		Region: labels[corev1.LabelTopologyRegion], Zone: labels[corev1.LabelTopologyZone], SubZone: labels[subZoneLabel],
	}
	if l.GetRegion() == "" && l.GetZone() == "" && l.GetSubZone() == "" {
		return nil
	}
	return l
}

// labelled is the locality that a workload's labels set over that of its node
// (LOC-1), with "." between region, zone and subzone for "/" is not allowed.
func labelled(labels map[string]string) *registryv1.Locality {
	for _, l := range []string{localityLabel, olderLocalityLabel} {
		if s := labels[l]; s != "" {
			if !strings.Contains(s, "/") {
				s = strings.ReplaceAll(s, ".", "/")
			}
			p := append(strings.SplitN(s, "/", 3), "", "")
			return &registryv1.Locality{Region: p[0], Zone: p[1], SubZone: p[2]}
		}
	}
	return nil
}

// Package kubeconv converts Kubernetes objects to the messages on meshlog's log
// (rows SVC, EPS, POD, NOD and NS of the configuration API).
//
// It converts the fields that matter to proxies, so that equal results mean equal
// configuration. It ignores status, resource versions and the like, unless a row
// needs them.
//
// It does no IO. Its imports are heavy, so only packages that read Kubernetes
// objects import it.
package kubeconv

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
)

// Labels and annotations with an effect.
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

// list splits an annotation with comma-separated names.
func list(s string) []string {
	var out []string
	for f := range strings.SplitSeq(s, ",") {
		if f = strings.TrimSpace(f); f != "" {
			out = append(out, f)
		}
	}
	return out
}

// Locality returns the locality in the labels of a Node (NOD-1), or nil.
func Locality(labels map[string]string) *registryv1.Locality {
	l := &registryv1.Locality{
		Region: labels[corev1.LabelTopologyRegion], Zone: labels[corev1.LabelTopologyZone], SubZone: labels[subZoneLabel],
	}
	if l.GetRegion() == "" && l.GetZone() == "" && l.GetSubZone() == "" {
		return nil
	}
	return l
}

// labelled returns the locality in a workload's labels, which overrides its node's
// (LOC-1), or nil. Region, zone and subzone are separated by ".", because labels
// cannot have "/".
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

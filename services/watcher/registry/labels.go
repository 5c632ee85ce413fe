package registry

import (
	"maps"
	"slices"
	"strings"

	"meshlog.dev/services/mesh/kind/validate"
)

// tlsMode says that an instance speaks Istio's mutual TLS.
const tlsMode = "security.istio.io/tlsMode"

// labelsOf returns the metadata that are labels of Kubernetes, and how many are not
// (REG-6).
func labelsOf(metadata map[string]string) (labels map[string]string, others int) {
	for k, v := range metadata {
		if !validate.IsLabel(k, v) {
			others++
			continue
		}
		if labels == nil {
			labels = make(map[string]string, len(metadata))
		}
		labels[k] = v
	}
	return labels, others
}

// protocols are the words for protocols in metadata, with those of Dubbo.
var protocols = map[string]string{
	"http": "http", "http2": "http2", "grpc": "grpc", "grpc-web": "grpc-web", "https": "https", "tls": "tls", "tcp": "tcp",
	"mongo": "mongo", "mysql": "mysql", "redis": "redis", "triple": "grpc", "tri": "grpc", "dubbo": "tcp",
}

// IsProtocol reports whether a word names a protocol.
func IsProtocol(word string) bool { return protocols[word] == word }

// protocolOf returns the protocol that most instances name in their metadata (if several
// are named equally often, the first by name), all protocols that they name, and the words
// that are no protocol (REG-7).
func protocolOf(instances []Instance) (protocol string, named, unknown []string) {
	votes, strange := map[string]int{}, map[string]bool{}
	for _, in := range instances {
		word, ok := in.Metadata["protocol"]
		if !ok {
			continue
		}
		if p, ok := protocols[strings.ToLower(word)]; ok {
			votes[p]++
		} else {
			strange[word] = true
		}
	}
	named = slices.Sorted(maps.Keys(votes))
	for _, p := range named {
		if votes[p] > votes[protocol] {
			protocol = p
		}
	}
	return protocol, named, slices.Sorted(maps.Keys(strange))
}

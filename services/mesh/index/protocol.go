package index

import (
	"slices"
	"strings"
)

// protocols by name, as ports of Services (SVC-7) and ServiceEntries (SE-2) name
// them. A protocol without support of its own counts as the one that carries it.
var protocols = map[string]Protocol{
	"http":       HTTP,
	"http_proxy": HTTP,
	"http2":      HTTP2,
	"grpc":       GRPC,
	"grpc-web":   GRPCWeb,
	"https":      HTTPS,
	"tls":        TLS,
	"tcp":        TCP,
	"hbone":      TCP,
	"mongo":      Mongo,
	"mysql":      MySQL,
	"redis":      Redis,

	// Names of Kubernetes, in appProtocol only: a port's name has no slash.
	"kubernetes.io/h2c": HTTP2,
	"kubernetes.io/ws":  HTTP,
	"kubernetes.io/wss": HTTPS,
}

// serverFirst are ports of protocols in which the server speaks first, so
// detection would wait for the client in vain (SVC-8).
var serverFirst = []uint32{25, 53, 3306, 27017}

// selectProtocol returns the protocol of a Service's port (SVC-7): appProtocol,
// else the port's name up to its first "-".
func selectProtocol(number uint32, appProtocol, portName string) Protocol {
	word := strings.ToLower(portName)
	if appProtocol != "" {
		word = strings.ToLower(appProtocol)
	}
	if p, ok := protocols[word]; ok {
		return p
	}
	if strings.HasPrefix(word, "grpc-web") {
		return GRPCWeb
	}
	prefix, _, _ := strings.Cut(word, "-")
	if p, ok := protocols[prefix]; ok {
		return p
	}
	if slices.Contains(serverFirst, number) {
		return TCP
	}
	return Sniffed
}

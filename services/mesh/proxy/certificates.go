package proxy

// SDSCluster is the cluster of a bootstrap by which an Envoy asks an agent on its host,
// or SPIRE, for secrets.
const SDSCluster = "sds-grpc"

// Certificates says from where an Envoy gets its certificate of the mesh and the CAs of
// the mesh (SDS-3). The zero value: from nowhere.
type Certificates struct {
	// Agent: from the cluster SDSCluster of its bootstrap.
	Agent bool `json:",omitempty"`
	// Chain and Key are files on the proxy. Roots is a file with CAs; empty: the mesh's
	// TrustBundle.
	Chain string `json:",omitempty"`
	Key   string `json:",omitempty"`
	Roots string `json:",omitempty"`
	// Provider is the certificate provider of a gRPC client's bootstrap that has all of
	// these.
	Provider string `json:",omitempty"`
}

// providerField is the metadata by which a gRPC client names the certificate provider of
// its bootstrap that has its certificate of the mesh and the CAs. A gRPC client does not
// report its providers, and rejects a cluster that names an unknown one.
const providerField = "GRPC_CERTIFICATE_PROVIDER"

// istioProvider is the name of the only provider in the bootstraps that Istio's agent
// writes for gRPC clients.
const istioProvider = "default"

// Certificates returns what the metadata says: TLS_SERVER_CERT_CHAIN, TLS_SERVER_KEY and
// TLS_SERVER_ROOT_CERT name files; SDS_CLUSTER says that the bootstrap has the cluster
// sds-grpc, as those of meshlog's agent do, and those by which a plain Envoy asks SPIRE.
// All bootstraps of Istio's agent have it, in front of SPIRE too.
func (p *Proxy) Certificates() Certificates {
	if p.GRPC {
		return p.provider()
	}
	c := Certificates{Chain: p.Text("TLS_SERVER_CERT_CHAIN"), Key: p.Text("TLS_SERVER_KEY"), Roots: p.Text("TLS_SERVER_ROOT_CERT")}
	switch {
	case c.Chain != "" && c.Key != "":
		return c
	case p.Text("SDS_CLUSTER") == SDSCluster, p.byIstioAgent():
		return Certificates{Agent: true}
	}
	return Certificates{}
}

// provider returns what the metadata of a gRPC client says: the name of its provider, or
// that Istio's agent wrote its bootstrap.
func (p *Proxy) provider() Certificates {
	if name := p.Text(providerField); name != "" {
		return Certificates{Provider: name}
	}
	if p.Text("GENERATOR") == GRPC && p.byIstioAgent() {
		return Certificates{Provider: istioProvider}
	}
	return Certificates{}
}

// byIstioAgent reports whether Istio's agent wrote the bootstrap. It sends its ProxyConfig
// with each node. The version alone is in nodes that people write in Istio's form, whose
// bootstraps do not have the cluster sds-grpc: they would wait for secrets that never come.
func (p *Proxy) byIstioAgent() bool {
	return p.Text("ISTIO_VERSION") != "" && p.Metadata.GetFields()["PROXY_CONFIG"].GetStructValue() != nil
}

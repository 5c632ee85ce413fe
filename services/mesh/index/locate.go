package index

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
)

// Standing is what the world knows of a proxy.
type Standing uint8

const (
	// Unproven proxies have no identity, or the world has no workload of their
	// service account. They are what they say.
	Unproven Standing = iota
	// Located proxies are on a Pod or a WorkloadEntry.
	Located
	// Stranger is a proxy that is on none of the workloads that the world has of its
	// service account.
	Stranger
)

// Locate finds the Pod or WorkloadEntry of a proxy with an identity: one of the
// identity's namespace and service account, by name or else by IP. It returns the
// proxy with what that says in place of what the proxy says: labels, Kubernetes
// cluster, network and locality. A stranger has no labels. Locate does not change
// p, and returns it if it has nothing to say about it.
//
// A proxy can pass for another one of its own service account only, because that is
// what its certificate proves.
func (pc *PushContext) Locate(p *proxy.Proxy) (*proxy.Proxy, Standing) {
	if p.Identity == (proxy.Identity{}) {
		return p, Unproven
	}
	var byName, byIP []*workload
	known := false
	names, ips := p.Names(), p.Addresses()
	for _, w := range pc.endpoints.workloads.Get(p.Identity.Namespace) {
		if w.account() != p.Identity.ServiceAccount {
			continue
		}
		known = true
		if slices.Contains(names, w.Name) {
			byName = append(byName, w)
		}
		if slices.ContainsFunc(w.addresses(), func(a string) bool {
			return slices.ContainsFunc(ips, func(ip netip.Addr) bool { return ip.String() == a })
		}) {
			byIP = append(byIP, w)
		}
	}
	if !known {
		return p, Unproven
	}
	found := byName
	if len(found) == 0 {
		found = byIP
	}
	if len(found) == 0 {
		return (&workload{}).onto(p), Stranger
	}
	// Clusters may have Pods of one name.
	best := found[0]
	for _, w := range slices.Backward(found) {
		if slices.Contains(byIP, w) || len(byIP) == 0 && w.Instance == p.ClusterID {
			best = w
		}
	}
	return best.onto(p), Located
}

func (w *workload) account() string {
	if w.pod != nil {
		return w.pod.GetServiceAccount()
	}
	return w.entry.GetServiceAccount()
}

// addresses returns the IPs that only this workload has.
func (w *workload) addresses() []string {
	switch {
	case w.pod == nil:
		return []string{w.entry.GetAddress()}
	case w.pod.GetHostNetwork():
		return nil
	}
	return w.pod.GetAddresses()
}

// place returns the locality and the network that the workload names, if any.
func (w *workload) place() (proxy.Locality, string) {
	switch {
	case w.pod != nil:
		return localityOf(w.pod.GetLocality()), w.pod.GetNetwork()
	case w.entry != nil && w.entry.GetLocality() != "":
		parts := append(strings.SplitN(w.entry.GetLocality(), "/", 3), "", "")
		return proxy.Locality{Region: parts[0], Zone: parts[1], SubZone: parts[2]}, w.entry.GetNetwork()
	case w.entry != nil:
		return proxy.Locality{}, w.entry.GetNetwork()
	}
	return proxy.Locality{}, ""
}

// onto returns p with what the workload says.
func (w *workload) onto(p *proxy.Proxy) *proxy.Proxy {
	on := *p
	fields := maps.Clone(p.Metadata.GetFields())
	if fields == nil {
		fields = make(map[string]*structpb.Value)
	}
	text := func(field, value string) {
		if delete(fields, field); value != "" {
			fields[field] = structpb.NewStringValue(value)
		}
	}
	on.Labels = w.labels
	delete(fields, "LABELS")
	if len(w.labels) > 0 {
		labels := &structpb.Struct{Fields: make(map[string]*structpb.Value, len(w.labels))}
		for name, value := range w.labels {
			labels.Fields[name] = structpb.NewStringValue(value)
		}
		fields["LABELS"] = structpb.NewStructValue(labels)
	}
	text("SERVICE_ACCOUNT", p.Identity.ServiceAccount)
	if w.pod == nil && w.entry == nil { // of a stranger
		text("CLUSTER_ID", "")
		on.ClusterID = ""
	}
	if w.Source == kubernetesSource {
		text("CLUSTER_ID", w.Instance)
		on.ClusterID = w.Instance
	}
	if w.pod != nil && w.pod.GetNode() != "" {
		text(nodeName, w.pod.GetNode())
	}
	locality, network := w.place()
	if network != "" {
		text("NETWORK", network)
	}
	if locality != (proxy.Locality{}) {
		on.Locality = locality
	}
	on.Metadata = &structpb.Struct{Fields: fields}
	return &on
}

// proves reports whether Locate may say something else of a proxy because w became
// o; either may be nil.
func (w *workload) proves(o *workload) bool {
	if w == nil || o == nil {
		return true
	}
	wasAt, wasIn := w.place()
	isAt, isIn := o.place()
	return w.account() != o.account() || wasAt != isAt || wasIn != isIn ||
		w.pod.GetNode() != o.pod.GetNode() || !maps.Equal(w.labels, o.labels) || !slices.Equal(w.addresses(), o.addresses())
}

// noteWorkload records that what the world knows of the proxies of a service
// account may have changed.
func (t *transition) noteWorkload(c change) {
	read := func(o *world.Object) *workload {
		if o == nil {
			return nil
		}
		return newWorkload(*o)
	}
	was, is := read(c.was), read(c.is)
	t.noteTargets(was, is)
	if was == nil && is == nil || !was.proves(is) {
		return
	}
	for _, w := range []*workload{was, is} {
		if w != nil && w.account() != "" {
			t.changed(WorkloadInput(c.Namespace, w.account()))
		}
	}
}

// WorkloadInput is the input for the workloads of a service account, which Locate
// reads.
func WorkloadInput(namespace, account string) Input {
	return Input{Kind: InputWorkloads, A: namespace, B: account}
}

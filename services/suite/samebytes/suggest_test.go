package samebytes

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"

	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/proto/ident"
	configv1 "meshlog.dev/proto/meshlog/config/v1"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
)

// grpcAgent is the name and version of the gRPC clients.
const grpcAgent = "gRPC Go/1.75.0"

// mostNames is how many Listeners a suggested gRPC client subscribes to.
const mostNames = 12

// suggestion collects, over all versions of a log, the properties of nodes that
// make a difference to what they are served.
type suggestion struct {
	namespaces, clusters, agents, raw map[string]bool
	gateways                          map[string]bool            // "namespace label=value ..."
	names                             map[string]map[string]bool // Listeners of gRPC clients, by namespace
}

// suggestNodes writes the nodes of a world that has none.
func suggestNodes(t *testing.T, w sample) {
	t.Helper()
	s := suggestion{map[string]bool{"default": true}, map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]map[string]bool{}}
	m := newMesh()
	if err := m.run(t.Context(), w.past, func() error { return s.look(m) }); err != nil {
		t.Fatal(err)
	}
	write(t, w.file(".nodes"), s.text())
}

func (s *suggestion) look(m *mesh) error {
	for row := range m.content.Rows() {
		key, overlay, err := ident.ParseRow(row.Key)
		switch {
		case err != nil:
		case overlay != "":
			o, err := world.UnmarshalOverlay(overlay, row.Value)
			if err != nil {
				return err
			}
			for _, v := range o.Values {
				if v.Resource != nil {
					name, version, _ := strings.Cut(v.Resource.Client, " ")
					s.agents[name+"/"+version] = true
				}
			}
		default:
			if key.Namespace != "" {
				s.namespaces[key.Namespace] = true
			}
			if key.Source == "kubernetes" {
				s.clusters[key.Instance] = true
			}
		}
	}
	for o := range m.world.Objects("Gateway") {
		if g, ok := o.Message.(*networking.Gateway); ok {
			s.gateways[words(o.Key.Namespace, "", g.GetSelector())] = true
		}
	}
	for o := range m.world.Objects("Resource") {
		if r, ok := o.Message.(*configv1.Resource); ok {
			s.raw[rawWords(r.GetNodes())] = true
		}
	}
	for ns := range s.namespaces {
		n, err := parseNode(grpcNode(ns))
		if err != nil {
			return err
		}
		c, err := m.join(n)
		if err != nil {
			return err
		}
		if s.names[ns] == nil {
			s.names[ns] = map[string]bool{}
		}
		for _, r := range m.served(c)[ident.LDS].resources {
			s.names[ns][r.Name] = true
		}
		c.client.Leave()
	}
	return nil
}

// words returns a text, followed by keys and values.
func words(first, prefix string, values map[string]string) string {
	for _, k := range slices.Sorted(maps.Keys(values)) {
		first += fmt.Sprintf(" %s%s=%s", prefix, k, values[k])
	}
	return first
}

// rawWords describes a node that a selector of raw resources matches.
func rawWords(s *configv1.NodeSelector) string {
	fields := map[string]string{}
	if s.GetCluster() != "" {
		fields["cluster"] = s.GetCluster()
	}
	if l := s.GetLocality(); l != nil {
		fields["locality"] = l.GetRegion() + "/" + l.GetZone() + "/" + l.GetSubZone()
	}
	if s.GetClient() == proxy.GRPC {
		fields["agent"] = strconv.Quote(grpcAgent)
	}
	metadata := map[string]string{}
	for k, v := range s.GetMetadata().GetFields() {
		switch v := v.AsInterface().(type) {
		case string:
			metadata[k] = v
		default:
			b, err := json.Marshal(v)
			if err != nil {
				panic(err)
			}
			metadata[k] = string(b)
		}
	}
	return words(words("", "%", fields), "@", metadata)
}

func sidecarNode(name, ip, ns string) string {
	return fmt.Sprintf("%s: sidecar~%s~app.%s~%s.svc.cluster.local", name, ip, ns, ns)
}

func grpcNode(ns string) string {
	return fmt.Sprintf(`grpc.%s: client @NAMESPACE=%s %%agent=%q`, ns, ns, grpcAgent)
}

func (s *suggestion) text() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# A sidecar and a gRPC client of each namespace.")
	namespaces := slices.Sorted(maps.Keys(s.namespaces))
	for _, ns := range namespaces {
		line("%s", sidecarNode("sidecar."+ns, "10.99.0.1", ns))
		line("%s", grpcNode(ns))
	}
	line("# Families of addresses.")
	line("%s", sidecarNode("six", "fd00::1", namespaces[len(namespaces)-1]))
	line("%s @INSTANCE_IPS=10.99.0.1,fd00::1", sidecarNode("dual", "10.99.0.1", namespaces[len(namespaces)-1]))
	if len(s.clusters) > 0 {
		line("# A sidecar in each Kubernetes cluster.")
	}
	for _, cluster := range slices.Sorted(maps.Keys(s.clusters)) {
		line("%s @CLUSTER_ID=%s", sidecarNode("sidecar-in."+cluster, "10.99.0.1", namespaces[len(namespaces)-1]), cluster)
	}
	line("# Routers: plain ones, and one of each Gateway's selector.")
	line("plain: edge-1")
	line("bare: edge-1 %%agent=")
	line("router: router~10.99.0.1~app.default~default.svc.cluster.local")
	for i, g := range slices.Sorted(maps.Keys(s.gateways)) {
		ns, labels, _ := strings.Cut(g, " ")
		line("router-%d: router~10.99.0.1~app.%s~%s.svc.cluster.local %s", i, ns, ns, labels)
	}
	for i, r := range slices.Sorted(maps.Keys(s.raw)) {
		if i == 0 {
			line("# A node of each selector of raw resources.")
		}
		line("raw-%d: edge-2%s", i, r)
	}
	for i, agent := range slices.Sorted(maps.Keys(s.agents)) {
		if i == 0 {
			line("# Clients for which something is in quarantine.")
		}
		line("%s %%agent=%q", sidecarNode(fmt.Sprintf("rejecting-sidecar-%d", i), "10.99.0.1", namespaces[len(namespaces)-1]), agent)
		line("rejecting-plain-%d: edge-1 %%agent=%q", i, agent)
	}
	for i, ns := range namespaces {
		names := slices.Sorted(maps.Keys(s.names[ns]))
		names = append(names[:min(len(names), mostNames)], "absent.example.com:80")
		if i == 0 {
			line("# gRPC clients that ask by name.")
		}
		line("%s %%names=%s", strings.Replace(grpcNode(ns), "grpc.", "grpc-names.", 1), strings.Join(names, ","))
	}
	return b.String()
}

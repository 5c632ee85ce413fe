package cli

import (
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"
	"sigs.k8s.io/yaml"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/world"
	"meshlog.dev/services/mesh/xds"
)

// servedSets is what a proxy is served.
type servedSets struct {
	sets        [ident.ResourceTypes]*xds.Set
	quarantined [ident.ResourceTypes][]string // names of which it has something else, or nothing
}

// servedTo makes what a frontend would serve p at w, from nothing.
func servedTo(w *world.World, p *proxy.Proxy) servedSets {
	pc := index.NewPushContext(w)
	catalog, class := xds.NewCatalog(pc), index.Classify(pc, p)
	var s servedSets
	for t := range ident.ResourceTypes {
		made := catalog.Set(class.Only(t), t)
		s.sets[t], s.quarantined[t] = catalog.Replace(t, made, pc.Replacements(t, class.Release(t)))
	}
	return s
}

// resourceDocument is a resource as JSON, as Envoy's config dump would show it.
func resourceDocument(t ident.ResourceType, r *xds.Resource) (json.RawMessage, error) {
	m, err := resourceMessage(t, r)
	if err != nil {
		return nil, err
	}
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", t.Message(), r.Name, err)
	}
	return b, nil
}

func resourceMessage(t ident.ResourceType, r *xds.Resource) (proto.Message, error) {
	of, err := protoregistry.GlobalTypes.FindMessageByURL(t.URL())
	if err != nil {
		return nil, err
	}
	m := of.New().Interface()
	if err := proto.Unmarshal(r.Value(), m); err != nil {
		return nil, fmt.Errorf("%s %s: %w", t.Message(), r.Name, err)
	}
	return m, nil
}

// typeArgument is the type that somebody names on the command line.
func typeArgument(s string) (ident.ResourceType, error) {
	for t := range ident.ResourceTypes {
		message := strings.ToLower(t.Message())
		names := []string{strings.ToLower(t.String()), message, message + "s"}
		switch t {
		case ident.EDS:
			names = append(names, "endpoint", "endpoints")
		case ident.RDS:
			names = append(names, "route", "routes")
		}
		if slices.Contains(names, strings.ToLower(s)) {
			return t, nil
		}
	}
	return 0, usage("type %q: want clusters, endpoints, listeners or routes", s)
}

// readNode reads a node from a file: Envoy's bootstrap, of which it is the field
// "node", or the node itself; YAML or JSON. An id that is not empty takes the
// place of the node's.
func readNode(file, id string) (*corev3.Node, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, usage("--node: %w", err)
	}
	node, err := parseNode(b)
	if err != nil {
		return nil, usage("--node %s: %w", file, err)
	}
	if id != "" {
		node.Id = id
	}
	if node.GetId() == "" {
		return nil, usage("--node %s: it names no id; give that of the proxy before the flags, as Envoy is given --service-node", file)
	}
	return node, nil
}

func parseNode(b []byte) (*corev3.Node, error) {
	j, err := yaml.YAMLToJSON(b)
	if err != nil {
		return nil, err
	}
	var bootstrap struct {
		Node json.RawMessage `json:"node"`
	}
	if err := json.Unmarshal(j, &bootstrap); err != nil {
		return nil, fmt.Errorf("is neither Envoy's bootstrap nor a node: %w", err)
	}
	if bootstrap.Node != nil {
		j = bootstrap.Node
	}
	node := new(corev3.Node)
	if err := (protojson.UnmarshalOptions{DiscardUnknown: bootstrap.Node != nil}).Unmarshal(j, node); err != nil {
		return nil, fmt.Errorf("is neither Envoy's bootstrap with a node nor a node: %w", err)
	}
	return node, nil
}

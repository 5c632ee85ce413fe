package bootstrap

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/re2"
)

// Node describes the workload that the Envoy is for.
type Node struct {
	Type      proxy.Type
	Name      string // of the workload: its pod, machine or container
	Namespace string
	Account   string // service account; empty: the frontend goes by the certificate
	IPs       []string
	Domain    string // DNS domain; empty: NAMESPACE.svc.cluster.local
	Cluster   string // node.cluster; empty: the label app, else the name
	Labels    map[string]string
	Locality  proxy.Locality
	// Variables are those of the environment, NAME=VALUE. ISTIO_META_NAME sets metadata
	// NAME, and ISTIO_METAJSON_NAME sets it to a value in JSON.
	Variables []string
}

// Prefixes of variables that set metadata.
const (
	metaPrefix     = "ISTIO_META_"
	metaJSONPrefix = "ISTIO_METAJSON_"
)

// Build returns the node in Istio's format.
func (n Node) Build() (*corev3.Node, error) {
	fields, err := n.metadata()
	if err != nil {
		return nil, err
	}
	metadata, err := structpb.NewStruct(fields)
	if err != nil {
		return nil, fmt.Errorf("the metadata of the node: %w", err)
	}
	ip := "127.0.0.1"
	if len(n.IPs) > 0 {
		ip = n.IPs[0]
	}
	domain := n.Domain
	if domain == "" {
		domain = n.Namespace + ".svc.cluster.local"
	}
	node := &corev3.Node{
		Id:       strings.Join([]string{string(n.Type), ip, n.Name + "." + n.Namespace, domain}, "~"),
		Cluster:  n.cluster(),
		Metadata: metadata,
	}
	if n.Locality != (proxy.Locality{}) {
		node.Locality = &corev3.Locality{Region: n.Locality.Region, Zone: n.Locality.Zone, SubZone: n.Locality.SubZone}
	}
	return node, nil
}

func (n Node) cluster() string {
	app := n.Labels["app"]
	switch {
	case n.Cluster != "":
		return n.Cluster
	case app != "":
		return app + "." + n.Namespace
	}
	return n.Name + "." + n.Namespace
}

// metadata returns the metadata. What the agent knows itself wins over variables, but for
// labels, which are added to those of ISTIO_METAJSON_LABELS.
func (n Node) metadata() (map[string]any, error) {
	fields := map[string]any{"INTERCEPTION_MODE": "NONE"}
	for _, v := range n.Variables {
		name, value, _ := strings.Cut(v, "=")
		if key, ok := strings.CutPrefix(name, metaPrefix); ok && key != "" {
			fields[key] = value
		}
		if key, ok := strings.CutPrefix(name, metaJSONPrefix); ok && key != "" {
			var decoded any
			if err := json.Unmarshal([]byte(value), &decoded); err != nil {
				return nil, fmt.Errorf("the variable %s is no JSON: %w", name, err)
			}
			fields[key] = decoded
		}
	}
	labels, ok := fields["LABELS"].(map[string]any)
	if fields["LABELS"] != nil && !ok {
		return nil, fmt.Errorf("the variable %sLABELS is no map", metaJSONPrefix)
	}
	if labels == nil {
		labels = map[string]any{}
	}
	for name, value := range n.Labels {
		labels[name] = value
	}
	fields["LABELS"] = labels
	fields["NAMESPACE"], fields["NAME"] = n.Namespace, n.Name
	fields["SDS_CLUSTER"] = proxySDSCluster
	fields["RE2_MAX_PROGRAM_SIZE"] = re2.Raised
	if n.Account != "" {
		fields["SERVICE_ACCOUNT"] = n.Account
	}
	if len(n.IPs) > 0 {
		fields["INSTANCE_IPS"] = strings.Join(n.IPs, ",")
	}
	return fields, nil
}

// ReadLabels reads the file that Kubernetes writes for the labels of a pod (downward API):
// lines of NAME="VALUE", quoted as in Go.
func ReadLabels(text string) (map[string]string, error) {
	labels := map[string]string{}
	for i, line := range slices.Collect(strings.Lines(text)) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		name, quoted, ok := strings.Cut(line, "=")
		value, err := strconv.Unquote(quoted)
		if !ok || err != nil || name == "" {
			return nil, fmt.Errorf("line %d of the labels is not NAME=\"VALUE\"", i+1)
		}
		labels[name] = value
	}
	return labels, nil
}

// ParseLabels reads labels as flags have them: NAME=VALUE each.
func ParseLabels(pairs []string) (map[string]string, error) {
	labels := map[string]string{}
	for _, p := range pairs {
		name, value, ok := strings.Cut(p, "=")
		if !ok || name == "" {
			return nil, fmt.Errorf("%q is not NAME=VALUE", p)
		}
		labels[name] = value
	}
	return labels, nil
}

// Merge returns labels of both; those of over win.
func Merge(labels, over map[string]string) map[string]string {
	all := maps.Clone(labels)
	if all == nil {
		all = map[string]string{}
	}
	maps.Copy(all, over)
	return all
}

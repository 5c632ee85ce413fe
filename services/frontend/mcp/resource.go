package mcp

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
	mcp "istio.io/api/mcp/v1alpha1"
	networking "istio.io/api/networking/v1alpha3"
	security "istio.io/api/security/v1beta1"
	typev1beta1 "istio.io/api/type/v1beta1"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/kind"
	"meshlog.dev/services/mesh/world"
)

const (
	resourceType = "type.googleapis.com/istio.mcp.v1alpha1.Resource"
	policyType   = "type.googleapis.com/istio.security.v1beta1.AuthorizationPolicy"
	// resources is the field of a DiscoveryResponse.
	resources = 2
	// versionBytes is how much of the hash of a resource's content is its version.
	versionBytes = 8
)

// entry is a resource, encoded. It is immutable and shared by all sets.
type entry struct {
	name string // NAMESPACE/NAME
	// What decides whether a sink gets it.
	source, kind, namespace string
	kubernetes              bool // a Service of Kubernetes

	sum   [sha256.Size]byte // of name and content
	bytes []byte            // the field resources
}

// encode makes an entry. Its version is a hash of its content, so that it is the same on all
// frontends (MCP-14).
func (e entry) encode(meta *mcp.Metadata, body *anypb.Any) *entry {
	meta.Name = e.name
	r := &mcp.Resource{Metadata: meta, Body: body}
	e.sum = sha256.Sum256(marshal(r))
	meta.Version = hex.EncodeToString(e.sum[:versionBytes])
	b := marshal(&anypb.Any{TypeUrl: resourceType, Value: marshal(r)})
	e.bytes = protowire.AppendBytes(protowire.AppendTag(make([]byte, 0, len(b)+8), resources, protowire.BytesType), b)
	return &e
}

func marshal(m proto.Message) []byte {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("a %T of what was decoded cannot fail to marshal: %v", m, err))
	}
	return b
}

// created returns a creation time on the wire; none stays none.
func created(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// entryOf returns the entry of an object; nil: there is nothing to send. hosts are those that
// a ServiceEntry has won.
func entryOf(o world.Object, k *kind.Kind, hosts []string) *entry {
	e := entry{name: o.Key.Namespace + "/" + o.Key.Name, source: o.Key.Source, kind: o.Key.Kind, namespace: o.Key.Namespace}
	meta := &mcp.Metadata{CreateTime: created(o.Created)}
	body := &anypb.Any{TypeUrl: k.TypeURL, Value: o.Value.Bytes}
	switch m := o.Message.(type) {
	case *kind.DryRun:
		body = m.GetPolicy()
		if !m.Enforced() {
			meta.Annotations = map[string]string{kind.DryRunAnnotation: "true"}
		}
	case *kind.ProxyKeys:
		body = m.GetPolicy()
		meta.Annotations = map[string]string{kind.KeysAnnotation: kind.ByProxies}
	case *registryv1.Closed:
		if o.Key.Kind != policyKind {
			e.name += "." + strings.ToLower(o.Key.Kind)
		}
		body = &anypb.Any{TypeUrl: policyType, Value: marshal(deny(m))}
	case *networking.ServiceEntry:
		switch {
		case len(hosts) == 0:
			return nil
		case len(hosts) < len(m.GetHosts()):
			own := proto.CloneOf(m)
			own.Hosts = hosts
			body.Value = marshal(own)
		}
	}
	return e.encode(meta, body)
}

// targetGroups are the groups of the kinds that a policy may target.
var targetGroups = map[string]string{
	"Gateway": "gateway.networking.k8s.io", "GatewayClass": "gateway.networking.k8s.io", "ServiceEntry": "networking.istio.io",
}

// deny returns the AuthorizationPolicy for a policy of which no value was ever good: it denies
// all that the policy selects, as proxies of this mesh do (POL-15).
func deny(m *registryv1.Closed) *security.AuthorizationPolicy {
	p := &security.AuthorizationPolicy{Action: security.AuthorizationPolicy_DENY, Rules: []*security.Rule{{}}}
	for _, t := range m.GetTargets() {
		p.TargetRefs = append(p.TargetRefs, &typev1beta1.PolicyTargetReference{Group: targetGroups[t.GetKind()], Kind: t.GetKind(), Name: t.GetName()})
	}
	if len(p.GetTargetRefs()) == 0 && len(m.GetMatchLabels()) > 0 {
		p.Selector = &typev1beta1.WorkloadSelector{MatchLabels: m.GetMatchLabels()}
	}
	return p
}

// ownHosts returns the hosts of a ServiceEntry that it defines: one that belongs to another
// source must not get endpoints of this one through a sink either (AGG-2).
func ownHosts(o world.Object, pc *index.PushContext) []string {
	m, ok := o.Message.(*networking.ServiceEntry)
	if !ok {
		return nil
	}
	for i, host := range m.GetHosts() {
		if pc.Defines(o.Key, host) {
			continue
		}
		own := append([]string{}, m.GetHosts()[:i]...)
		for _, host := range m.GetHosts()[i+1:] {
			if pc.Defines(o.Key, host) {
				own = append(own, host)
			}
		}
		return own
	}
	return m.GetHosts()
}

package inspect

import (
	"context"
	"fmt"
	"net"
	"slices"
	"strconv"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/builder/ledger"
	"meshlog.dev/services/mesh/index"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/xds/policy"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
	"meshlog.dev/store"
)

// securityView is what protects the workload of a proxy at the version that its frontend
// serves.
type securityView struct {
	Inbound  []inboundView `json:"inbound"` // absent for proxies without a workload of their own
	Policies []slotView    `json:"policies"`
}

// inboundView is a port of a workload.
type inboundView struct {
	Port    uint32 `json:"port,omitempty"` // absent: all ports that have no line of their own
	Mode    string `json:"mode"`
	By      string `json:"by,omitempty"`      // the PeerAuthentication; absent: none selects the port
	Service string `json:"service,omitempty"` // HOST:PORT that names it
	// Closed: the proxy has no certificate, so it refuses every connection to the port.
	Closed bool `json:"closed,omitempty"`
}

// slotView is a slot of policies.
type slotView struct {
	Slot     string       `json:"slot"`
	Policies []policyView `json:"policies"`
}

type policyView struct {
	Object string `json:"object"` // NAMESPACE/NAME
	DryRun bool   `json:"dryRun,omitempty"`
	Closed bool   `json:"closed,omitempty"` // no value of it was ever good, so it refuses what it selects
}

// slots are the slots in the order in which they run.
var slots = []string{"custom", "jwt", "audit", "deny", "allow"}

// addSecurity adds to each stream of one proxy what protects its workload, or why that is
// not known: all else about the stream is.
func addSecurity(ctx context.Context, e *command.Env, views []ProxyView) {
	p, err := e.Past(ctx)
	var replies []*reportv1.ProxyReply
	if err == nil {
		q := command.ProxyQuery{ID: views[0].ID}
		replies, _, err = q.Ask(ctx, e.Target, p)
	}
	setSecurity(views, replies, func(r *reportv1.ProxyReply) (*securityView, error) { return securityOf(ctx, p, r) }, err)
}

// setSecurity sets what protects the proxies that frontends describe. asked is why they do
// not; nil: they do.
func setSecurity(views []ProxyView, replies []*reportv1.ProxyReply, of func(*reportv1.ProxyReply) (*securityView, error), asked error) {
	for i := range views {
		v := &views[i]
		if asked != nil {
			v.SecurityError = asked.Error()
			continue
		}
		at := slices.IndexFunc(replies, func(r *reportv1.ProxyReply) bool {
			return r.GetFrontend() == v.Frontend && streamName(r.GetReport()) == v.Stream
		})
		if at < 0 || store.VersionOf(replies[at].GetVersion()).IsZero() {
			continue // it has just connected
		}
		var err error
		if v.Security, err = of(replies[at]); err != nil {
			v.SecurityError = fmt.Sprintf("the version %s that %s serves cannot be read: %v", store.VersionOf(replies[at].GetVersion()), v.Frontend, err)
		}
	}
}

// securityOf returns what protects a proxy that a frontend describes.
func securityOf(ctx context.Context, p *past.Past, r *reportv1.ProxyReply) (*securityView, error) {
	content, err := past.At(ctx, p, store.VersionOf(r.GetVersion()))
	if err != nil {
		return nil, err
	}
	w, err := ledger.World(content.Snapshot)
	if err != nil {
		return nil, err
	}
	of, err := command.ProxyOf(r)
	if err != nil {
		return nil, err
	}
	return viewSecurity(index.NewPushContext(w), of), nil
}

// viewSecurity returns what protects a proxy; nil for one that policies do not reach: a
// gRPC client, or a router without Gateways.
func viewSecurity(pc *index.PushContext, p *proxy.Proxy) *securityView {
	class := index.Classify(pc, p)
	sidecar := p.Type == proxy.Sidecar && !p.GRPC
	if p.WantsNames() || !sidecar && (p.GRPC || class.LDS.Gateways == "") {
		return nil
	}
	v := &securityView{Inbound: []inboundView{}, Policies: []slotView{}}
	if sidecar {
		v.inbound(pc.Read().PeerModes(p.Namespace, p.Labels), class.LDS, p.Certificates() == (proxy.Certificates{}))
	}
	members := policy.Members(pc.Read(), class.ECDS)
	for _, name := range slots {
		slot := slotView{Slot: name, Policies: []policyView{}}
		for _, m := range members {
			if m.Slot == name {
				slot.Policies = append(slot.Policies, policyView{keyName(m.Key), m.DryRun, m.Closed})
			}
		}
		v.Policies = append(v.Policies, slot)
	}
	return v
}

// inbound sets the ports. Bare: the proxy has no certificate.
func (v *securityView) inbound(modes index.PeerModes, class index.LDSClass, bare bool) {
	for _, in := range class.Inbound.Ports() {
		if !listens(class, in) {
			continue
		}
		port := inboundView{Port: in.Port, Mode: in.Mode.String(), By: keyName(modes.By(in.Port)), Closed: bare && in.Mode == index.PeerStrict}
		if in.Service != (index.ServiceID{}) {
			port.Service = net.JoinHostPort(in.Service.Hostname, strconv.FormatUint(uint64(in.ServicePort), 10))
		}
		if !slices.Contains(v.Inbound, port) { // a port may have several protocols
			v.Inbound = append(v.Inbound, port)
		}
	}
	if !class.Bind { // without redirection other ports are not the proxy's
		v.Inbound = append(v.Inbound, inboundView{
			Mode: modes.Default.String(), By: keyName(modes.By(0)), Closed: bare && modes.Default == index.PeerStrict,
		})
	}
}

// show shows the ports and the slots.
func (v *securityView) show(out *command.Output) {
	if len(v.Inbound) > 0 {
		t := command.Rows{Head: []string{"INBOUND", "MODE", "SET BY", "SERVICE"}}
		for _, p := range v.Inbound {
			port := "other ports"
			if p.Port != 0 {
				port = strconv.FormatUint(uint64(p.Port), 10)
			}
			mode := command.Cell{Text: p.Mode}
			if p.Closed {
				mode = command.Cell{Text: p.Mode + ", closed: no certificate", Color: command.Red}
			}
			by := "default"
			if p.By != "" {
				by = "PeerAuthentication " + p.By
			}
			t.Add(port, mode, by, p.Service)
		}
		out.Line("")
		out.Rows(&t)
	}
	t := command.Rows{Head: []string{"SLOT", "POLICY", "STATE"}}
	for _, s := range v.Policies {
		for _, p := range s.Policies {
			state := command.Cell{Text: "enforced", Color: command.Green}
			switch {
			case p.Closed:
				state = command.Cell{Text: "invalid: it refuses all that it selects", Color: command.Red}
			case p.DryRun:
				state = command.Cell{Text: "dry run", Color: command.Yellow}
			}
			t.Add(s.Slot, p.Object, state)
		}
		if len(s.Policies) == 0 {
			t.Add(s.Slot, "", "")
		}
	}
	out.Line("")
	out.Rows(&t)
}

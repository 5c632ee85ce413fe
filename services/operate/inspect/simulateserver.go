package inspect

import (
	"cmp"
	"context"
	"errors"
	"net/netip"
	"strings"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/mesh/proxy"
	"meshlog.dev/services/mesh/simulate"
	"meshlog.dev/services/mesh/spiffe"
	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/past"
)

// mostServers bounds the workloads of one call that are simulated.
const mostServers = 10

// serverView is what the sidecar of a workload does with a call that a client's proxy
// forwards.
type serverView struct {
	Endpoint string `json:"endpoint"`
	Proxy    string `json:"proxy,omitempty"` // empty: none with the address is known
	// Client is the identity that the client shows; empty: it calls in plain text.
	Client  string            `json:"client,omitempty"`
	Outcome *simulate.Outcome `json:"outcome,omitempty"`
	// Problem says why the client sends nothing, or what the simulation cannot tell.
	Problem string `json:"problem,omitempty"`
}

// servers simulates a call at the workloads to which a proxy forwards it.
type servers struct {
	*command.Env
	past     *past.Past
	at       ident.Position
	proxy    *proxy.Proxy // of the client
	file     string       // with the node of the server; "": it is one that is connected
	client   string       // its identity, if it is known
	from     netip.Addr
	given    *proxy.Proxy // that of file
	byIP     map[netip.Addr]string
	identity map[string]string // by id of a connected proxy
}

// find finds out who the client is, and reads the server's node in a file, if there is one.
// Otherwise it lists the proxies that are connected.
func (s *servers) find(ctx context.Context, trustDomain string) (err error) {
	if own := s.proxy.Addresses(); len(own) > 0 {
		s.from = own[0]
	}
	if s.file != "" {
		q := command.ProxyQuery{File: s.file}
		if s.given, err = q.Find(ctx, s.Target, s.past); err != nil {
			return err
		}
	}
	if err := s.connected(ctx); err != nil {
		return err
	}
	s.client = cmp.Or(s.identity[s.proxy.ID], named(s.proxy, trustDomain))
	return nil
}

// connected lists the proxies that are connected.
func (s *servers) connected(ctx context.Context) error {
	s.byIP, s.identity = map[netip.Addr]string{}, map[string]string{}
	if s.given != nil {
		return nil
	}
	know := func(p *reportv1.ProxyReport) {
		s.identity[p.GetId()] = p.GetIdentity()
		if parts := strings.Split(p.GetId(), "~"); len(parts) == 4 && parts[0] == string(proxy.Sidecar) {
			if ip, err := netip.ParseAddr(parts[1]); err == nil {
				s.byIP[ip.Unmap()] = p.GetId()
			}
		}
	}
	if !s.past.Live {
		return s.archived(ctx, know)
	}
	reports, err := s.Target.Reports(ctx, bus.Proxies)
	if err != nil {
		return err
	}
	for _, f := range reports.Frontends {
		for _, p := range f.GetProxies() {
			know(p)
		}
	}
	return nil
}

// archived lists the proxies that an archive holds.
func (s *servers) archived(ctx context.Context, know func(*reportv1.ProxyReport)) error {
	if s.past.Nodes == nil {
		return nil
	}
	nodes, err := s.past.Nodes(ctx)
	if errors.Is(err, past.ErrNoNodes) {
		return nil
	}
	for _, r := range nodes {
		know(r.GetReport())
	}
	return err
}

// follow simulates a call of a proxy at each endpoint that it may reach.
func (s *servers) follow(ctx context.Context, p *simulate.Proxy, o simulate.Outcome, trustDomain string) (all []serverView, err error) {
	if err := s.find(ctx, trustDomain); err != nil {
		return nil, err
	}
	for _, to := range o.To {
		for _, endpoint := range to.Endpoints {
			if len(all) == mostServers {
				return all, nil
			}
			v := serverView{Endpoint: endpoint}
			if err := s.serve(ctx, p, o, to.Cluster, &v); err != nil {
				return nil, err
			}
			all = append(all, v)
		}
	}
	return all, nil
}

// serve simulates a call at one endpoint.
func (s *servers) serve(ctx context.Context, p *simulate.Proxy, o simulate.Outcome, cluster string, v *serverView) error {
	c, err := p.Onward(o, cluster, v.Endpoint, simulate.Peers{Client: s.client})
	if err != nil {
		v.Problem = err.Error()
		return nil
	}
	server, err := s.server(ctx, c.Address)
	if err != nil || server == nil {
		return err
	}
	v.Proxy = server.ID
	served, err := command.ServedTo(ctx, s.past, s.at, server)
	if err != nil {
		return err
	}
	simulated, err := simulate.NewProxy(served.Sets)
	if err != nil {
		return err
	}
	peers := simulate.Peers{Client: s.client, Server: cmp.Or(s.identity[server.ID], named(server, served.TrustDomain))}
	if c, err = p.Onward(o, cluster, v.Endpoint, peers); err != nil {
		v.Problem = err.Error()
		return nil
	}
	if c.Certificate != nil {
		v.Client = peers.Client
	}
	c.From = s.from
	outcome := simulated.Call(c)
	v.Outcome = &outcome
	return nil
}

// server returns the sidecar with an address; nil: none is known.
func (s *servers) server(ctx context.Context, at netip.Addr) (*proxy.Proxy, error) {
	if s.given != nil {
		for _, own := range s.given.Addresses() {
			if own == at {
				return s.given, nil
			}
		}
		return nil, nil
	}
	id := s.byIP[at.Unmap()]
	if id == "" {
		return nil, nil
	}
	q := command.ProxyQuery{ID: id}
	return q.Find(ctx, s.Target, s.past)
}

// named returns the identity that a node names: its namespace and SERVICE_ACCOUNT. A stream
// without a certificate has no better one.
func named(p *proxy.Proxy, trustDomain string) string {
	id, err := spiffe.New(trustDomain, p.Namespace, p.Text("SERVICE_ACCOUNT"))
	if err != nil {
		return ""
	}
	return id.String()
}

// failure says why the call does not reach a workload's application; "": it does, or no
// sidecar is known there.
func (v *serverView) failure() string {
	switch o := v.Outcome; {
	case v.Problem != "":
		return "unknown"
	case o == nil:
		return ""
	case o.Unknown != "":
		return "unknown"
	case o.Refused, o.Closed:
		return "refused"
	}
	return ""
}

func (v *serverView) show(out *command.Output) {
	switch {
	case v.Problem != "":
		out.Line("at %s: %s", v.Endpoint, v.Problem)
	case v.Outcome == nil:
		out.Line("at %s: no sidecar with that address is known", v.Endpoint)
	default:
		how := "in plain text"
		if v.Client != "" {
			how = "by mutual TLS as " + v.Client
		}
		out.Line("at %s, %s, %s:", v.Endpoint, v.Proxy, how)
		for _, line := range v.Outcome.Lines() {
			out.Line("  %s", line)
		}
	}
}

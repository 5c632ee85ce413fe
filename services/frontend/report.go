package frontend

import (
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend/replica"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/store"
)

// Report returns all that the frontend reports, as a copy.
func (s *Server) Report() *reportv1.FrontendReport {
	conns := s.sortedStreams()
	r := s.report(conns)
	for _, c := range conns {
		r.Proxies = append(r.Proxies, c.report())
	}
	for _, c := range s.sinks.list() {
		r.Sinks = append(r.Sinks, c.report())
	}
	return r
}

// Summary returns Report without the proxies: a few hundred bytes, at a few
// hundred nanoseconds a stream.
func (s *Server) Summary() *reportv1.FrontendReport {
	r := s.report(s.openStreams())
	r.Summary = true
	return r
}

// report returns what does not grow with the number of streams.
func (s *Server) report(conns []*conn) *reportv1.FrontendReport {
	r := &reportv1.FrontendReport{
		Frontend: s.cfg.ID, Build: s.cfg.Build, Time: timestamppb.Now(),
		Persisted: s.replica.Persisted(),
		Streams:   uint32(len(conns)),
	}
	st := s.serving.Load()
	running := runningRollout(st)
	applied, reached := map[ident.Position]uint32{}, map[ident.Position]uint32{}
	var rejectors []rejector
	for _, c := range conns {
		v, rejects := c.answers()
		applied[v]++
		rejectors = append(rejectors, rejects...)
		if running != nil && c.client.Class().Pin(ident.CDS) == "" {
			reached[v]++
			running.Streams++
		}
	}
	r.Applied, r.Verdicts = appliedReport(applied), s.verdictReports(conns, rejectors)
	if st != nil {
		root := st.Root()
		r.Serving, r.Root = store.VersionProto(st.Version()), root[:]
	}
	if r.Reached = running; running != nil {
		running.Applied = appliedReport(reached)
	}
	r.BusConnected = s.cfg.Chain != nil
	if s.cfg.Connected != nil {
		r.BusConnected = s.cfg.Connected()
	}
	if s.cfg.Away != nil {
		if since, err := s.cfg.Away(); err != nil {
			r.Away, r.AwayReason = timestamppb.New(since), strings.ToValidUTF8(err.Error(), "?")
		}
	}
	s.rootsReport(conns, r)
	s.mu.Lock()
	defer s.mu.Unlock()
	r.Leaving = s.draining
	r.ChainMismatch = mismatchReport(s.mismatch)
	return r
}

// runningRollout returns the rollout that runs in a version, without streams; nil: none.
func runningRollout(st *replica.State) *reportv1.Reached {
	if st == nil {
		return nil
	}
	for _, o := range st.World.Views() {
		if o.Rollout != nil {
			return &reportv1.Reached{Rollout: o.ID, Step: uint32(o.Rollout.Step)}
		}
	}
	return nil
}

// appliedReport returns how many streams have applied each version, the newest
// first.
func appliedReport(count map[ident.Position]uint32) []*reportv1.Applied {
	var report []*reportv1.Applied
	for _, v := range slices.SortedFunc(maps.Keys(count), func(a, b ident.Position) int { return b.Compare(a) }) {
		report = append(report, &reportv1.Applied{Version: store.VersionProto(v), Streams: count[v]})
	}
	return report
}

// answers returns the version that the client has applied in all of its types
// (zero: none) and the rejections that stand.
func (c *conn) answers() (applied ident.Position, rejects []rejector) {
	c.withState(func(state *stream.Stream) {
		var all bool
		if applied, all = state.Applied(); all {
			applied = c.client.Version() // newer than the last View if nothing changed for the client
			return                       // nothing is held back
		}
		for _, r := range state.Rejections() {
			rejects = append(rejects, rejector{c, c.client.Class(), r})
		}
	})
	return applied, rejects
}

func mismatchReport(m *store.MismatchError) *reportv1.ChainMismatch {
	if m == nil {
		return nil
	}
	return &reportv1.ChainMismatch{
		Own: store.VersionProto(m.Have), OwnRoot: m.Root[:], Head: store.VersionProto(m.Head), HeadRoot: m.HeadRoot[:],
	}
}

// clientReport returns what is reported of the client and its connection.
func (c *conn) clientReport() *reportv1.ProxyReport {
	p := &reportv1.ProxyReport{
		Id: c.proxy.ID, Cluster: c.proxy.Cluster, Type: string(c.proxy.Type), Namespace: c.proxy.Namespace,
		UserAgent: c.proxy.UserAgent, ConnectedSince: timestamppb.New(c.since), Address: c.address,
		Identity: c.id.name, CertificateSerial: c.id.serial, CertificateBegins: timestamp(c.id.begins), CertificateEnds: timestamp(c.id.ends),
	}
	if c.id.name != "" {
		p.CertificateShown = timestamp(c.meter.began)
	}
	return p
}

func (c *conn) report() *reportv1.ProxyReport {
	p := c.clientReport()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == nil {
		return p // connected just now
	}
	if class := c.client.Class(); c.group == "" || class != c.class {
		c.class, c.group = class, class.String()
	}
	p.Group = c.group
	p.Delta = c.mode.delta
	if c.mode.only != nil {
		p.Only = c.mode.only.URL()
	}
	has := c.client.Version() // newer than the last View if nothing changed for the client
	st := c.state.Status()
	p.Lingering = uint32(st.Lingering)
	roots, gets := c.applied(c.state)
	p.GetsRoots, p.Roots = gets, roots.list()
	for _, t := range st.Types {
		if t.SentAll {
			t.Sent = has
		}
		if t.AckedAll {
			t.Acked = has
		}
		r := typeReport(t)
		r.Quarantined = firstNames(st.View.Quarantined[t.Type])
		if t.Type == ident.SDS {
			unknown, keyless := c.state.LackingSecrets()
			r.UnknownSecrets, r.MissingKeys = firstNames(unknown), firstNames(keyless)
		}
		p.Types = append(p.Types, r)
	}
	return p
}

// firstNames limits the names that are reported of a type.
func firstNames(names []string) []string { return names[:min(len(names), 100)] }

func typeReport(t stream.TypeStatus) *reportv1.TypeReport {
	return &reportv1.TypeReport{
		TypeUrl: t.Type.URL(), Sent: store.VersionProto(t.Sent), Acked: store.VersionProto(t.Acked),
		SentVersion: t.SentVersion, AckedVersion: t.AckedVersion,
		SentTime: timestamp(t.SentTime), AckedTime: timestamp(t.AckedTime),
		Resources: uint32(t.Resources), HeldBack: firstNames(t.HeldBack),
		Unanswered: timestamp(t.Unanswered), TooLarge: t.TooLarge, Nack: t.Nack, WaitsForKeys: firstNames(t.WaitsForKeys),
	}
}

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// observe counts and logs what happens on a stream; mu is held.
func (c *conn) observe(e stream.Event) {
	m := c.server.cfg.Metrics
	warn := func(message string, args ...any) {
		c.server.streamLog.Warn(message, append([]any{"proxy", c.proxy.ID}, args...)...)
	}
	switch e.Kind {
	case stream.Acked:
		if !e.Published.IsZero() {
			by := c.server.recent.find(e.World)
			m.acked(e.Type, e.Sent, by)
			if by != nil {
				by.trace.answer(c.proxy.ID, false)
			}
		}
		c.toReport = true
	case stream.Nacked:
		m.rejects[e.Type].Inc()
		if by := c.server.recent.find(e.World); by != nil {
			by.trace.answer(c.proxy.ID, true)
		}
		warn("the proxy rejected a response", "type", e.Type.String(), "version", e.Nack.Version,
			"world", e.World, "resources", e.Nack.Resources, "message", e.Nack.Message)
		c.toReport = true
		if c.server.urgent() {
			c.server.cfg.OnChange(true)
		}
	case stream.Stale:
		m.stale[e.Type].Inc()
	case stream.Unsupported:
		m.unsupported.Inc()
		c.server.streamLog.Debug("the proxy requested a type that is not served", "proxy", c.proxy.ID, "type", e.Detail)
	case stream.Downgrade:
		m.downgrades.Inc()
		warn("the proxy names versions that are unknown here, and the bus cannot tell the head of the version chain; serving the local version, which may be older")
	case stream.Unmatched:
		m.unmatched.Inc()
		c.server.streamLog.Debug("the proxy's clusters match no retained version; the clusters of all of them stay with it for the linger", "proxy", c.proxy.ID)
	case stream.Suspect:
		m.suspects.Inc()
		warn("the proxy has not answered CDS, or not requested it; sending CDS again")
	case stream.Retaken:
		m.retaken.Inc()
		warn("the proxy has not answered new clusters; removing them and offering them again")
	case stream.TooLarge:
		m.tooLarge[e.Type].Inc()
		warn("a response is too large for a gRPC client and is not sent: let the client import less", "type", e.Type.String(), "bytes", e.Size)
	}
}

// Proxy returns, for each stream of a proxy, what it was sent and its report,
// as copies; nil: the proxy is not connected here.
func (s *Server) Proxy(id string) []*reportv1.ProxyReply {
	var replies []*reportv1.ProxyReply
	for _, c := range s.openStreams() {
		if c.proxy.ID == id {
			replies = append(replies, c.reply())
		}
	}
	return replies
}

func (c *conn) reply() *reportv1.ProxyReply {
	r := &reportv1.ProxyReply{Frontend: c.server.cfg.ID, Report: c.report()}
	located := c.proxy
	c.withState(func(state *stream.Stream) {
		located = c.client.Proxy()
		r.Version = store.VersionProto(c.client.Version())
		r.Types = state.Contents()
	})
	if node, err := proto.Marshal(located.Node()); err == nil { // it came from the wire
		r.Node = node
	}
	return r
}

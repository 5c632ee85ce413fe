package frontend

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/store"
)

// Report says everything that the frontend has to say. It is the caller's.
func (s *Server) Report() *reportv1.FrontendReport {
	r := &reportv1.FrontendReport{
		Frontend: s.cfg.ID, Build: s.cfg.Build, Time: timestamppb.Now(),
		Persisted: s.replica.Persisted(),
	}
	if st := s.replica.State(); st != nil {
		root := st.Root()
		r.Serving, r.Root = st.Version().Proto(), root[:]
	}
	r.BusConnected = s.cfg.Chain != nil
	if s.cfg.Connected != nil {
		r.BusConnected = s.cfg.Connected()
	}
	s.mu.Lock()
	r.Leaving = s.draining
	r.ChainMismatch = mismatchReport(s.mismatch)
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	s.mu.Unlock()
	slices.SortFunc(conns, func(a, b *conn) int {
		if byID := strings.Compare(a.proxy.ID, b.proxy.ID); byID != 0 {
			return byID
		}
		return a.since.Compare(b.since)
	})
	for _, c := range conns {
		r.Proxies = append(r.Proxies, c.report())
	}
	return r
}

func mismatchReport(m *store.MismatchError) *reportv1.ChainMismatch {
	if m == nil {
		return nil
	}
	return &reportv1.ChainMismatch{
		Own: m.Have.Proto(), OwnRoot: m.Root[:], Head: m.Head.Proto(), HeadRoot: m.HeadRoot[:],
	}
}

func (c *conn) report() *reportv1.ProxyReport {
	p := &reportv1.ProxyReport{
		Id: c.proxy.ID, Cluster: c.proxy.Cluster, Type: string(c.proxy.Type), Namespace: c.proxy.Namespace,
		UserAgent: c.proxy.UserAgent, ConnectedSince: timestamppb.New(c.since), Address: c.address,
	}
	st := c.status.Load()
	if st == nil {
		return p // connected just now
	}
	p.Group = st.group
	for _, t := range st.Types {
		p.Types = append(p.Types, typeReport(t))
	}
	return p
}

func typeReport(t stream.TypeStatus) *reportv1.TypeReport {
	r := &reportv1.TypeReport{
		TypeUrl: t.Type.URL(), Sent: t.Sent.Proto(), Acked: t.Acked.Proto(),
		SentVersion: t.SentVersion, AckedVersion: t.AckedVersion,
		SentTime: timestamp(t.SentTime), AckedTime: timestamp(t.AckedTime),
		Resources: uint32(t.Resources),
	}
	if t.Nack != nil {
		r.Nack = &reportv1.Nack{
			Version: t.Nack.Version, Message: t.Nack.Message,
			Time: timestamppb.New(t.Nack.Time), Resources: t.Nack.Resources,
		}
	}
	return r
}

func timestamp(t time.Time) *timestamppb.Timestamp {
	if t.IsZero() {
		return nil
	}
	return timestamppb.New(t)
}

// observe counts and logs what happens on a stream.
func (c *conn) observe(e stream.Event) {
	m, log := c.server.cfg.Metrics, c.server.cfg.Logger.With("proxy", c.proxy.ID)
	name := e.Type.String()
	switch e.Kind {
	case stream.Acked:
		if !e.Published.IsZero() {
			m.Convergence.WithLabelValues(name).Observe(max(0, time.Since(e.Published).Seconds()))
		}
		c.news = true
	case stream.Nacked:
		m.Rejects.WithLabelValues(name).Inc()
		log.Warn("the proxy rejected a response", "type", name, "version", e.Nack.Version,
			"world", e.World, "resources", e.Nack.Resources, "message", e.Nack.Message)
		c.news = true
	case stream.Stale:
		m.Stale.WithLabelValues(name).Inc()
	case stream.Unsupported:
		m.Unsupported.Inc()
		log.Debug("a type that is not served was requested", "type", e.Detail)
	case stream.Downgrade:
		m.Downgrades.Inc()
		log.Warn("the proxy knows versions that are unknown here, and the head of the version chain is not known; serving what is here")
	case stream.Unmatched:
		m.Unmatched.Inc()
		log.Info("the proxy's clusters are those of no retained version; they are replaced at once")
	case stream.Suspect:
		m.Suspects.Inc()
		log.Warn("the proxy has not answered CDS, or not asked for it; sending it again")
	}
}

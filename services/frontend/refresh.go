package frontend

import (
	"time"

	"meshlog.dev/services/mesh/spiffe"
)

// refreshMetrics sets the metrics that are computed when they are scraped.
func (s *Server) refreshMetrics() {
	m := s.cfg.Metrics
	m.classes.Set(float64(s.cache.Sets()))
	m.maxClasses.Set(float64(s.cfg.Limits.Classes))
	m.parts.Set(float64(s.cache.Parts()))
	if st := s.serving.Load(); st != nil {
		services, virtuals := st.PushContext.Size()
		m.services.Set(float64(services))
		m.virtuals.Set(float64(virtuals))
	}
	p := s.PushStatus(1)
	m.waiting.Set(float64(p.Waiting))
	m.firstAnswers.Set(float64(p.FirstAnswers))
	m.opening.Set(float64(p.Opening))
	m.requestBytes.Set(float64(p.RequestBytes))
	m.metadataBytes.Set(float64(s.metadata.size()))
	m.nameBytes.Set(float64(s.subscriptions.size()))
	m.streams.Set(float64(p.Streams))
	m.unconverged.Set(float64(p.Streams - p.Applied))
	m.sinks.Set(float64(len(s.sinks.list())))
	for t, n := range p.heldBack {
		m.heldBack[t].Set(float64(n))
	}
	persisted := 0.0
	if s.replica.Persisted() {
		persisted = 1
	}
	m.persisted.Set(persisted)
	now := time.Now()
	s.mu.Lock()
	behind, records := s.lag.behind(now)
	unpersisted := time.Duration(0)
	if !s.unpersisted.IsZero() {
		unpersisted = now.Sub(s.unpersisted)
	}
	s.mu.Unlock()
	m.behindSeconds.Set(behind.Seconds())
	m.behindRecords.Set(float64(records))
	m.unpersisted.Set(unpersisted.Seconds())
	m.setCertificates(s.openStreams(), now)
	m.unanswered.Set(0)
	for _, oldest := range p.Unanswered {
		m.unanswered.Set(now.Sub(oldest.Since).Seconds())
	}
}

// The states of meshlog_frontend_client_certificates.
const (
	certNone    = "none"
	certNew     = "new"
	certDue     = "due"
	certOld     = "old"
	certOverdue = "overdue"
)

// setCertificates counts the certificates that connections show, at a time.
func (m *Metrics) setCertificates(conns []*conn, now time.Time) {
	count := map[string]int{certNone: 0, certNew: 0, certDue: 0, certOld: 0, certOverdue: 0}
	first := 0.0
	for _, c := range conns {
		if c.id.name == "" {
			count[certNone]++
			continue
		}
		if ends := float64(c.id.ends.Unix()); first == 0 || ends < first {
			first = ends
		}
		count[stateOf(spiffe.Term{Begins: c.id.begins, Ends: c.id.ends, Shown: c.meter.began}, now)]++
	}
	for state, n := range count {
		m.certificates.WithLabelValues(state).Set(float64(n))
	}
	m.certificateEnds.Set(first)
}

func stateOf(t spiffe.Term, now time.Time) string {
	switch part := t.Part(now); {
	case t.Overdue(now):
		return certOverdue
	case part > .75:
		return certOld
	case part > .5:
		return certDue
	}
	return certNew
}

package stream

import (
	"iter"
	"slices"
	"strconv"
	"time"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/content"
	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/mesh/xds"
)

// Times that users cannot set.
const (
	// silence is when a resuming client that needs nothing is sent a response
	// without content: silence would double its backoff (E29).
	silence = 250 * time.Millisecond
	// missingCDS is when a client that had CDS on an earlier stream, and has
	// requested other types on this one, is sent CDS unasked (E16).
	missingCDS = time.Second
	// suspectAfter and suspectSecrets are when CDS without an answer is sent
	// again (E16); the latter if a cluster waits for secrets.
	suspectAfter   = 20 * time.Second
	suspectSecrets = 35 * time.Second
	// retakeAfter is when, in delta, added clusters that were not ACKed are
	// removed and offered again (E16).
	retakeAfter = 60 * time.Second
	// warmWait is how long listeners and routes wait for the ACK of clusters
	// that need more than their endpoints to warm (E27).
	warmWait = 5 * time.Second
)

// Request holds the fields of a DiscoveryRequest, or of a DeltaDiscoveryRequest
// if Config.Delta is set, that a Stream uses. The Stream copies what it needs of
// Names, Unsubscribe and Initial: their bytes may be reused when Request returns.
type Request struct {
	TypeURL string
	Version string // not in delta
	Nonce   string
	// Names is the whole subscription; in delta, the names that are added.
	Names names.Wire
	// Unsubscribe is the names that leave the subscription, in delta.
	Unsubscribe names.Wire
	// Initial is the versions that the client has when it connects, in delta.
	Initial names.Versions
	// Rejected reports that error_detail is set; Error is its message.
	Rejected bool
	Error    string
}

// Response is a DiscoveryResponse or a DeltaDiscoveryResponse to be sent. It is
// read-only.
type Response struct {
	Type ident.ResourceType
	// Unserved is the type URL of a type that is not served, instead of Type.
	Unserved string
	Delta    bool
	Version  string // in delta the system_version_info, for people
	Nonce    string
	// Resources are sorted by name. Streams may share the slice.
	Resources []*xds.Resource
	// Memo keeps the encoded Resources for all streams that send the same
	// slice; nil: only this one does.
	Memo *names.Memo
	// Marked, in delta: the client has no CDS, so the head of each resource is its
	// MarkedHead, which no other stream shares.
	Marked bool
	// Removed is removed_resources, in delta.
	Removed []string
	// Cause is the version of the world that caused the response; zero: none (a
	// first response, a removal that lingered).
	Cause ident.Position
}

// Config of a Stream.
type Config struct {
	// GRPC: the client is a gRPC library.
	GRPC bool
	// Delta: the stream uses the incremental protocol.
	Delta bool
	// Only is the type of a stream for a single type; nil on ADS. Its requests
	// may omit the type URL, requests for other types are not answered, and
	// there is no order between types (E33).
	Only *ident.ResourceType
	// Names holds the subscriptions of all streams of a frontend; nil: this
	// stream has a Table of its own.
	Names *names.Table
	// Linger is how long a removed cluster stays at least.
	Linger time.Duration
	// Past yields what the client would have been served at earlier versions,
	// newest first.
	Past iter.Seq[content.View]
	// Secret returns a Secret that names a private key with that key, and where the
	// key is. It is called for the names that the client asks for, and that changed
	// clusters and listeners name; nil: no key is anywhere.
	Secret func(*xds.Resource) (*xds.Resource, KeyState)
	// Observe is called with each Event; it must not call the Stream.
	Observe func(Event)
}

// Stream is the state of one stream.
type Stream struct {
	cfg       Config
	view      content.View
	watches   [ident.ResourceTypes]*watch // nil: not requested on this stream
	nonce     uint64
	lingering []lingeringCluster // removed from the view, not yet from the client; sorted by name

	started  time.Time // of the first request
	greeting greeting
	clusters clusters
	// warmUntil is when listeners and routes stop waiting for clusters to warm.
	warmUntil time.Time
	// filesAt is when rejected Secrets in files are sent once more.
	filesAt time.Time
	// early are the endpoints of clusters that were sent before the client
	// requested EDS: a client that reconnects requests only what it knew (E3).
	early []string
	head  headCheck
	// absent are the resources of types that are not served, still to be answered.
	absent                  []absent
	absentNames, absentSize int // of all, the latter in bytes
}

// New returns the state of a stream that has received no request.
func New(cfg Config, view content.View) *Stream {
	if cfg.Past == nil {
		cfg.Past = func(func(content.View) bool) {}
	}
	if cfg.Observe == nil {
		cfg.Observe = func(Event) {}
	}
	if cfg.Secret == nil {
		cfg.Secret = func(*xds.Resource) (*xds.Resource, KeyState) { return nil, KeyGone }
	}
	if cfg.Names == nil {
		cfg.Names = new(names.Table)
	}
	return &Stream{cfg: cfg, view: view}
}

// Update replaces the served view. The new one is never older than the one
// before.
func (s *Stream) Update(now time.Time, v content.View) {
	old := s.view
	for t, w := range s.watches {
		if w != nil && old.Sets[t] != v.Sets[t] && s.sentAll(w) && s.applied(w) {
			w.appliedAllOf = v.Until
		}
	}
	s.view = v
	if old.Sets[ident.CDS] != v.Sets[ident.CDS] {
		s.lingerRemoved(now, old)
	}
	s.refreshLingering()
	for t, w := range s.watches {
		if w != nil && (old.Sets[t] != v.Sets[t] || old.Sets[ident.CDS] != v.Sets[ident.CDS]) {
			w.touch()
			w.entries.changeAll()
			w.fresh = w.fresh || old.Sets[t] != v.Sets[t] && w.phase != unresolved
			s.liftHeldBack(w)
		}
	}
}

// Request handles a request of the client. After an error, which says what the
// client must change, the stream must end.
func (s *Stream) Request(now time.Time, r Request) error {
	if s.cfg.Only != nil && r.TypeURL == "" {
		r.TypeURL = s.cfg.Only.URL()
	}
	if r.TypeURL == "" {
		return nil // E4
	}
	t, ok := ident.ResourceTypeOf(r.TypeURL)
	if r.Names.TooMany() || r.Unsubscribe.TooMany() || r.Initial.TooMany() {
		return tooMany(r.TypeURL)
	}
	if !ok || s.cfg.Only != nil && t != *s.cfg.Only || s.cfg.GRPC && (t == ident.SDS || t == ident.ECDS || t == ident.NDS) { // G2
		return s.refuse(r)
	}
	if s.started.IsZero() {
		s.started = now
	}
	w := s.watches[t]
	switch {
	case w == nil || w.scope == unasked && r.Nonce == "" && s.cfg.Delta:
		s.subscribe(now, t, r)
	case s.cfg.Delta:
		if r.Nonce != "" {
			s.answer(now, w, r)
		}
		return s.resubscribe(w, r)
	case r.Nonce != "" && r.Nonce != w.lastNonce:
		// The request is older than the last response. The names that it adds
		// come again with the answer to that response.
		s.cfg.Observe(Event{Kind: Stale, Type: t})
		s.answer(now, w, r)
		w.unsubscribed(s.cfg.Names, r.Names)
	default:
		// A request without a nonce is a subscription to a type that nothing
		// was sent of (E10), or it crossed a response; never a new start.
		var answered *outstanding
		if r.Nonce != "" {
			answered = s.answer(now, w, r)
		}
		w.subscribed(s.cfg.Names, r.Names, false)
		if answered != nil && s.cfg.GRPC && t == ident.EDS {
			w.mayHold(answered)
		}
	}
	return nil
}

// subscribe handles the first request of a type.
func (s *Stream) subscribe(now time.Time, t ident.ResourceType, r Request) {
	// A nonce here answers a response without content that was sent before
	// the client subscribed to the type.
	w := s.newWatch(t)
	w.claimed, w.initial, w.lastNonce = r.Version, r.Initial, r.Nonce
	if pushed := s.watches[t]; pushed != nil {
		for r := range pushed.had() {
			w.crossed = append(w.crossed, pushed.state(r.Name))
		}
		w.unanswered = pushed.unanswered
		for i := range w.unanswered {
			w.unanswered[i].set = nil // the client may have requested other names
			for _, name := range w.unanswered[i].removed {
				w.crossed = append(w.crossed, pushed.state(name))
			}
		}
	}
	if s.cfg.Delta {
		s.subscribeDelta(w, r)
	} else {
		w.subscribed(s.cfg.Names, r.Names, true)
	}
	s.watches[t] = w
	if s.greeting == noGreeting && (r.Version != "" || r.Initial.Len() > 0) {
		s.greeting = greetingOwed
	}
	if s.noteClusters(r); t == ident.CDS {
		s.clusters = requestedClusters
	}
	s.check(now, w)
	s.resolve(now)
	if w.phase == unresolved {
		w.initial = r.Initial.Clone()
	}
	if t == ident.EDS {
		s.oweEndpoints(w, s.early)
		s.early = nil
	}
}

func (s *Stream) newWatch(t ident.ResourceType) *watch {
	return &watch{t: t, whole: !s.cfg.Delta && t.Wildcard()}
}

// Next returns the next response, if one is due. It counts as sent.
func (s *Stream) Next(now time.Time) (Response, bool) {
	s.advance(now)
	if len(s.absent) > 0 {
		return s.answerAbsent(), true
	}
	if s.WantsHead() {
		return s.breakSilence(now)
	}
	s.endLingering(now)
	for t := range ident.ResourceTypes {
		w := s.watches[t]
		if (t == ident.LDS || t == ident.RDS) && (now.Before(s.warmUntil) || !s.missingCDSAt().IsZero() || s.watches[ident.CDS].waitsForKeys()) {
			w.endKeyWait()
			continue // the client may not know the clusters that they name
		}
		if t == ident.ECDS && s.filtersWait(now) {
			continue
		}
		if w != nil && w.phase != unresolved && !s.waitForKeys(now, w) {
			if r, ok := s.push(now, w); ok {
				return r, true
			}
		}
	}
	return s.breakSilence(now)
}

// breakSilence returns a response without content if the stream would send
// nothing at all.
func (s *Stream) breakSilence(now time.Time) (Response, bool) {
	if at := s.silentAt(); at.IsZero() || now.Before(at) {
		return Response{}, false
	}
	s.greeting = greeted // also if nothing is subscribed: it is not tried again
	w := s.silentWatch()
	if w.whole {
		w.oweAll()
		return s.push(now, w)
	}
	r := Response{Type: w.t, Delta: s.cfg.Delta, Version: w.claimed, Nonce: s.nextNonce()}
	if w.phase != unresolved || r.Version == "" {
		r.Version = s.version(w, r.Nonce)
	}
	w.lastNonce = r.Nonce
	return r, true
}

// silentWatch returns the requested type whose response without content changes
// nothing; nil: there is none. A client must not get a type that it did not
// request: a gRPC library may never read the stream again (PRO-1). Without content,
// a whole response would remove everything; in full it changes nothing (E23), so
// it must be known what the full content is.
func (s *Stream) silentWatch() *watch {
	for _, w := range [...]*watch{s.watches[ident.EDS], s.watches[ident.RDS], s.watches[ident.ECDS], s.watches[ident.LDS], s.watches[ident.CDS]} {
		if w != nil && (!w.whole || w.phase != unresolved) {
			return w
		}
	}
	return nil
}

// silentAt returns when a client that was sent nothing is sent a response
// without content; zero: not at all.
func (s *Stream) silentAt() time.Time {
	switch {
	case s.greeting != greetingOwed || s.cfg.GRPC || s.silentWatch() == nil:
		return time.Time{}
	case s.head.state == headAway:
		return s.started
	case s.head.state == headWaits:
		return s.head.until
	}
	if w := s.watches[ident.EDS]; s.clusters == currentClusters && (s.cfg.Delta || w != nil && w.phase != unresolved) {
		return s.started // the EDS response without content breaks the silence
	}
	return s.started.Add(silence)
}

func (s *Stream) nextNonce() string {
	s.nonce++
	return strconv.FormatUint(s.nonce, 10)
}

// Wake returns when Next must be called again even if nothing happens; zero:
// never.
func (s *Stream) Wake() time.Time {
	var at time.Time
	earlier := func(t time.Time) {
		if !t.IsZero() && (at.IsZero() || t.Before(at)) {
			at = t
		}
	}
	if s.started.IsZero() {
		return at
	}
	if s.WantsHead() {
		earlier(s.head.until)
	} else {
		earlier(s.warmUntil)
		earlier(s.filesAt)
		earlier(s.suspectAt())
		earlier(s.missingCDSAt())
		for _, w := range s.watches {
			if w != nil {
				earlier(w.keysUntil)
			}
		}
		for _, h := range s.lingering {
			if !h.lingered {
				earlier(h.since.Add(s.cfg.Linger))
			}
		}
	}
	earlier(s.silentAt())
	return at
}

// advance does what is due at this time.
func (s *Stream) advance(now time.Time) {
	if s.started.IsZero() {
		return
	}
	switch {
	case s.WantsHead() && s.head.reached(s.view.Version):
		s.headResolved(now)
	case s.WantsHead() && !now.Before(s.head.until):
		s.cfg.Observe(Event{Kind: Downgrade})
		s.headResolved(now)
	}
	if !s.warmUntil.IsZero() && !now.Before(s.warmUntil) {
		s.warmUntil = time.Time{}
	}
	if at := s.missingCDSAt(); !at.IsZero() && !now.Before(at) {
		// Unsolicited and in full: a no-op if all is well (E9, E16, E23).
		s.cfg.Observe(Event{Kind: Suspect, Type: ident.CDS})
		w := s.newWatch(ident.CDS)
		w.scope, w.phase = unasked, first
		s.watches[ident.CDS] = w
	}
	if at := s.suspectAt(); !at.IsZero() && !now.Before(at) {
		s.suspect(s.watches[ident.CDS])
	}
	s.offerFiles(now)
}

// missingCDSAt returns when CDS is sent to a client that has clusters from an
// earlier stream and has not requested them; zero: not at all.
func (s *Stream) missingCDSAt() time.Time {
	asked := s.watches[ident.EDS] != nil || s.watches[ident.LDS] != nil
	if s.WantsHead() || s.cfg.GRPC || s.cfg.Only != nil || s.clusters != formerClusters || !asked || s.watches[ident.CDS] != nil {
		return time.Time{}
	}
	return s.started.Add(missingCDS)
}

// suspectAt returns when CDS without an answer is sent again or taken back;
// zero: not at all.
func (s *Stream) suspectAt() time.Time {
	w := s.watches[ident.CDS]
	if w == nil || len(w.unanswered) == 0 || w.phase == unresolved || w.phase == first || s.cfg.GRPC {
		return time.Time{} // everything is sent next in any case
	}
	last := w.unanswered[len(w.unanswered)-1]
	switch {
	case w.suspected == sentAgain && s.cfg.Delta:
		return w.unanswered[0].at.Add(retakeAfter)
	case w.suspected != unsuspected:
		return time.Time{}
	case last.secrets:
		return last.at.Add(suspectSecrets)
	}
	return last.at.Add(suspectAfter)
}

// suspect handles clusters that may be stuck in the client (E16). They are sent
// again in full, which is a no-op if all is well (E23). Later, in delta, those
// without an ACK are removed and offered again, except clusters that resolve
// names, which may take long.
func (s *Stream) suspect(w *watch) {
	if w.suspected == unsuspected {
		s.cfg.Observe(Event{Kind: Suspect, Type: ident.CDS})
		w.oweAll()
		w.suspected = sentAgain
		return
	}
	w.suspected = takenBack
	for i := range w.unanswered {
		for _, r := range w.unanswered[i].list {
			if e := w.state(r.Name); r.Endpoints() != "" && e.acked == nil && e.sent != nil {
				w.retake = append(w.retake, r.Name)
			}
		}
	}
	if len(w.retake) > 0 {
		slices.Sort(w.retake)
		w.retake = slices.Compact(w.retake)
		w.suspected = takingBack
		s.cfg.Observe(Event{Kind: Retaken, Type: ident.CDS})
	}
}

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

// Times that are not the user's to set.
const (
	// silence is after what time a resuming client that needs nothing is sent
	// a message without content: none at all would double its backoff (E29).
	silence = 250 * time.Millisecond
	// missingCDS is how long a resuming client may take to ask for CDS after
	// other types before it is sent CDS all the same (E16).
	missingCDS = time.Second
	// suspectAfter and suspectSecrets are when CDS that is neither ACKed nor
	// NACKed is sent again (E16); the latter where a cluster waits for secrets.
	suspectAfter   = 20 * time.Second
	suspectSecrets = 35 * time.Second
	// retakeAfter is when additions of clusters that were not ACKed are taken
	// back in delta, and offered again (E16).
	retakeAfter = 60 * time.Second
	// warmWait is how long listeners and routes wait for the ACK of clusters
	// that need more than their endpoints to be warm (E27).
	warmWait = 5 * time.Second
)

// Request is what a stream needs of a DiscoveryRequest, or of a
// DeltaDiscoveryRequest where Config.Delta is set. The Stream keeps nothing of
// Names, Unsubscribe and Initial: the bytes behind them may be used again when
// Request has returned.
type Request struct {
	TypeURL string
	Version string // not in delta
	Nonce   string
	// Names is the whole subscription; in delta, what is added to it.
	Names names.Wire
	// Unsubscribe is what leaves the subscription, in delta.
	Unsubscribe names.Wire
	// Initial is what the client has when it comes, in delta.
	Initial names.Versions
	// Rejected says that error_detail is set; Error is its message.
	Rejected bool
	Error    string
}

// Response is a DiscoveryResponse to be sent, or a DeltaDiscoveryResponse.
// Nobody writes to it.
type Response struct {
	Type    ident.ResourceType
	Delta   bool
	Version string // in delta the system_version_info, for people
	Nonce   string
	// Resources are sorted by name; many streams may share the slice.
	Resources []*xds.Resource
	// Memo is where the encoder keeps what it has made of Resources, for all
	// streams that are sent the same slice; nil: this one alone.
	Memo *names.Memo
	// Removed is removed_resources, in delta.
	Removed []string
	// Cause is the version of the world that caused the response; zero: none
	// did (a first answer, a removal that lingered).
	Cause ident.Position
}

// Config of a Stream.
type Config struct {
	// GRPC says that the client is a gRPC library.
	GRPC bool
	// Delta says that the stream speaks the incremental protocol.
	Delta bool
	// Only is the type of a stream that is for one type: requests may leave
	// their type URL out, those of other types are not answered, and nothing
	// is promised about the order of types (E33). Nil on ADS.
	Only *ident.ResourceType
	// Names holds the subscriptions of all streams of a frontend; nil: this
	// one has a Table of its own.
	Names *names.Table
	// Linger is how long a removed cluster stays at least.
	Linger time.Duration
	// Past yields what the client would have been served at earlier versions,
	// newest first.
	Past iter.Seq[content.View]
	// Observe is told what happens; it must not call the Stream.
	Observe func(Event)
}

// Stream is the state of one stream.
type Stream struct {
	cfg       Config
	view      content.View
	watches   [ident.ResourceTypes]*watch // nil: not requested on this stream
	nonce     uint64
	lingering []lingeringCluster // clusters gone from the view, not yet from the client; sorted by name

	started   time.Time // of the first request
	resumed   bool      // the client came with versions
	responded bool      // something was sent
	// cdsCurrent says that the client's clusters are as they should be and
	// that none were sent on this stream.
	cdsCurrent bool
	// gateUntil is until when listeners and routes wait for clusters to warm.
	warmUntil time.Time
	// early are endpoints of clusters that were sent before EDS was asked for: a
	// client that comes again asks for what it knew (E3).
	early []string
	head  headCheck
}

// New returns the state of a stream on which nothing was requested yet.
func New(cfg Config, view content.View) *Stream {
	if cfg.Past == nil {
		cfg.Past = func(func(content.View) bool) {}
	}
	if cfg.Observe == nil {
		cfg.Observe = func(Event) {}
	}
	if cfg.Names == nil {
		cfg.Names = names.NewTable()
	}
	return &Stream{cfg: cfg, view: view}
}

// Update says what is served now; it is never older than what was before.
func (s *Stream) Update(now time.Time, v content.View) {
	old := s.view
	s.view = v
	if old.Sets[ident.CDS] != v.Sets[ident.CDS] {
		s.lingerRemoved(now, old)
	}
	s.refreshLingering(v.Sets[ident.EDS])
	for t, w := range s.watches {
		if w != nil && (old.Sets[t] != v.Sets[t] || old.Sets[ident.CDS] != v.Sets[ident.CDS]) {
			if old.Sets[t] != v.Sets[t] && s.sentAll(w) && w.applied() {
				w.appliedAllOf = v.Until
			}
			w.dirty = true
			w.fresh = w.fresh || old.Sets[t] != v.Sets[t] && !w.unresolved
			w.liftHeldBack(v.Sets[t])
		}
	}
}

// Request takes in a request.
func (s *Stream) Request(now time.Time, r Request) {
	if s.cfg.Only != nil && r.TypeURL == "" {
		r.TypeURL = s.cfg.Only.URL()
	}
	if r.TypeURL == "" {
		return // E4
	}
	t, ok := ident.ResourceTypeOf(r.TypeURL)
	if !ok || s.cfg.Only != nil && t != *s.cfg.Only {
		s.cfg.Observe(Event{Kind: Unsupported, Detail: r.TypeURL})
		return
	}
	if s.started.IsZero() {
		s.started = now
	}
	w := s.watches[t]
	switch {
	case w == nil || w.unasked && r.Nonce == "" && s.cfg.Delta:
		s.subscribe(now, t, r)
	case s.cfg.Delta:
		if r.Nonce != "" {
			s.answer(now, w, r)
		}
		s.resubscribe(w, r)
	case r.Nonce != "" && r.Nonce != w.lastNonce:
		// Older than the last response: the names that it adds come again with
		// the answer to that one.
		s.cfg.Observe(Event{Kind: Stale, Type: t})
		s.answer(now, w, r)
		w.unsubscribed(s.cfg.Names, r.Names)
	default:
		// Without a nonce it is a subscription on a type of which nothing was
		// sent (E10), or one that crossed a response; never a new start.
		if r.Nonce != "" {
			s.answer(now, w, r)
		}
		w.subscribed(s.cfg.Names, r.Names, false)
	}
}

// subscribe takes in the first request of a type.
func (s *Stream) subscribe(now time.Time, t ident.ResourceType, r Request) {
	// A nonce here is that of a message without content, of a type that was
	// not subscribed then.
	w := s.newWatch(t)
	w.claimed, w.initial, w.lastNonce, w.unresolved = r.Version, r.Initial, r.Nonce, true
	if unasked := s.watches[t]; unasked != nil {
		for r := range unasked.had() {
			w.crossed = append(w.crossed, unasked.state(r.Name))
		}
		w.unanswered = unasked.unanswered
		for i := range w.unanswered {
			w.unanswered[i].set = nil // what it was sent from says nothing of other names
		}
	}
	if s.cfg.Delta {
		s.subscribeDelta(w, r)
	} else {
		w.subscribed(s.cfg.Names, r.Names, true)
	}
	s.watches[t] = w
	s.resumed = s.resumed || r.Version != "" || r.Initial.Len() > 0
	s.check(now, w)
	s.resolve(now)
	if w.unresolved {
		w.initial = r.Initial.Clone()
	}
	if t == ident.EDS {
		s.oweEndpoints(w, s.early)
		s.early = nil
	}
}

func (s *Stream) newWatch(t ident.ResourceType) *watch {
	return &watch{t: t, delta: s.cfg.Delta, whole: !s.cfg.Delta && (t == ident.CDS || t == ident.LDS), dirty: true}
}

// Next returns the next response to be sent, if there is one. It counts as
// sent.
func (s *Stream) Next(now time.Time) (Response, bool) {
	s.advance(now)
	if s.head.waiting {
		return s.breakSilence(now)
	}
	s.endLingering(now)
	for t := range ident.ResourceTypes {
		if t >= ident.LDS && (now.Before(s.warmUntil) || !s.missingCDSAt().IsZero()) {
			break // what they name may be known to nobody there yet
		}
		if w := s.watches[t]; w != nil && !w.unresolved {
			if r, ok := s.push(now, w); ok {
				return r, true
			}
		}
	}
	return s.breakSilence(now)
}

// sayNothing returns a message without content where the stream would be
// wholly silent.
func (s *Stream) breakSilence(now time.Time) (Response, bool) {
	if !s.silentTooLong(now) {
		return Response{}, false
	}
	t := ident.EDS
	if s.cfg.Delta || s.cfg.Only != nil {
		// Of a type that is asked for.
		t = ident.ResourceType(slices.IndexFunc(s.watches[:], func(w *watch) bool { return w != nil }))
	}
	if w := s.watches[t]; w != nil && w.whole {
		// Without content it would say that all is gone; sent again in full
		// it says nothing (E23).
		s.responded = true
		if w.unresolved {
			return Response{}, false
		}
		w.owed = true
		return s.pushWhole(now, w)
	}
	r := Response{Type: t, Delta: s.cfg.Delta, Version: xds.Sum{}.String(), Nonce: s.nextNonce()}
	if w := s.watches[t]; w != nil {
		w.lastNonce = r.Nonce
		if r.Version = w.claimed; !w.unresolved || r.Version == "" {
			r.Version = s.version(w, r.Nonce)
		}
	}
	s.responded = true
	return r, true
}

func (s *Stream) silentTooLong(now time.Time) bool {
	return !s.responded && s.resumed && !s.cfg.GRPC && !now.Before(s.silentAt())
}

func (s *Stream) silentAt() time.Time {
	if s.head.waiting && s.head.away {
		return s.started
	}
	if s.head.waiting {
		return s.head.until
	}
	if w := s.watches[ident.EDS]; s.cdsCurrent && (s.cfg.Delta || w != nil && !w.unresolved) {
		return s.started // its answer without content
	}
	return s.started.Add(silence)
}

func (s *Stream) nextNonce() string {
	s.nonce++
	return strconv.FormatUint(s.nonce, 10)
}

// Wake returns when Next is to be asked again although nothing happened; the
// zero time: never.
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
	if s.head.waiting {
		earlier(s.head.until)
	} else {
		earlier(s.warmUntil)
		earlier(s.suspectAt())
		earlier(s.missingCDSAt())
		for _, h := range s.lingering {
			if !h.lingered {
				earlier(h.since.Add(s.cfg.Linger))
			}
		}
	}
	if !s.responded && s.resumed && !s.cfg.GRPC {
		earlier(s.silentAt())
	}
	return at
}

// advance does what is due by now.
func (s *Stream) advance(now time.Time) {
	if s.started.IsZero() {
		return
	}
	if s.head.waiting && !now.Before(s.head.until) {
		s.cfg.Observe(Event{Kind: Downgrade})
		s.headResolved(now)
	}
	if !s.warmUntil.IsZero() && !now.Before(s.warmUntil) {
		s.warmUntil = time.Time{}
	}
	if at := s.missingCDSAt(); !at.IsZero() && !now.Before(at) {
		// Unsolicited, in full: a no-op where all is well (E9, E16, E23).
		s.cfg.Observe(Event{Kind: Suspect, Type: ident.CDS})
		w := s.newWatch(ident.CDS)
		w.wildcard, w.unasked = true, true
		s.watches[ident.CDS] = w
	}
	if at := s.suspectAt(); !at.IsZero() && !now.Before(at) {
		s.suspect(s.watches[ident.CDS])
	}
}

// missingCDSAt is when CDS is sent to a client that resumes without asking for
// it; zero: not at all.
func (s *Stream) missingCDSAt() time.Time {
	asked := s.watches[ident.EDS] != nil || s.watches[ident.LDS] != nil
	if s.head.waiting || s.cfg.GRPC || s.cfg.Only != nil || !s.resumed || !asked || s.watches[ident.CDS] != nil {
		return time.Time{}
	}
	return s.started.Add(missingCDS)
}

// suspectAt is when something is done about CDS without an answer; zero:
// nothing.
func (s *Stream) suspectAt() time.Time {
	w := s.watches[ident.CDS]
	if w == nil || len(w.unanswered) == 0 || s.cfg.GRPC {
		return time.Time{}
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

// suspect does something about clusters that may be stuck with the client
// (E16): they are sent again, in full, which is a no-op where all is well
// (E23); in delta, later, those that it did not ACK are taken back and offered
// again, but for those that resolve names, which may take long.
func (s *Stream) suspect(w *watch) {
	if w.suspected == unsuspected {
		s.cfg.Observe(Event{Kind: Suspect, Type: ident.CDS})
		w.owed, w.dirty, w.suspected = true, true, sentAgain
		return
	}
	w.suspected = takenBack
	for i := range w.unanswered {
		for _, r := range w.unanswered[i].list {
			if r.Endpoints() != "" && w.lastGood(r.Name) == nil && w.sentOf(r.Name) != nil {
				w.retake = append(w.retake, r.Name)
			}
		}
	}
	if len(w.retake) > 0 {
		slices.Sort(w.retake)
		w.retake = slices.Compact(w.retake)
		s.cfg.Observe(Event{Kind: Retaken, Type: ident.CDS})
	}
}

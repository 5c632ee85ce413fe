package stream

import (
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/mesh/xds/secret"
)

// heldBack is a resource that the client rejected. Until its content changes,
// the client keeps the one that it last applied.
type heldBack struct {
	bad  *xds.Resource
	good *xds.Resource // nil: nothing, or the empty resource
	// endpoints are those of the cluster good: they stay as long as it does.
	endpoints *xds.Resource
	verdict   verdict
	// Of a culprit: what the client said, and the version at which it had good.
	message string
	world   ident.Position
	// lacks is the cluster that the client said it does not have.
	lacks string
}

// answer handles the ACK or NACK of a response, which it returns; nil: of none.
func (s *Stream) answer(now time.Time, w *watch, r Request) *outstanding {
	i := slices.IndexFunc(w.unanswered, func(o outstanding) bool { return o.nonce == r.Nonce })
	if i < 0 {
		return nil // a repeated request (E2)
	}
	o := w.unanswered[i]
	var earlier []outstanding
	if i > 0 {
		earlier = slices.Clone(w.unanswered[:i])
	}
	w.unanswered = slices.Delete(w.unanswered, 0, i+1)
	w.touch()
	if w.t == ident.CDS && len(w.unanswered) == 0 {
		s.warmUntil, w.suspected, w.retake = time.Time{}, unsuspected, nil
	}
	// Envoy may report the error of an earlier response with an ACK (E14): the
	// version tells. The parts of a response that was split for gRPC share one
	// version, and a gRPC client reports errors only with a NACK.
	if r.Rejected && (s.cfg.Delta || s.cfg.GRPC || r.Version != o.version) {
		s.nack(now, w, &o, earlier, r.Error)
		return &o
	}
	// The client has seen the earlier responses, and may not have applied them
	// (E14, E15). A whole response held everything; else send them again.
	again := overtaken(earlier, &o)
	w.exceptItems(again)
	s.ack(now, w, &o)
	w.sendAgain(again)
	if r.Rejected && len(again) > 0 {
		s.recordNack(now, w, &reportv1.Nack{Message: cut(r.Error), Time: timestamppb.New(now)})
	}
	return &o
}

// ack records that the client applied o.
func (s *Stream) ack(now time.Time, w *watch, o *outstanding) {
	w.progress.AckedVersion, w.progress.AckedTime = o.version, now
	s.cfg.Observe(Event{Kind: Acked, Type: w.t, World: o.world, Published: o.made, Sent: o.at})
	if w.t == ident.CDS {
		defer s.tryAgain(s.lacking())
	}
	w.confirm(o)
	if o.set != nil {
		w.acked = o.set
	}
	if len(w.unanswered) == 0 {
		w.dropNeedless()
	}
	full := (w.whole || s.applied(w)) && w.trust != searching
	if full {
		w.trust, w.tried = trusted, 0
	}
	if full && len(w.heldBack) == 0 {
		w.nack = nil
		w.progress.Acked = o.world
	}
}

// confirm notes in the entries that the client applied o.
func (w *watch) confirm(o *outstanding) {
	for i := range w.crossed {
		if r, in := o.find(w.crossed[i].name); in {
			w.crossed[i].acked, w.crossed[i].standing = r, confirmed
		}
	}
	if w.entries.len() == 0 {
		return
	}
	switch {
	case o.whole: // every other name was removed
		for e := range w.entries.all() {
			e.acked, _ = o.find(e.name)
			e.standing = confirmed
		}
		w.entries.changeAll()
	default:
		for _, it := range o.items() {
			e := w.entries.change(it.name)
			if e == nil {
				continue
			}
			e.acked, e.standing = it.resource, confirmed
			if _, more := w.underWay(it.name); !more && e.delivery == delivered {
				e.sent = it.resource // it was forgotten if the client asked for the name again meanwhile
			}
		}
	}
	if !w.lost {
		return
	}
	w.lost = false
	for e := range w.entries.all() {
		if e.delivery == lost {
			e.delivery = owed
		}
	}
	w.entries.changeAll()
}

// overtaken returns the items of earlier responses that are not in o. The
// client has seen them and may not have applied them.
func overtaken(earlier []outstanding, o *outstanding) []item {
	var items []item
	for i := range earlier {
		for _, it := range earlier[i].items() {
			if _, in := o.find(it.name); !in {
				items = append(items, it)
			}
		}
	}
	return items
}

// exceptItems makes entries of the items that the client may not have applied,
// so that what it has stays known when the Sets change.
func (w *watch) exceptItems(items []item) {
	for _, it := range items {
		if e := w.state(it.name); w.covers(it.name) && !e.hasApplied(it.resource) {
			w.except(it.name)
		}
	}
}

// sendAgain marks the items to be sent again that the client may have or not.
func (w *watch) sendAgain(items []item) {
	for _, it := range items {
		if e := w.entries.change(it.name); e != nil && !e.hasApplied(it.resource) {
			e.owe()
			e.standing = unconfirmed
		}
	}
}

// nack handles the rejection of o. It holds back the resources that the message
// names and sends the rest without them; if it names none, it sends the rest in
// halves. Nothing is sent again as it was.
func (s *Stream) nack(now time.Time, w *watch, o *outstanding, earlier []outstanding, message string) {
	items := o.items()
	missed := overtaken(earlier, o)
	w.exceptItems(missed)
	w.exceptItems(items)
	suspects := slices.DeleteFunc(slices.Clone(items), func(it item) bool {
		return it.resource == nil || w.state(it.name).acked.Same(it.resource)
	})
	n := &reportv1.Nack{Version: o.version, Message: cut(message), Time: timestamppb.New(now)}
	culprits := mentioned(message, suspects)
	known := len(culprits) > 0 || len(suspects) == 1
	if len(culprits) == 0 && (known || w.tried >= maxTrials) {
		culprits = suspects
	}
	for _, c := range culprits {
		if s.holdBack(w, c, withheld) && known && !isBind(message) {
			h := w.heldBack[c.name]
			h.verdict, h.message, h.world = culprit, n.Message, s.hadIn(w, h.good)
			h.lacks = lackedCluster(message)
			w.heldBack[c.name] = h
		}
	}
	if len(culprits) == 0 && len(suspects) > 1 {
		s.bisect(w, suspects)
	}
	// In EDS, RDS and delta, the client may have applied the rest or not (E12,
	// E13, E26). If it rejects what it already has, or the empty resource, that
	// is not sent again: the client would reject it forever.
	rest := missed
	if len(suspects) > 0 {
		rest = append(rest, items...)
	}
	w.sendAgain(slices.DeleteFunc(rest, func(it item) bool { _, held := w.heldBack[it.name]; return held }))
	if len(w.unanswered) == 0 {
		w.dropNeedless()
	}
	if slices.ContainsFunc(culprits, func(it item) bool { return secret.InFiles(it.name) }) && w.t == ident.SDS {
		s.filesAt = now.Add(filesAgain)
	}
	named := culprits
	if len(named) == 0 {
		named = mentioned(message, items)
	}
	for _, it := range named {
		n.Resources = append(n.Resources, it.name)
	}
	s.recordNack(now, w, n)
}

// recordNack makes n the rejection that stands.
func (s *Stream) recordNack(now time.Time, w *watch, n *reportv1.Nack) {
	if w.trust == trusted {
		w.trust = tainted
	}
	w.nack = n
	s.cfg.Observe(Event{Kind: Nacked, Type: w.t, World: w.progress.Sent, Nack: n, Sent: now})
}

// maxMessage is how many bytes of a message are kept. A message names every
// culprit.
const maxMessage = 4 << 10

func cut(message string) string {
	if len(message) <= maxMessage {
		return message
	}
	return strings.ToValidUTF8(message[:maxMessage], "") + "..."
}

// isBind reports whether an Envoy message is about an address on which Envoy
// cannot listen. The content is not to blame, and other clients are not
// concerned.
func isBind(message string) bool {
	return strings.Contains(message, "cannot bind") || strings.Contains(message, "Address already in use")
}

// holdBack keeps a resource from the client. It reports false if the client
// should already have another one.
func (s *Stream) holdBack(w *watch, bad item, v verdict) bool {
	if !bad.resource.Same(s.want(w, bad.name)) {
		return false
	}
	// A client does not reject what it has (E23): it never had this lingering
	// cluster.
	rejected := func(h lingeringCluster) bool { return h.cluster.Name == bad.name }
	if v != onTrial && w.t == ident.CDS && s.dropLingering(rejected) {
		return false
	}
	if w.heldBack == nil {
		w.heldBack = make(map[string]heldBack)
	}
	good := w.state(bad.name).acked
	h := heldBack{bad: bad.resource, good: good, verdict: v}
	if w.t == ident.CDS && good != nil && good.Endpoints() != "" {
		h.endpoints = s.view.Sets[ident.EDS].Find(good.Endpoints())
		if eds := s.watches[ident.EDS]; eds != nil {
			if h.endpoints == nil {
				h.endpoints = eds.state(good.Endpoints()).acked
			}
			eds.entries.change(good.Endpoints())
		}
	}
	w.heldBack[bad.name] = h
	e := w.entries.change(bad.name)
	switch {
	case e == nil || v == onTrial: // on trial: unknown whether the client has it
	case w.whole: // the next response holds good
	case good != nil:
		e.sent = good // the client still has it
	case s.cfg.GRPC && !s.cfg.Delta && (w.t == ident.EDS || w.t == ident.RDS):
		e.sent, e.standing = nil, confirmed // the client has nothing, and knows why
	case w.t == ident.EDS || w.t == ident.RDS:
		e.owe() // the empty resource, so that nothing waits for it
	}
	return true
}

// liftHeldBack stops holding back the resources whose content is another now.
func (s *Stream) liftHeldBack(w *watch) {
	if len(w.heldBack) == 0 {
		return
	}
	for name, h := range w.heldBack {
		is := s.served(w.t, name)
		if h.bad.Same(is) {
			continue
		}
		delete(w.heldBack, name)
		// If it is again what the client last applied, only another response ends
		// the client's error state (PRO-3). A whole response was sent after the NACK.
		if is != nil && is.Same(h.good) && !w.whole && h.verdict != onTrial && w.covers(name) {
			w.except(name).owe()
		}
		if e := w.entries.change(name); w.t == ident.CDS && is == nil && e != nil && h.bad.Same(e.sent) {
			e.sent = nil // it must not linger
			e.owe()
		}
	}
	if len(w.heldBack) == 0 && w.trust != searching {
		w.nack = nil // the client has not rejected what is served now
	}
}

// mentioned returns the items whose names are in an Envoy message, without
// names that are part of another one there.
func mentioned(message string, items []item) []item {
	var found []item
	for _, it := range items {
		if mentions(message, it.name) {
			found = append(found, it)
		}
	}
	return slices.DeleteFunc(slices.Clone(found), func(it item) bool {
		return slices.ContainsFunc(found, func(o item) bool { return o.name != it.name && strings.Contains(o.name, it.name) })
	})
}

func mentions(message, name string) bool {
	if name == "" {
		return false
	}
	for at := 0; ; {
		i := strings.Index(message[at:], name)
		if i < 0 {
			return false
		}
		start, end := at+i, at+i+len(name)
		if (start == 0 || !inName(message[start-1])) && (end == len(message) || !inName(message[end])) {
			return true
		}
		at = start + 1
	}
}

// inName reports whether c may continue a name. In Envoy messages a colon ends
// a name, and a full stop ends a sentence.
func inName(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'A' && c <= 'Z' || c >= 'a' && c <= 'z' ||
		c == '_' || c == '-' || c == '|' || c == '/'
}

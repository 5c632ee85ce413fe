package watcher

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/mesh/problem"
)

// Permissions say which objects the bus lets a publisher append (ACL-3).
type Permissions interface {
	// Permits asks for them, and returns a function that reports whether objects
	// under a subject may be appended.
	Permits(ctx context.Context) (func(events.Subject) bool, error)
}

// errNarrowed ends this session; the next one does not append what the bus refuses.
var errNarrowed = errors.New("the bus permits less than when the session began")

// learn asks what the bus permits. Without an answer the last one counts, and after
// none everything is permitted: an append then fails by itself, and says why.
func (p *Publisher) learn(ctx context.Context) {
	if p.cfg.Permissions == nil {
		return
	}
	permits, err := p.cfg.Permissions.Permits(ctx)
	if err != nil {
		p.log.Debug("the permissions on the bus are not known", "error", err)
		return
	}
	p.permits = permits
}

func (p *Publisher) permitted(k ident.Key) bool {
	return p.permits == nil || p.permits(events.ObjectSubject(k))
}

// narrowed asks again after a failed append, and reports whether the bus refuses one
// of the events.
func (p *Publisher) narrowed(ctx context.Context, group []events.Event) bool {
	p.learn(ctx)
	return slices.ContainsFunc(group, func(e events.Event) bool { return !p.permitted(e.Body.(*events.Object).Key) })
}

// refuse notes a change that the bus refuses: the log keeps what it has of the object,
// and sent says so. The log can lose an object without a permission, by a listing
// that does not have it.
func (p *Publisher) refuse(c change) {
	s := &p.session
	s.waiting.drop(c.key)
	if _, known := s.denied[c.key]; !known && !c.hash.IsZero() {
		p.log.Warn("the bus refuses an object; the others are published", "key", c.key.String(), "subject", string(events.ObjectSubject(c.key)))
	}
	if !c.hash.IsZero() {
		s.denied[c.key] = struct{}{}
		return
	}
	p.release(c.key)
	if _, has := s.sent.hashes[c.key]; has {
		s.over = "the bus refuses the removal of an object, which a listing removes"
	}
}

// release notes that the bus need not take an object any more.
func (p *Publisher) release(k ident.Key) {
	s := &p.session
	if _, denied := s.denied[k]; !denied {
		return
	}
	if delete(s.denied, k); s.withheld && len(s.denied) == 0 {
		s.over = "no object that the bus refuses is left"
	}
}

// askAgain ends the session if the bus permits a refused object by now.
func (p *Publisher) askAgain(ctx context.Context) {
	if len(p.session.denied) == 0 {
		return
	}
	p.learn(ctx)
	for k := range p.session.denied {
		if p.permitted(k) {
			p.session.over = "the bus permits objects that it refused"
			return
		}
	}
}

// denials returns a problem for each subject that the bus refuses.
func (p *Publisher) denials() (ds []problem.Diagnostic) {
	keys := map[events.Subject][]ident.Key{}
	for k := range p.session.denied {
		s := events.ObjectSubject(k)
		keys[s] = append(keys[s], k)
	}
	for s, ks := range keys {
		d := problem.Diagnostic{
			Severity: problem.Error, Code: "denied", Key: slices.MinFunc(ks, compareKeys),
			Reason: fmt.Sprintf("the watcher's key may not publish to %s on the bus", s),
			Advice: "remove the object at its source; or permit it with `meshlog bus-auth` and the policy that counts in the mesh, and reload the servers",
			Effect: "the object keeps its last good value, if it has one; the others are published",
		}
		if len(ks) > 1 {
			d.Reason += fmt.Sprintf("; %d objects wait for it", len(ks))
		}
		if p.session.withheld {
			d.Effect += ", and what was removed at the source while no watcher ran stays until then"
		}
		ds = append(ds, d)
	}
	return ds
}

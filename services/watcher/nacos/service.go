package nacos

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"hash/maphash"
	"iter"
	"slices"
	"strings"
	"time"

	"meshlog.dev/services/mesh/problem"
	"meshlog.dev/services/watcher"
	"meshlog.dev/services/watcher/registry"
)

// service is what a run knows of a service.
type service struct {
	id     serviceID
	listed bool // by the last list

	// On this link.
	subscribed, read      bool
	queued, asking, again bool
	swept                 bool // queued or asked by the sweep
	pushes                int
	failures              int
	err                   error // of the last failure of several

	// hosts are its instances as the server sent them when they were last believed. They
	// are kept encoded, because that takes a third of the memory.
	hosts     json.RawMessage
	protected bool
	sum       uint64 // of hosts as they are published, in any order; 0: not known
	// held are instances that were published and are missing, and not given up yet.
	held    []registry.Instance
	size    int       // instances on the log
	seen    int       // instances in the last answer, believed or not
	emptyAt time.Time // since when its answers are empty and not believed; zero: they are not
	readAt  time.Time
	// hashes are of the objects on the log, by kind and name.
	hashes map[string][sha256.Size]byte
	said   string // its problems, as reported
}

// reset forgets what belongs to a link.
func (s *service) reset() {
	s.subscribed, s.read, s.queued, s.asking, s.again, s.swept = false, false, false, false, false, false
	s.pushes, s.failures, s.err, s.emptyAt, s.sum = 0, 0, nil, time.Time{}, 0
}

// instances returns the believed instances.
func (s *service) instances() []registry.Instance {
	all, _, _ := instances(s.hosts) // it has been decoded before
	return all
}

// union returns the instances of a, and those of b that a does not have.
func union(a, b []registry.Instance) []registry.Instance {
	return append(slices.Clip(a), without(b, a)...)
}

// without returns the instances of a that b does not have; b is sorted by identity.
func without(a, b []registry.Instance) []registry.Instance {
	var rest []registry.Instance
	for _, in := range a {
		if _, has := slices.BinarySearchFunc(b, in, func(x, y registry.Instance) int { return strings.Compare(x.ID, y.ID) }); !has {
			rest = append(rest, in)
		}
	}
	return rest
}

// learn takes all of a service, from a push or from an answer.
func (r *run) learn(s *service, info *serviceInfo, asked bool, at time.Time) {
	sum := r.sum(info.Hosts)
	if sum != 0 && sum == s.sum && s.protected == info.Protected && s.failures == 0 {
		s.readAt = at // nothing new: most queries end here
		delete(r.reading, s)
		return
	}
	found, leftOut, err := instances(info.Hosts)
	if err != nil {
		r.failed(s, err)
		return
	}
	s.read, s.readAt, s.seen, s.failures, s.err, s.sum = true, at, len(found), 0, nil, 0
	delete(r.reading, s)
	if len(found) == 0 && s.size > 0 {
		r.empty(s, asked, at)
		return
	}
	s.emptyAt = time.Time{}
	s.hosts, s.protected = info.Hosts, info.Protected
	if r.holding {
		s.held = without(s.held, found)
	} else {
		s.held = nil
	}
	r.publishAs(s, found, leftOut, at)
	if r.listed && len(s.held) == 0 {
		s.sum = sum
	}
}

// sum returns a hash over instances that does not depend on their order, which is another
// one in each answer; 0 if there is none.
func (r *run) sum(hosts json.RawMessage) uint64 {
	var sum uint64
	for one := range elements(hosts) {
		sum += 1 + maphash.Bytes(r.seed, one)
	}
	return sum
}

// elements returns the elements of an array of JSON that the decoder has found valid. To
// decode the array once more only to split it would cost more than the hash.
func elements(array []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		depth, start, quoted := 0, 0, false
		for i := 0; i < len(array); i++ {
			b := array[i]
			end := false
			switch {
			case quoted && b == '\\':
				i++
			case b == '"':
				quoted = !quoted
			case quoted:
			case b == '[' || b == '{':
				if depth++; depth == 1 {
					start = i + 1
				}
			case b == ']' || b == '}':
				depth--
				end = depth == 0
			case b == ',':
				end = depth == 1
			}
			if !end {
				continue
			}
			one := bytes.TrimSpace(array[start:i])
			start = i + 1
			if len(one) > 0 && !yield(one) {
				return
			}
		}
	}
}

const (
	massServices = 5                // services that may become empty in massWithin
	massWithin   = 30 * time.Second // and a tenth of all
)

// empty takes that a service, which had instances, has none. It is believed if a query a
// few seconds later agrees, and held if the same has happened to many services (NAC-16).
func (r *run) empty(s *service, asked bool, at time.Time) {
	if s.emptyAt.IsZero() {
		if len(s.hosts) == 0 && len(s.held) > 0 {
			return // it is held already
		}
		s.emptyAt = at
		r.emptied = append(slices.DeleteFunc(r.emptied, func(t time.Time) bool { return at.Sub(t) > massWithin }), at)
	}
	if due := s.emptyAt.Add(r.limits.confirm); !asked || at.Before(due) {
		if _, asks := r.later[s]; !asks {
			r.later[s] = due
		}
		return
	}
	s.emptyAt = time.Time{}
	if n := len(r.emptied); !r.holding && n > max(massServices, len(r.services)/10) {
		r.hold(fmt.Sprintf("%d services lost all of their instances within %s", n, massWithin))
		_, _ = r.doubt.Judge(r.counts(), at) // the first read; that of the review is the second
	}
	if r.holding || r.cfg.KeepEmpty {
		s.held = union(s.instances(), s.held)
	} else {
		s.held = nil
	}
	s.hosts, s.protected = nil, false
	if !s.listed && len(s.held) == 0 {
		r.remove(s, at)
		return
	}
	r.publish(s, at)
}

// publish adds what changes of a service to the change set.
func (r *run) publish(s *service, at time.Time) {
	found, leftOut, _ := instances(s.hosts) // it has been decoded before
	r.publishAs(s, found, leftOut, at)
}

// publishAs is publish with the decoded believed instances, and why others are left out.
// Before the listing it does nothing.
func (r *run) publishAs(s *service, found []registry.Instance, leftOut []string, at time.Time) {
	if !r.listed || !s.read && len(s.hosts)+len(s.held) == 0 {
		return
	}
	all := union(found, s.held)
	v := r.cfg.convert(s.id, all)
	objects, ds := r.cfg.Registry.Convert(v)
	r.say(s, v.Origin, append(ds, warnings(v, s.protected, leftOut, len(s.held))...))
	set := r.catalog.Set(v, objects)
	if len(objects) > 0 {
		s.size = len(all)
	}
	if s.hashes == nil {
		s.hashes = make(map[string][sha256.Size]byte, len(objects))
	}
	for _, o := range set {
		key := o.Kind + " " + o.Name
		if o.Delete {
			delete(s.hashes, key)
		} else {
			hash := sha256.Sum256(o.Value.Bytes)
			if s.hashes[key] == hash {
				continue
			}
			s.hashes[key] = hash
		}
		o.Observed = at
		r.set = append(r.set, o)
	}
}

// remove forgets a service that is gone, and deletes its objects.
func (r *run) remove(s *service, at time.Time) {
	delete(r.services, s.id)
	delete(r.later, s)
	delete(r.reading, s)
	r.say(s, r.cfg.convert(s.id, nil).Origin, nil)
	for _, o := range r.catalog.Remove(r.cfg.ObjectNamespace, s.id.object()) {
		o.Observed = at
		r.set = append(r.set, o)
	}
	if s.subscribed {
		r.forget = append(r.forget, s.id)
	}
}

// say reports the problems of a service.
func (r *run) say(s *service, origin string, ds []problem.Diagnostic) {
	text := ""
	for _, d := range ds {
		text += d.Error() + "\n"
	}
	if text != s.said {
		r.sink.Problems(origin, ds)
		s.said = text
	}
}

// reportUnread reports a service that cannot be read.
func (r *run) reportUnread(s *service) {
	v := r.cfg.convert(s.id, nil)
	r.say(s, v.Origin, []problem.Diagnostic{{
		Severity: problem.Error, Code: "unreadable", Origin: v.Origin, Reason: fmt.Sprintf("service %s cannot be read: %v", s.id.object(), s.err),
		Advice: "nothing is to be done if the servers are overloaded; else check the rights of the account", Effect: "it stays as it is",
	}})
}

// list returns the services of the groups; whole is false if the server says that there
// are more.
func (l *link) list(ctx context.Context, namespace string, groups []string) (all []serviceID, whole bool, err error) {
	if slices.Equal(groups, []string{AllGroups}) {
		return l.access.all(ctx, namespace)
	}
	whole = true
	for _, g := range groups {
		var a listAnswer
		err := l.call(ctx, serviceList, listRequest{Namespace: namespace, Group: g, Page: 1, Size: pageSize, Module: "naming"}, &a)
		if err != nil {
			return nil, false, err
		}
		for _, name := range a.Names {
			all = append(all, serviceID{g, strings.TrimPrefix(name, g+"@@")}) // Nacos 3 has the group before the name
		}
		whole = whole && a.Count == len(a.Names)
	}
	return all, whole, nil
}

// ask subscribes to a service, or queries it; both answer with all of it.
func (l *link) ask(ctx context.Context, namespace string, id serviceID, subscribes bool) (*serviceInfo, error) {
	var a infoAnswer
	var err error
	if subscribes {
		err = l.call(ctx, subscribe, subscribeRequest{Namespace: namespace, Service: id.name, Group: id.group, Subscribe: true, Module: "naming"}, &a)
	} else {
		err = l.call(ctx, serviceQuery, queryRequest{Namespace: namespace, Service: id.name, Group: id.group, Module: "naming"}, &a)
	}
	if err == nil && a.Info == nil {
		err = fmt.Errorf("the answer has no serviceInfo")
	}
	return a.Info, err
}

// unsubscribe ends a subscription.
func (l *link) unsubscribe(ctx context.Context, namespace string, id serviceID) error {
	return l.call(ctx, subscribe, subscribeRequest{Namespace: namespace, Service: id.name, Group: id.group, Module: "naming"}, &answer{})
}

// status says how the registry is read (REG-15).
func (r *run) status(now time.Time) {
	reading := registry.Reading{Counts: r.catalog.Counts(), Oldest: now}
	held := 0
	for _, s := range r.services {
		held += len(s.held)
		if s.subscribed {
			reading.Polled++
		}
		if s.readAt.Before(reading.Oldest) {
			reading.Oldest = s.readAt // zero: it has not been read
		}
	}
	if r.holding && held > 0 {
		reading.Doubted = fmt.Sprintf("%s; %d instances are held", r.why, held)
	}
	if len(r.services) == 0 {
		reading.Oldest = time.Time{}
	}
	r.cfg.Status.Set(reading)
}

var _ watcher.Watcher = (*Watcher)(nil)

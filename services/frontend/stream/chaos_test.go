package stream_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"meshlog.dev/proto/ident"
	"meshlog.dev/services/frontend/names"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/mesh/xds"
)

// What a chaosClient sends.

func (c *chaosClient) someNames(t ident.ResourceType) []string {
	if (t == ident.CDS || t == ident.LDS) && c.pick(2) == 0 {
		return nil
	}
	var names []string
	for _, n := range []string{"a", "b", "c", "x"} {
		if c.pick(2) == 0 {
			names = append(names, n)
		}
	}
	return names
}

func (c *chaosClient) ask(t ident.ResourceType) {
	if c.asked[t] {
		return
	}
	c.asked[t] = true
	c.names[t] = c.someNames(t)
	set := c.views[c.pick(len(c.views))].Sets[t]
	if c.delta {
		c.askDelta(t, set)
		return
	}
	subscribed := new(names.Table).InternList(c.names[t]).SumIn(set).String()
	wild := (t == ident.CDS || t == ident.LDS) && len(c.names[t]) == 0
	all := set.Sum.String()
	if !wild {
		all = "fffe" // the Sum of all is the version of another subscription, which proves what the client had of that
	}
	version := []string{"", all, subscribed, "ffff", "nack-2-ff"}[c.pick(5)]
	if c.strict && slices.ContainsFunc(set.Resources, c.isBad) {
		version = ""
	}
	for _, r := range set.Resources {
		if wild && version == all || slices.Contains(c.names[t], r.Name) && version == subscribed {
			c.has[t][r.Name] = r.Sum
		}
	}
	c.version[t] = version
	c.request(t, "", "")
}

// askDelta sends the first request of a type, with the versions of some
// resources in set.
func (c *chaosClient) askDelta(t ident.ResourceType, set *xds.Set) {
	c.all[t] = (t == ident.CDS || t == ident.LDS) && (len(c.names[t]) == 0 || c.pick(4) == 0)
	sub := c.names[t]
	if c.all[t] && len(sub) > 0 {
		sub = append([]string{"*"}, sub...)
	}
	r := stream.Request{TypeURL: t.URL(), Names: names.Of(sub...)}
	c.crossed = c.crossed || len(c.queue[t]) > 0
	how := c.pick(4)
	for _, name := range slices.Sorted(maps.Keys(c.has[t])) { // sent before it was requested
		if how = 0; c.all[t] || slices.Contains(c.names[t], name) {
			r.Initial = r.Initial.With(name, c.has[t][name].String())
		} else {
			delete(c.has[t], name)
		}
	}
	for _, res := range set.Resources {
		if how == 0 || c.strict && c.isBad(res) || !c.all[t] && !slices.Contains(c.names[t], res.Name) || how == 1 && c.pick(2) == 0 {
			continue
		}
		sum := res.Sum
		if how == 2 && c.pick(4) == 0 {
			sum = xds.Absent(fmt.Sprint("unknown", c.next))
		}
		c.has[t][res.Name] = sum
		r.Initial = r.Initial.With(res.Name, sum.String())
	}
	c.note("> %s ask %v all %v has %v", t, sub, c.all[t], c.has[t])
	c.send(r)
}

// resubscribe changes the subscription.
func (c *chaosClient) resubscribe(t ident.ResourceType) {
	if !c.delta {
		c.names[t] = c.someNames(t)
		named := len(c.names[t]) > 0
		for name := range c.has[t] {
			if named && !slices.Contains(c.names[t], name) {
				delete(c.has[t], name)
			}
		}
		c.request(t, c.nonce[t], "")
		return
	}
	var add, drop []string
	for _, n := range c.someNames(t) {
		if c.pick(2) == 0 {
			add = append(add, n)
		} else {
			drop = append(drop, n)
		}
	}
	c.changeNames(t, add, drop)
	c.note("> %s sub %v unsub %v", t, add, drop)
	c.send(stream.Request{TypeURL: t.URL(), Names: names.Of(add...), Unsubscribe: names.Of(drop...)})
}

// changeNames changes what a delta client subscribes to. A client that names a name in
// both lists, which Envoy never does, has dropped what it had.
func (c *chaosClient) changeNames(t ident.ResourceType, add, drop []string) {
	have := slices.DeleteFunc(slices.Clone(c.names[t]), func(n string) bool { return slices.Contains(drop, n) })
	for _, n := range add {
		if !slices.Contains(have, n) {
			have = append(have, n)
		}
	}
	c.names[t] = have
	if !c.all[t] {
		maps.DeleteFunc(c.has[t], func(n string, _ xds.Sum) bool { return slices.Contains(drop, n) })
	}
}

// nonsense sends an invalid request.
func (c *chaosClient) nonsense(t ident.ResourceType) {
	r := stream.Request{
		TypeURL: []string{"", "x", t.URL()}[c.pick(3)], Nonce: []string{"", "1", "7", "x"}[c.pick(4)], Version: "?",
	}
	add := c.someNames(t)
	r.Names, r.Rejected, r.Error = names.Of(add...), c.pick(4) == 0, "a b"
	drop := c.someNames(t)
	r.Unsubscribe = names.Of(drop...)
	c.nacked = c.nacked || r.Rejected
	if r.TypeURL == "" && c.only != nil {
		t = *c.only
	}
	if c.delta && (r.TypeURL == t.URL() || r.TypeURL == "" && c.only != nil) {
		// As the first request of the type it is the one that may name versions, and all of
		// its unsubscriptions are void.
		if !c.asked[t] {
			c.asked[t], c.crossed, drop = true, c.crossed || len(c.queue[t]) > 0, nil
		}
		c.changeNames(t, add, drop)
		for i := range slices.IndexFunc(c.queue[t], func(q stream.Response) bool { return q.Nonce == r.Nonce }) + 1 {
			c.void[c.queue[t][i].Nonce] = true
		}
	}
	c.note("> nonsense %s %q sub %v unsub %v nonce=%q rejected=%v", t, r.TypeURL, add, r.Unsubscribe, r.Nonce, r.Rejected)
	c.send(r)
}

func (c *chaosClient) request(t ident.ResourceType, nonce, rejected string) {
	c.note("> %s version=%q nonce=%q names=%v rejected=%q", t, c.version[t], nonce, c.names[t], rejected)
	r := stream.Request{TypeURL: t.URL(), Nonce: nonce, Rejected: rejected != "", Error: rejected}
	if !c.delta {
		r.Version, r.Names = c.version[t], names.Of(c.names[t]...)
	}
	c.send(r)
}

func (c *chaosClient) answer(t ident.ResourceType, reject bool) {
	if len(c.queue[t]) == 0 {
		return
	}
	r := c.queue[t][0]
	c.queue[t] = c.queue[t][1:]
	c.asked[t] = c.asked[t] || !c.delta
	c.nonce[t] = r.Nonce
	if c.strict {
		if bad := c.bad(r); len(bad) > 0 {
			c.refuse(r, bad)
			return
		}
		reject = false
	}
	if !reject {
		if !c.void[r.Nonce] {
			c.apply(r)
		}
		c.version[t] = r.Version
		c.request(t, r.Nonce, "")
		return
	}
	c.nacked = true
	c.request(t, r.Nonce, []string{"b: is bad", "no name given", "a, c"}[c.pick(3)])
}

// bad returns the names in a response whose contents a strict client rejects.
func (c *chaosClient) bad(r stream.Response) (bad []string) {
	for _, res := range r.Resources {
		if c.isBad(res) {
			bad = append(bad, res.Name)
		}
	}
	return bad
}

func (c *chaosClient) isBad(r *xds.Resource) bool {
	return c.number[r.Sum] != 0 && c.number[r.Sum]%4 == 0
}

// refuse rejects a response because of its bad resources. The client may have
// applied none of the others, all of them, or those before the first bad one
// (E11, E12, E13).
func (c *chaosClient) refuse(r stream.Response, bad []string) {
	c.nacked = true
	message := "Unable to parse"
	if c.pick(3) == 1 {
		message = "Error adding/updating " + strings.Join(bad, ": why, ") + ": why"
	}
	how := c.pick(3)
	for _, res := range r.Resources {
		if how == 0 || how == 1 && res.Name >= bad[0] {
			break
		}
		if !slices.Contains(bad, res.Name) && (c.all[r.Type] || slices.Contains(c.names[r.Type], res.Name)) {
			c.has[r.Type][res.Name] = res.Sum
		}
	}
	c.request(r.Type, r.Nonce, message)
}

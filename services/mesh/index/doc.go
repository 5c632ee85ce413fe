// Package index answers what generation asks about a world: which services,
// endpoints, routes, rules and gateways a class of proxies sees.
//
// A PushContext consists of indexes, one for each idea (raw resources,
// services, endpoints, VirtualServices, rules, Gateways). Each index is
// immutable and has an edit, which takes in objects as they were and as they
// are, records the inputs that differ and makes the next index; the two share
// what did not change. What only one object can have, a host above all, belongs
// to the object that wins: by source priority, then age, then name.
//
// Classify maps a proxy to its class for each xDS type. Generation sees the
// class and never the proxy, so nothing can leak between proxies of one class.
//
// It is pure: no context, clock, log, goroutine or IO. Everything is immutable
// once made and safe for concurrent use.
package index

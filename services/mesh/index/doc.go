// Package index indexes a world for generation: it finds the services, endpoints,
// routes, rules and gateways that a class of proxies sees. ROWS.md lists the rules
// that it follows.
//
// A PushContext consists of indexes, one for each kind of answer (raw
// resources, services, endpoints, VirtualServices, rules, Gateways). Each index
// is immutable. Its next takes objects before and after a change, records the
// inputs that differ and makes the index after it; the two share everything
// unchanged. If objects claim something that only one can have, such as a host,
// the winner has it: by source priority, then age, then name.
//
// Classify maps a proxy to its class for each xDS type. Generation sees the
// class and never the proxy, so nothing can leak between proxies of one class.
//
// For each pin, and for a rollout that runs, there is a PushContext of its own, of the world
// as the pin's proxies see it, or those that the rollout has not reached, beside the one
// for all other proxies. A class names the pin or rollout that it is for, and an Input the
// view that it is in. So one Catalog and one cache hold the classes of all
// groups: a change that a pin keeps from its proxies makes none of their parts again, and
// equal resources are the same pointers in all groups.
//
// It is pure: no context, clock, log, goroutine or IO. Everything is immutable
// once made and safe for concurrent use.
package index

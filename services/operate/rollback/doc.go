// Package rollback holds the commands by which operators overrule the sources of a
// mesh: rollback, freeze, and release, which ends both; pin, which keeps some proxies as they
// are, and unpin. Each writes one overlay on the
// log; what it means is a rule of mesh/fold (M7).
package rollback

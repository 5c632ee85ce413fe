// Package rollback plans and carries out the acts by which operators overrule the sources of a
// mesh, for commands and for the web console: rollback, freeze, and release, which ends both;
// pin, which keeps some proxies as they are, and unpin; and approvals of what is held back. It
// has the commands of all but the last one. Each act writes one overlay on the log, or ends one;
// what it means is a rule of mesh/fold (M7).
package rollback

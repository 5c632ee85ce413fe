package bus

import (
	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

// Core subjects, after the prefix of their mesh.
const (
	tickSubject    = "tick"
	digestsSubject = "digests"
	askSubject     = "ask." // then the role that is asked
	proxySubject   = "proxy"
	drainSubject   = "drain"
	listingSubject = "listing." // then source and instance
	reportSubject  = "report."  // then the name of the process
	issuersSubject = "issuers"
	// Of the certificate authority: what operators ask it, and what it asks the leader.
	authoritySubject = "authority"
	podsSubject      = "pods"
)

// anyToken is the wildcard of one token.
const anyToken = "*"

func fleetPrefix(domain string) string { return "meshlog.fleet." + events.Token(domain) + "." }

// keyPrefix begins the subjects of key requests; source and instance follow. It is
// outside of the fleet's subjects and of all streams: what is asked for under it and
// answered is never stored (KEY-3).
func keyPrefix(domain string) string { return "meshlog.key." + events.Token(domain) + "." }

func shardTokens(s ident.Shard) string {
	return events.Token(s.Source) + "." + events.Token(s.Instance)
}

// Names of reporting processes, made of tokens or wildcards.

func frontendName(id string) string { return "frontend." + id }

func builderName(id string) string { return "builder." + id }

func watcherName(holder, shard string) string { return "watcher." + holder + "." + shard }

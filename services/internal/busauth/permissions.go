// Package busauth writes the configuration of NATS servers for the processes of a
// mesh: accounts and a user for each role, with exactly the permissions that the
// role's code needs, certificates for tests and demos, and the secrets with which
// servers of a cluster know each other.
//
// The streams are in an account of administrators, MESHLOG. Every other role, and
// the watchers of each shard, have an account of their own, which reaches the
// streams and the other roles through private imports. JetStream publishes answers
// without checking the rights of the client that asked, to any subject that the
// client names (BUS-2): with accounts, the answer stays in the client's own.
//
// The packages that use subjects compute the permissions for them, and the accounts
// follow from the permissions, so that none of the three can differ. A [Limit] narrows
// the permissions of a watcher's user, but not its account. A new role needs
// its subjects in [bus.Role] and in Permissions, and its requests in TestAttacksByReply;
// a new stream counts among those of the hub.
package busauth

import (
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/events/natslog"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/cakv"
	"meshlog.dev/store/natsfeed"
)

// Permissions returns the permissions of a role on the bus of the mesh called domain.
// They are the second wall; the role's account is the first.
func Permissions(r bus.Role, domain string) bus.Permissions {
	chain := natsfeed.Options{Domain: domain}
	p := r.Permissions(domain)
	publish := func(lists ...[]string) {
		for _, l := range lists {
			p.Publish = append(p.Publish, l...)
		}
	}
	publish(audit.WriterPermissions(r, domain), cakv.Permissions(r, domain))
	shard, watches := r.Shard()
	switch {
	case watches && shard.Instance == "":
		publish(natslog.SourcePermissions(domain, shard.Source))
	case watches:
		publish(natslog.ShardPermissions(domain, shard))
	case r == bus.Builder():
		publish(
			natslog.CreatePermissions(), natslog.ReadPermissions(),
			subjects(domain, events.SegmentSubject, events.BuilderOverlaySubject),
			natsfeed.CreatePermissions(), natsfeed.ReadPermissions(), natsfeed.PublishPermissions(chain),
			audit.CreatePermissions(), cakv.CreatePermissions(),
		)
		p.Subscribe = append(p.Subscribe, chain.LiveSubject())
	case r == bus.Frontend():
		publish(natsfeed.ReadPermissions())
		p.Subscribe = append(p.Subscribe, chain.LiveSubject())
	case r == bus.Console():
		publish(natslog.ReadPermissions(), natsfeed.ReadPermissions())
		p.Subscribe = append(p.Subscribe, chain.LiveSubject())
	case r == bus.Operator():
		publish(
			natslog.ReadPermissions(),
			// Operators approve, end the sessions of a removed source, and apply objects
			// (API-4).
			subjects(domain, events.OperatorOverlaySubject, events.OperatorControlSubject, events.AnyControlSubject, events.Objects{Source: ident.API}.Subjects()),
			natsfeed.ReadPermissions(), audit.ReadPermissions(),
		)
		p.Subscribe = append(p.Subscribe, chain.LiveSubject())
	}
	p.Publish, p.Subscribe = sorted(p.Publish), sorted(p.Subscribe)
	return p
}

// signedOnly takes the sessions of watchers out of what the operators' user may publish:
// operators who sign have a subject of their own for sessions. The imports of the account
// stay, as those of a Limit.
func signedOnly(domain string, all []*account) {
	for _, a := range all {
		if a.role != bus.Operator() {
			continue
		}
		p := *a.perms
		p.Publish = slices.DeleteFunc(slices.Clone(p.Publish), func(s string) bool { return s == events.AnyControlSubject.In(domain) })
		p.Publish = sorted(append(p.Publish, events.SourceControlSubjects(ident.API).In(domain)))
		a.user = &p
	}
}

func subjects(domain string, of ...events.Subject) []string {
	var full []string
	for _, s := range of {
		full = append(full, s.In(domain))
	}
	return full
}

func sorted(s []string) []string {
	slices.Sort(s)
	return slices.Compact(s)
}

// Package busauth writes the configuration of NATS servers for the processes of a
// mesh: a user for each role, with exactly the permissions that the role's code
// needs, and certificates for tests and demos.
//
// The packages that use subjects compute the permissions for them, so the two
// cannot differ.
package busauth

import (
	"slices"

	"meshlog.dev/events"
	"meshlog.dev/events/natslog"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/store/natsfeed"
)

// Permissions returns the permissions of a role on the bus of the mesh called domain.
func Permissions(r bus.Role, domain string) bus.Permissions {
	chain := natsfeed.Options{Domain: domain}
	p := r.Permissions(domain)
	publish := func(lists ...[]string) {
		for _, l := range lists {
			p.Publish = append(p.Publish, l...)
		}
	}
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
		)
		p.Subscribe = append(p.Subscribe, chain.LiveSubject())
	case r == bus.Frontend():
		publish(natsfeed.ReadPermissions())
		p.Subscribe = append(p.Subscribe, chain.LiveSubject())
	case r == bus.Operator():
		publish(
			natslog.ReadPermissions(), natslog.UpdatePermissions(),
			// Operators approve, and end the sessions of a removed source.
			subjects(domain, events.OperatorOverlaySubject, events.AnyControlSubject),
			natsfeed.ReadPermissions(), natsfeed.UpdatePermissions(),
		)
		p.Subscribe = append(p.Subscribe, chain.LiveSubject())
	}
	p.Publish, p.Subscribe = sorted(p.Publish), sorted(p.Subscribe)
	return p
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

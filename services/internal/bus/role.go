package bus

import (
	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
	"meshlog.dev/proto/jsapi"
)

// Role is the role of a process on the bus. Its permissions follow from it.
type Role struct {
	kind  roleKind
	shard ident.Shard // of a watcher; without an instance: all shards of the source
}

type roleKind string

const (
	watcherRole  roleKind = "watcher"
	builderRole  roleKind = "builder"
	frontendRole roleKind = "frontend"
	operatorRole roleKind = "operator"
)

// Watcher returns the role of the watchers of a shard.
func Watcher(s ident.Shard) Role { return Role{kind: watcherRole, shard: s} }

// Watchers returns the role of a process that watches all instances of a source.
// Each of its connections has the role of one Watcher.
func Watchers(source string) Role {
	return Role{kind: watcherRole, shard: ident.Shard{Source: source}}
}

// Builder returns the role of builders.
func Builder() Role { return Role{kind: builderRole} }

// Frontend returns the role of frontends.
func Frontend() Role { return Role{kind: frontendRole} }

// Operator returns the role of the command line.
func Operator() Role { return Role{kind: operatorRole} }

// String returns the role's name as a token, for its user and for files.
func (r Role) String() string {
	switch {
	case r.kind == watcherRole && r.shard.Instance == "":
		return string(r.kind) + "-" + events.Token(r.shard.Source)
	case r.kind == watcherRole:
		return string(r.kind) + "-" + events.Token(r.shard.Source) + "-" + events.Token(r.shard.Instance)
	}
	return string(r.kind)
}

// Shard returns the shard of a watcher, without an instance for Watchers. ok is
// false for other roles.
func (r Role) Shard() (s ident.Shard, ok bool) { return r.shard, r.kind == watcherRole }

// shardTokens returns the shard of a watcher as tokens, or as wildcards.
func (r Role) shardTokens() string {
	if r.shard.Instance == "" {
		return events.Token(r.shard.Source) + "." + anyToken
	}
	return shardTokens(r.shard)
}

// inboxes returns the prefix of the inboxes of the role's processes. They may share
// a user, whose permissions name it, so it depends on the role only.
func (r Role) inboxes() string {
	if r.kind == watcherRole {
		return inboxPrefix + string(r.kind) + "." + r.shardTokens()
	}
	return inboxPrefix + string(r.kind)
}

// Permissions are the subjects that a client may use.
type Permissions struct {
	Publish, Subscribe []string
	// Answers: the client may also publish to the inbox of a question.
	Answers bool
}

// Permissions returns the permissions that the functions of this package need: for
// the fleet and the lease. Log and version chain have their own.
func (r Role) Permissions(domain string) Permissions {
	prefix := fleetPrefix(domain)
	p := Permissions{Publish: []string{jsapi.AccountInfo}, Subscribe: []string{r.inboxes() + ".>"}}
	switch r.kind {
	case watcherRole:
		shard := r.shardTokens()
		p.Publish = append(p.Publish, prefix+digestsSubject, prefix+reportSubject+watcherName(anyToken, shard))
		p.Subscribe = append(p.Subscribe, prefix+listingSubject+shard, prefix+askSubject)
		p.Answers = true
	case builderRole:
		// A builder may publish to all inboxes. With Answers, the server would
		// remember a reply for each record of the log.
		p.Publish = append(p.Publish,
			inboxPrefix+">", prefix+tickSubject, prefix+listingSubject+"*.*", prefix+reportSubject+builderName(anyToken))
		p.Publish = append(p.Publish, leasePermissions(domain)...)
		p.Subscribe = append(p.Subscribe, leaseSubject(domain),
			prefix+digestsSubject, prefix+tickSubject, prefix+reportSubject+">", prefix+askSubject)
	case frontendRole:
		p.Publish = append(p.Publish, prefix+reportSubject+frontendName(anyToken))
		p.Subscribe = append(p.Subscribe, prefix+tickSubject, prefix+askSubject, prefix+proxySubject)
		p.Answers = true
	case operatorRole:
		p.Publish = append(p.Publish,
			prefix+askSubject, prefix+proxySubject, prefix+listingSubject+"*.*", jsapi.StreamInfo+leaseStream, jsapi.StreamUpdate+leaseStream)
		p.Subscribe = append(p.Subscribe, prefix+">")
	}
	return p
}

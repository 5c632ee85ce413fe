package bus

import (
	"fmt"
	"strings"

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
	observerRole roleKind = "observer"
	consoleRole  roleKind = "console"
	adminRole    roleKind = "admin"
)

// Sources whose watchers differ from others. They keep no keys of objects, so that a
// frontend cannot ask them for one.
const (
	// CASource publishes the roots of the mesh's own authority. A process that ends
	// the streams of proxies must not reach the one that signs identities (CA-2).
	CASource = "ca"
	// JWKSSource publishes the public keys of token issuers, and hears which issuers
	// the world names (POL-12).
	JWKSSource = "jwks"
)

// reporting are the roles that answer questions for reports.
var reporting = []roleKind{builderRole, frontendRole, watcherRole}

// Watcher returns the role of the watchers of a shard.
func Watcher(s ident.Shard) Role { return Role{kind: watcherRole, shard: s} }

// Watchers returns the role of a process that watches all instances of a source.
// Each of its connections has the role of one Watcher.
func Watchers(source string) Role {
	return Role{kind: watcherRole, shard: ident.Shard{Source: source}}
}

// ParseWatcher returns the role of a watcher that SOURCE/INSTANCE names, or SOURCE/*
// for one that watches all instances.
func ParseWatcher(name string) (Role, error) {
	source, instance, _ := strings.Cut(name, "/")
	switch {
	case source == "" || instance == "":
		return Role{}, fmt.Errorf("%q: want SOURCE/INSTANCE, as in file/default", name)
	case instance == anyToken:
		return Watchers(source), nil
	}
	return Watcher(ident.Shard{Source: source, Instance: instance}), nil
}

// Builder returns the role of builders.
func Builder() Role { return Role{kind: builderRole} }

// Frontend returns the role of frontends.
func Frontend() Role { return Role{kind: frontendRole} }

// Operator returns the role of the command line.
func Operator() Role { return Role{kind: operatorRole} }

// Observer returns the role of processes that ask others for reports, and may do nothing
// else: no stream, no key.
func Observer() Role { return Role{kind: observerRole} }

// Console returns the role of the web console: it reads the log, the version chain and the
// reports, and writes to none of the streams.
func Console() Role { return Role{kind: consoleRole} }

// Admin returns the role of the administrator, which makes, changes and deletes
// streams. It has no limits: only the command line uses it, for the few commands
// that need it.
func Admin() Role { return Role{kind: adminRole} }

// String returns the role's name as a token, for its account and for files. It is not
// unique: of watchers with a hyphen in source or instance, busauth refuses the second
// one of a name.
func (r Role) String() string {
	switch {
	case r.kind == watcherRole && r.shard.Instance == "":
		return string(r.kind) + "-" + events.Token(r.shard.Source)
	case r.kind == watcherRole:
		return string(r.kind) + "-" + events.Token(r.shard.Source) + "-" + events.Token(r.shard.Instance)
	}
	return string(r.kind)
}

// KeyName returns the name of the file with the key of the role's user.
func (r Role) KeyName() string { return r.String() + ".nk" }

// ExchangeKeyName returns the name of the file with the xkey that the role asks or
// answers for keys of objects with (KEY-4). ok is false for roles that do neither.
func (r Role) ExchangeKeyName() (name string, ok bool) {
	return r.String() + exchangeKeyExt, r.kind == frontendRole || r.keepsKeys()
}

// exchangeKeyExt ends the name of the file with an xkey.
const exchangeKeyExt = ".xk"

// keepsKeys reports whether frontends may ask the role for keys of objects.
func (r Role) keepsKeys() bool {
	return r.kind == watcherRole && r.shard.Source != CASource && r.shard.Source != JWKSSource
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
	switch r.kind {
	case watcherRole:
		return inboxPrefix + string(r.kind) + "." + r.shardTokens()
	case adminRole:
		// The command line's: with an operator's key in place of the administrator's,
		// the server then denies the request and not the inbox, and the error says so.
		return Operator().inboxes()
	}
	return inboxPrefix + string(r.kind)
}

// Permissions are the subjects that a client may use.
type Permissions struct {
	Publish, Subscribe []string
	// Deny are subjects that it may not publish to, although Publish covers them.
	Deny []string
	// Answers: the client may also publish to the inbox of a question.
	Answers bool
}

// Permissions returns the permissions that the functions of this package need: for
// the fleet, keys and the lease. Log, version chain and audit have their own. Those of Admin are
// empty: it may do everything.
func (r Role) Permissions(domain string) Permissions {
	prefix := fleetPrefix(domain)
	p := Permissions{Publish: []string{jsapi.AccountInfo}, Subscribe: []string{r.inboxes() + ".>"}}
	switch r.kind {
	case watcherRole:
		shard := r.shardTokens()
		p.Publish = append(p.Publish, prefix+digestsSubject, prefix+reportSubject+watcherName(anyToken, shard), userInfo)
		p.Subscribe = append(p.Subscribe, prefix+listingSubject+shard, prefix+askSubject+string(r.kind))
		if r.shard.Source == JWKSSource {
			p.Subscribe = append(p.Subscribe, prefix+issuersSubject)
		}
		if r.shard.Source == CASource {
			// It waits until proxies have applied a root (CA-10), which frontends report,
			// and asks whether the mesh knows a pod (CA-5).
			p.Publish = append(p.Publish, prefix+podsSubject)
			p.Subscribe = append(p.Subscribe, prefix+reportSubject+frontendName(anyToken), prefix+authoritySubject)
		}
		if r.keepsKeys() {
			p.Subscribe = append(p.Subscribe, keyPrefix(domain)+shard)
		}
		p.Answers = true
	case builderRole:
		// A builder may publish to all replies that the server has rewritten. With
		// Answers, the server would remember a reply for each record of the log.
		p.Publish = append(p.Publish,
			replyPrefix+">", prefix+tickSubject, prefix+issuersSubject, prefix+listingSubject+"*.*", prefix+reportSubject+builderName(anyToken))
		p.Publish = append(p.Publish, leasePermissions(domain)...)
		p.Subscribe = append(p.Subscribe, leaseSubject(domain),
			prefix+digestsSubject, prefix+podsSubject, prefix+tickSubject, prefix+reportSubject+">", prefix+askSubject+string(r.kind))
	case frontendRole:
		p.Publish = append(p.Publish, prefix+reportSubject+frontendName(anyToken), keyPrefix(domain)+">")
		p.Subscribe = append(p.Subscribe, prefix+tickSubject, prefix+askSubject+string(r.kind), prefix+proxySubject, prefix+drainSubject)
		p.Answers = true
	case operatorRole:
		p.Publish = append(p.Publish,
			prefix+proxySubject, prefix+drainSubject, prefix+authoritySubject, prefix+listingSubject+"*.*", jsapi.StreamInfo+leaseStream)
		for _, asked := range reporting {
			p.Publish = append(p.Publish, prefix+askSubject+string(asked))
		}
		p.Subscribe = append(p.Subscribe, prefix+tickSubject, prefix+reportSubject+">")
	case consoleRole:
		// It asks frontends for the resources of a proxy; it ends no stream.
		p.Publish = append(p.Publish, prefix+proxySubject)
		for _, asked := range reporting {
			p.Publish = append(p.Publish, prefix+askSubject+string(asked))
		}
		p.Subscribe = append(p.Subscribe, prefix+tickSubject, prefix+reportSubject+">")
	case observerRole:
		for _, asked := range reporting {
			p.Publish = append(p.Publish, prefix+askSubject+string(asked))
		}
	case adminRole:
		return Permissions{}
	}
	return p
}

// Way is how a message reaches the clients that it is for, if each role has its own
// account.
type Way int

// Ways of messages.
const (
	Stored   Way = iota // JetStream takes it: a record, or a request to its API
	Asked               // a request, which a process of another role answers
	Gathered            // a request, which many processes answer, or one with several messages
	Told                // a message to other roles, without an answer
	Inside              // a reply, or a request that the client's server answers
)

// WayOf returns the way of the messages under a subject of Permissions.
func WayOf(domain, subject string) Way {
	after, fleet := strings.CutPrefix(subject, fleetPrefix(domain))
	switch {
	case isInbox(subject), subject == userInfo:
		return Inside
	case strings.HasPrefix(subject, keyPrefix(domain)):
		return Asked
	case !fleet:
		return Stored
	case after == digestsSubject, after == podsSubject:
		return Asked
	case after == proxySubject, after == drainSubject, after == authoritySubject, strings.HasPrefix(after, askSubject):
		return Gathered
	}
	return Told
}

// replyPrefix begins the replies of requests from other accounts: the server puts
// its own in place of the client's, and refuses clients that name one.
const replyPrefix = "_R_."

// isInbox reports whether a subject is a place for answers. A process of ours
// answers there only: a request may name any subject as its reply, and with the
// rights of the process that answers, the answer could be stored as a record.
func isInbox(reply string) bool {
	return strings.HasPrefix(reply, inboxPrefix) || strings.HasPrefix(reply, replyPrefix)
}

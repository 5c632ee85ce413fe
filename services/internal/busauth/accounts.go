package busauth

import (
	"fmt"
	"slices"
	"strings"

	"meshlog.dev/proto/jsapi"
	"meshlog.dev/services/internal/bus"
)

// account is what one role has on the servers. All users of an account have the
// power of all its imports, so that each role, and each shard, has its own.
type account struct {
	name    string
	about   string   // the role, for readers of the file
	limits  []string // settings
	role    bus.Role
	users   []string         // public keys; none: a former role
	perms   *bus.Permissions // nil: everything
	user    *bus.Permissions // of its users, if they may do less
	granted *granted         // the part of user that a Limit gives
	exports []*export
	imports []string // lines
}

// export is a subject that other accounts may import.
type export struct {
	kind, subject, more string
	accounts            []string
}

// threshold ends the wait of the server for an answer. Until then it keeps some 400
// bytes for each request without an answer, or with several; the server's own
// default is two minutes.
const threshold = `response_threshold: "15s"`

// Limits of the hub: the streams of a mesh, so that no role that may create them
// can create others.
const streams = 6

// Limits of clients. A watcher's largest message is a record or a part of an
// answer, both 512 KiB, with headers.
const (
	subscriptions = "max_subscriptions: 64" // of a connection
	payload       = "max_payload: 600KB"
	// A shard has an active watcher and standbys; a process that watches a source
	// has a connection for each instance.
	ofShard  = "max_connections: 16"
	ofSource = "max_connections: 1024"
)

// accounts returns the accounts of a mesh. keys are the public keys of the roles
// that have users; the roles in former had some.
//
// Exports and imports follow from Permissions: JetStream serves what a role may
// publish to a stream or to its API; a role that may subscribe to a request of
// another role serves it; and what a role tells goes to the roles that may
// subscribe to it. Each goes to the roles that need it and to no other, so that
// permissions and accounts cannot differ.
func accounts(domain string, roles []bus.Role, keys []string, former []bus.Role) []*account {
	hub := &account{name: bus.HubAccount, about: "the streams; its users are administrators", role: bus.Admin(),
		limits: []string{fmt.Sprintf("jetstream { max_streams: %d }", streams)}}
	all := []*account{hub}
	add := func(r bus.Role, key ...string) {
		i := slices.IndexFunc(all, func(a *account) bool { return a.role == r })
		if i < 0 {
			p := Permissions(r, domain)
			i, all = len(all), append(all, &account{name: accountName(r), about: r.String(), limits: limits(r), role: r, perms: &p})
		}
		all[i].users = append(all[i].users, key...)
	}
	// These exist always: a watcher's account refers to them.
	for _, r := range []bus.Role{bus.Builder(), bus.Frontend(), bus.Operator()} {
		add(r)
	}
	for _, r := range former {
		add(r)
	}
	for i, r := range roles {
		add(r, keys[i])
	}
	slices.SortStableFunc(all, func(a, b *account) int { return strings.Compare(order(a), order(b)) })
	for _, a := range all[1:] {
		a.reach(domain, hub, all[1:])
	}
	return all
}

// order sorts the accounts of watchers behind the others.
func order(a *account) string {
	if _, watches := a.role.Shard(); watches {
		return a.name
	}
	return ""
}

func accountName(r bus.Role) string {
	if _, watches := r.Shard(); watches {
		return "W" + strings.TrimPrefix(r.String(), "watcher")
	}
	return strings.ToUpper(r.String())
}

func limits(r bus.Role) []string {
	var l []string
	switch shard, watches := r.Shard(); {
	case watches && shard.Instance == "":
		l = []string{ofSource, subscriptions, payload}
	case watches:
		l = []string{ofShard, subscriptions, payload}
	case r == bus.Frontend(), r == bus.Observer(), r == bus.Console():
		l = []string{subscriptions, payload}
	default:
		return nil
	}
	return []string{"limits { " + strings.Join(l, ", ") + " }"}
}

// reach adds the imports of an account, and the exports of other accounts for them.
func (a *account) reach(domain string, hub *account, all []*account) {
	for _, s := range a.perms.Publish {
		switch way := bus.WayOf(domain, s); way {
		case bus.Stored:
			a.ask(hub, s, answers(way, s))
		case bus.Asked, bus.Gathered:
			for _, b := range all {
				for _, sub := range b.perms.Subscribe {
					if served, ok := narrower(s, sub); ok && b != a && bus.WayOf(domain, sub) == way {
						a.ask(b, served, answers(way, served))
					}
				}
			}
		case bus.Told:
			for _, b := range all {
				for _, sub := range b.perms.Subscribe {
					if b != a && bus.WayOf(domain, sub) == bus.Told {
						b.hear(a, s, sub)
					}
				}
			}
		}
	}
	// The hub repeats versions. What a role stores itself, as the lease, it hears in
	// its own account.
	for _, sub := range a.perms.Subscribe {
		if bus.WayOf(domain, sub) == bus.Stored && !slices.Contains(a.perms.Publish, sub) {
			a.hear(hub, sub, sub)
		}
	}
}

// answers returns the settings of an export for the answers to requests.
func answers(way bus.Way, subject string) string {
	const several = "response_type: stream"
	stream, direct := strings.CutPrefix(subject, jsapi.DirectGet)
	switch {
	case strings.HasPrefix(subject, jsapi.ConsumerNext):
		// A pull waits for records for as long as it likes, and the server would drop them later.
		return several
	case direct && !strings.Contains(stream, "."), // may ask for a batch
		way == bus.Gathered:
		return several + ", " + threshold
	}
	return threshold
}

// ask imports a service of another account.
func (a *account) ask(of *account, subject, more string) {
	of.export("service", subject, more, a)
	a.imports = append(a.imports, fmt.Sprintf("{ service: { account: %q, subject: %q } }", of.name, subject))
}

// hear imports a stream: what another account tells under told, as far as it is
// under sub too.
func (a *account) hear(from *account, told, sub string) {
	told, ok := narrower(told, sub)
	if !ok {
		return
	}
	from.export("stream", told, "", a)
	a.imports = append(a.imports, fmt.Sprintf("{ stream: { account: %q, subject: %q } }", from.name, told))
}

func (a *account) export(kind, subject, more string, to *account) {
	for _, e := range a.exports {
		if e.kind == kind && e.subject == subject {
			e.accounts = append(e.accounts, to.name)
			return
		}
	}
	a.exports = append(a.exports, &export{kind, subject, more, []string{to.name}})
}

// narrower returns the subjects that are under both, if one of the two covers the other.
func narrower(a, b string) (both string, ok bool) {
	switch {
	case covers(b, a):
		return a, true
	case covers(a, b):
		return b, true
	}
	return "", false
}

// covers reports whether each subject under narrow is under wide.
func covers(wide, narrow string) bool {
	w, n := strings.Split(wide, "."), strings.Split(narrow, ".")
	for i, token := range w {
		switch {
		case token == ">":
			return len(n) > i
		case i >= len(n), n[i] == ">":
			return false
		case token != "*" && token != n[i]:
			return false
		}
	}
	return len(n) == len(w)
}

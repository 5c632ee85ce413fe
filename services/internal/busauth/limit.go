package busauth

import (
	"encoding/json"
	"slices"
	"strings"

	"meshlog.dev/events"
	"meshlog.dev/proto/ident"
)

// Limit is what the watchers of a shard, or of a source, may publish of their objects.
// It narrows the permissions of their user, which is the second wall. The imports of
// their account stay as they are, because the server delivers a message once for each
// import that matches its subject.
type Limit struct {
	Allow, Deny []events.Subject // Deny has the last word
}

// Permission is a permission of a watcher to publish objects and records of sessions,
// and whether the file of ConfigName had it before.
type Permission struct {
	Watcher string `json:"watcher"` // SOURCE/INSTANCE, or SOURCE/*
	Deny    bool   `json:"deny"`
	Subject string `json:"subject"`
	State   string `json:"state"` // new, kept, removed
}

const stateRemoved = "removed"

// granted are the subjects of a watcher's objects and sessions.
type granted struct {
	Watcher     string
	Allow, Deny []string
}

// own returns the wildcard for all records of a watcher, and the subject of its
// sessions.
func own(shard ident.Shard) (all, control events.Subject) {
	if shard.Instance == "" {
		return events.SourceSubjects(shard.Source), events.SourceControlSubjects(shard.Source)
	}
	return events.ShardSubjects(shard), events.ControlSubject(shard)
}

// limit narrows the permissions of the users of a watcher's account. Records of
// sessions, and all requests, stay allowed.
func (a *account) limit(domain string, l Limit) {
	shard, _ := a.role.Shard()
	all, control := own(shard)
	p := *a.perms
	p.Publish = slices.DeleteFunc(slices.Clone(p.Publish), func(s string) bool { return s == all.In(domain) })
	a.granted = &granted{
		Watcher: WatcherName(shard),
		Allow:   sorted(subjects(domain, append(slices.Clone(l.Allow), control)...)),
		Deny:    sorted(subjects(domain, l.Deny...)),
	}
	p.Publish, p.Deny = sorted(append(p.Publish, a.granted.Allow...)), a.granted.Deny
	a.user = &p
}

// WatcherName returns the name by which the command line names the watchers of a shard
// or, without an instance, of a source.
func WatcherName(shard ident.Shard) string {
	if shard.Instance == "" {
		shard.Instance = "*"
	}
	return shard.String()
}

// limitsMark begins the line of a configuration that lists what limited watchers may
// publish, as JSON: the next run compares.
const limitsMark = "# limited watchers: "

// limitsLine returns that line, or nothing if no watcher is limited.
func limitsLine(all []*account) string {
	var limited []*granted
	for _, a := range all {
		if a.granted != nil {
			limited = append(limited, a.granted)
		}
	}
	if len(limited) == 0 {
		return ""
	}
	line, err := json.Marshal(limited)
	if err != nil {
		panic(err) // strings always encode
	}
	return limitsMark + string(line) + "\n"
}

// compare returns the permissions of watchers, compared with the old configuration.
func (u Users) compare(all []*account, old string) []Permission {
	_, rest, _ := strings.Cut(old, limitsMark)
	line, _, _ := strings.Cut(rest, "\n")
	var limited []granted
	_ = json.Unmarshal([]byte(line), &limited) // without the line nothing was limited
	former, _ := formerWatchers(old)
	var ps []Permission
	for _, a := range all {
		shard, watches := a.role.Shard()
		if !watches || len(a.users) == 0 {
			continue
		}
		whole, _ := own(shard)
		name := WatcherName(shard)
		unlimited := granted{name, []string{whole.In(u.Domain)}, nil}
		var was granted
		i := slices.IndexFunc(limited, func(g granted) bool { return g.Watcher == name })
		switch {
		case i >= 0:
			was = limited[i]
		case slices.Contains(former, a.role):
			was = unlimited
		}
		now := unlimited
		if a.granted != nil {
			now = *a.granted
		}
		if u.Limits != nil || i >= 0 {
			ps = append(ps, changes(name, false, was.Allow, now.Allow)...)
			ps = append(ps, changes(name, true, was.Deny, now.Deny)...)
		}
	}
	return ps
}

func changes(watcher string, deny bool, was, now []string) []Permission {
	var ps []Permission
	for _, s := range sorted(slices.Concat(was, now)) {
		state := StateKept
		switch {
		case !slices.Contains(was, s):
			state = stateNew
		case !slices.Contains(now, s):
			state = stateRemoved
		}
		ps = append(ps, Permission{watcher, deny, s, state})
	}
	return ps
}

package busauth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats.go"

	"meshlog.dev/events"
	"meshlog.dev/events/natslog"
	"meshlog.dev/proto/ident"
	"meshlog.dev/proto/jsapi"
	"meshlog.dev/services/internal/bus"
)

// limit allows Gateways in shop and Services in all namespaces, but no Pods anywhere.
func limit(shard ident.Shard) Limit {
	of := func(kind, namespace *string) events.Subject {
		o := events.Objects{Source: shard.Source, Kind: kind, Namespace: namespace}
		if shard.Instance != "" {
			o.Instance = &shard.Instance
		}
		return o.Subjects()
	}
	gateway, service, pod, shop, open := "Gateway", "Service", "Pod", "shop", "open"
	return Limit{Allow: []events.Subject{of(&gateway, &shop), of(&service, nil), of(nil, &open)}, Deny: []events.Subject{of(&pod, nil)}}
}

// attempt appends an event as a watcher of a shard.
func attempt(t *testing.T, nc *bus.Conn, shard ident.Shard, body events.Body) error {
	t.Helper()
	log, err := natslog.Open(t.Context(), nc, natslog.Options{Shard: &shard})
	must(t, err)
	defer log.Close()
	_, err = log.Append(t.Context(), []events.Event{{ID: fmt.Sprint(t.Name(), body), Body: body}}, events.Fence{})
	return err
}

func object(shard ident.Shard, kind, namespace string) *events.Object {
	return &events.Object{
		Key: ident.Key{Source: shard.Source, Instance: shard.Instance, Kind: kind, Namespace: namespace, Name: "x"},
		Op:  events.Delete, Session: "1", Pseq: 1, Low: 1,
	}
}

// ACL-3: a watcher with a limit is refused the kinds and namespaces outside of it, and may
// publish all others and the records of its sessions. A limit counts for watchers that are
// connected when the servers load it, and so does its end.
func TestLimit(t *testing.T) {
	s := start(t)
	must(t, second(natslog.EnsureStream(t.Context(), s.connect(bus.Builder()), natslog.StreamOptions{})))
	eu := ident.Shard{Source: "kubernetes", Instance: "eu"}
	conns := map[ident.Shard]*bus.Conn{files: s.connect(bus.Watcher(files)), eu: nil}
	o := s.options(bus.Watcher(eu))
	o.NkeyFile = s.in(clusters.KeyName())
	var err error
	if conns[eu], err = bus.Connect(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conns[eu].Close)
	lost := conns[files].StatusChanged(nats.DISCONNECTED, nats.RECONNECTING)
	load := func(limits map[bus.Role]Limit, want string) []Permission {
		t.Helper()
		got, permissions, err := Users{Domain: "mesh", Roles: append(slices.Clone(roles), clusters), Limits: limits}.Write(s.dir)
		must(t, err, s.server.Reload())
		for _, f := range got {
			if strings.HasSuffix(f.Path, ".nk") && f.State != "kept" || strings.HasSuffix(f.Path, ConfigName) && f.State != want {
				t.Errorf("%s is %s", f.Path, f.State)
			}
		}
		return permissions
	}
	try := func(shard ident.Shard, body events.Body, may bool) {
		t.Helper()
		err := attempt(t, conns[shard], shard, body)
		if may && err != nil || !may && !errors.As(err, new(*jsapi.DeniedError)) {
			t.Errorf("%s appends %+v: %v, want accepted: %t", shard, body, err, may)
		}
		permitted, err := bus.Permitted(t.Context(), conns[shard])
		must(t, err)
		subject, err := events.SubjectOf(events.Event{Body: body})
		must(t, err)
		if got := permitted(subject.In("mesh")); got != may {
			t.Errorf("%s, %+v: the server says %t, and does %t", shard, body, got, may)
		}
	}
	for shard := range conns {
		try(shard, object(shard, "Pod", "shop"), true)
	}

	load(map[bus.Role]Limit{bus.Watcher(files): limit(files), clusters: limit(ident.Shard{Source: "kubernetes"})}, "changed")
	for shard := range conns {
		try(shard, &events.Begin{Shard: shard, Session: "1", Holder: "h"}, true)
		try(shard, &events.Alive{Shard: shard, Session: "1", Low: 1}, true)
		try(shard, object(shard, "Gateway", "shop"), true)
		try(shard, object(shard, "Service", ""), true)
		try(shard, object(shard, "Gateway", "open"), true)
		try(shard, object(shard, "Gateway", "pay"), false)
		try(shard, object(shard, "Gateway", ""), false)
		try(shard, object(shard, "VirtualService", "shop"), false)
		try(shard, object(shard, "Pod", "open"), false)
	}
	// The refusal of one object does not end a slow request for another one.
	slow, stop := jsapi.Bound(t.Context(), conns[files], 2*jsapi.DenialWait, "meshlog.ev.mesh.")
	<-slow.Done()
	if err := context.Cause(slow); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a request ends with %v", err)
	}
	stop()
	load(nil, "changed")
	for shard := range conns {
		try(shard, object(shard, "Pod", "open"), true)
	}
	select {
	case <-lost:
		t.Error("the watcher lost its connection")
	default:
	}
}

func second[T any](_ T, err error) error { return err }

// Write tells what a limit changes, and narrows the user of a watcher but neither its
// reads nor the imports of its account.
func TestLimitChanges(t *testing.T) {
	dir := t.TempDir()
	write := func(l *Limit) []string {
		u := Users{Domain: "mesh", Roles: roles}
		if l != nil {
			u.Limits = map[bus.Role]Limit{bus.Watcher(files): *l}
		}
		_, permissions, err := u.Write(dir)
		must(t, err)
		var got []string
		for _, p := range permissions {
			verb := "allow"
			if p.Deny {
				verb = "deny"
			}
			got = append(got, strings.Join([]string{p.State, verb, p.Watcher, p.Subject}, " "))
		}
		return got
	}
	check := func(l *Limit, want ...string) {
		t.Helper()
		for i, line := range want {
			want[i] = strings.Replace(line, " allow ", " allow file/default meshlog.ev.mesh.file.default.", 1)
			want[i] = strings.Replace(want[i], " deny ", " deny file/default meshlog.ev.mesh.file.default.", 1)
		}
		if diff := cmp.Diff(want, write(l)); diff != "" {
			t.Errorf("permissions (-want +got):\n%s", diff)
		}
	}
	check(nil)
	narrow := &Limit{Allow: []events.Subject{"file.default.Gateway.shop"}, Deny: []events.Subject{"file.default.Pod.*"}}
	check(narrow, "removed allow >", "new allow Gateway.shop", "new allow _ctl", "new deny Pod.*")
	check(narrow, "kept allow Gateway.shop", "kept allow _ctl", "kept deny Pod.*")
	check(&Limit{Allow: []events.Subject{"file.default.Pod.*"}},
		"removed allow Gateway.shop", "new allow Pod.*", "kept allow _ctl", "removed deny Pod.*")
	check(nil, "new allow >", "removed allow Pod.*", "removed allow _ctl")
	check(nil)

	accountsOf := func(l map[bus.Role]Limit) *account {
		all := accounts("mesh", roles, []string{"UB", "UF", "UO", "UW"}, nil)
		a := all[len(all)-1]
		if limit, ok := l[a.role]; ok {
			a.limit("mesh", limit)
		}
		return a
	}
	whole, limited := accountsOf(nil), accountsOf(map[bus.Role]Limit{bus.Watcher(files): *narrow})
	if diff := cmp.Diff(whole.imports, limited.imports); diff != "" {
		t.Errorf("a limit changes the imports (-without +with):\n%s", diff)
	}
	const own = "meshlog.ev.mesh.file.default."
	want := append(slices.DeleteFunc(slices.Clone(whole.perms.Publish), func(s string) bool { return s == own+">" }), own+"Gateway.shop", own+"_ctl")
	slices.Sort(want)
	if diff := cmp.Diff(want, limited.user.Publish); diff != "" {
		t.Errorf("permissions to publish (-want +got):\n%s", diff)
	}
	for _, s := range limited.user.Publish {
		if !slices.ContainsFunc(whole.perms.Publish, func(wide string) bool { return covers(wide, s) }) {
			t.Errorf("a limit allows %s, which no watcher of the shard may use without one", s)
		}
	}
}

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/e2e/shop"
	"meshlog.dev/deploy/testkit/program"
)

// secured runs separate processes, each with a user and a certificate of its own,
// on a server that accepts no other user.
func secured(builders, frontends int) arrangement {
	return func(ctx context.Context, dir, config string) (*rig.Mesh, error) {
		nats, err := rig.StartSecuredNATS(ctx, dir)
		if err != nil {
			return nil, err
		}
		return rig.Assemble(ctx, dir, config, rig.Parts{NATS: nats, Builders: builders, Frontends: frontends, Twins: 1})
	}
}

// Each role has all the rights that it needs: the mesh works, its processes die and
// come back, and the commands of the command line work. The server denies no process
// a subject.
func TestRolesSuffice(t *testing.T) {
	f := start(t, secured(2, 2))
	more := f.backend(shop.V2)
	f.during("changes", func() {
		f.shift(50, 50)
		f.endpoints([]int{f.v1.Port}, []int{f.v2.Port, more.Port})
	})
	for _, command := range [][]string{
		{"log"}, {"versions"}, {"proxy-status"}, {"diagnostics"}, {"approve"},
		{"sources"}, {"wait", "latest", "--for", "0"},
	} {
		var out any
		f.must(f.mesh.CLI(f.ctx, &out, command...))
	}
	f.during("processes die", func() {
		f.mesh.Watcher.Kill()
		f.must(f.mesh.Twins[0].Ready(f.ctx))
		f.must(f.mesh.Watcher.Restart())
		f.must(f.mesh.Watcher.Ready(f.ctx))
		for _, s := range f.mesh.Builders {
			f.must(s.Stop())
			f.must(s.Restart())
			f.must(s.Ready(f.ctx))
		}
		f.shift(0, 100)
	})
	f.share(shop.V2, 100)
	for _, p := range append([]*program.Process{f.mesh.NATS.Process}, processes(f.mesh)...) {
		log, err := os.ReadFile(p.LogPath)
		f.must(err)
		for line := range strings.Lines(string(log)) {
			if strings.Contains(line, "iolation") || strings.Contains(line, "denies") {
				t.Errorf("%s: %s", p.Name, line)
			}
		}
	}
}

func processes(m *rig.Mesh) []*program.Process {
	var all []*program.Process
	for _, s := range m.Servers() {
		all = append(all, s.Process)
	}
	return all
}

// No role has more rights than it needs.
func TestRolesSufficeBarely(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	server, err := rig.StartSecuredNATS(ctx, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Kill)

	admin := []string{ // no role has these rights
		"$JS.API.STREAM.DELETE.MESHLOG_EVENTS", "$JS.API.STREAM.DELETE.MESHLOG_VERSIONS",
		"$JS.API.STREAM.DELETE.OBJ_meshlog_blobs", "$JS.API.STREAM.DELETE.KV_meshlog_lease",
		"$JS.API.STREAM.PURGE.MESHLOG_EVENTS", "$JS.API.STREAM.PURGE.MESHLOG_VERSIONS",
		"$JS.API.STREAM.MSG.DELETE.MESHLOG_EVENTS", "$JS.API.STREAM.MSG.DELETE.MESHLOG_VERSIONS",
		"$JS.API.STREAM.CREATE.OTHER", "$JS.API.STREAM.UPDATE.OTHER", "$JS.API.STREAM.SNAPSHOT.MESHLOG_EVENTS",
		"$JS.API.STREAM.RESTORE.MESHLOG_EVENTS", "$JS.API.STREAM.LEADER.STEPDOWN.MESHLOG_EVENTS",
		"$JS.API.STREAM.UPDATE.MESHLOG_EVENTS", "$JS.API.STREAM.UPDATE.MESHLOG_VERSIONS",
		"$JS.API.META.LEADER.STEPDOWN", "$JS.API.CONSUMER.CREATE.MESHLOG_VERSIONS.x", "$JS.API.CONSUMER.CREATE.OBJ_meshlog_blobs.x",
		"meshlog.live.ver.mesh", "meshlog.ver.other", "meshlog.ev.other.file.default._ctl", "meshlog.fleet.other.ask.builder",
		"$JS.API.STREAM.DELETE.MESHLOG_AUDIT", "$JS.API.STREAM.PURGE.MESHLOG_AUDIT", "$JS.API.STREAM.MSG.DELETE.MESHLOG_AUDIT",
		"$JS.API.STREAM.UPDATE.MESHLOG_AUDIT", "$JS.API.CONSUMER.CREATE.MESHLOG_AUDIT.x", "meshlog.audit.mesh.builder", "meshlog.audit.other.frontend",
		"_IN.watcher.file.other.x.y", "$SYS.REQ.SERVER.PING", "anything",
	}
	write := []string{ // rights of builders
		"meshlog.ver.mesh", "meshlog.ev.mesh._builder.segment", "meshlog.ev.mesh._builder.overlay",
		"$KV.meshlog_lease.builder.mesh", "$O.meshlog_blobs.C.x", "$O.meshlog_blobs.M.x", "$JS.API.STREAM.PURGE.OBJ_meshlog_blobs",
		"$JS.API.STREAM.CREATE.MESHLOG_EVENTS", "$JS.API.STREAM.CREATE.MESHLOG_AUDIT", "meshlog.fleet.mesh.issuers", "meshlog.fleet.mesh.tick", "meshlog.fleet.mesh.report.builder.x", "$JS.API.DIRECT.GET.KV_meshlog_lease.$KV.meshlog_lease.builder.mesh",
	}
	operate := []string{ // rights of operators
		"meshlog.ev.mesh._operator.overlay", "meshlog.fleet.mesh.ask.builder", "meshlog.fleet.mesh.ask.watcher", "meshlog.fleet.mesh.proxy", "meshlog.fleet.mesh.drain", "meshlog.ev.mesh.kubernetes.eu._ctl",
	}
	readLog := []string{
		"$JS.API.STREAM.MSG.GET.MESHLOG_EVENTS", "$JS.API.DIRECT.GET.MESHLOG_EVENTS", "$JS.API.CONSUMER.CREATE.MESHLOG_EVENTS.x",
		"$JS.API.CONSUMER.MSG.NEXT.MESHLOG_EVENTS.x", "$JS.API.CONSUMER.DELETE.MESHLOG_EVENTS.x",
		"$JS.API.DIRECT.GET.MESHLOG_EVENTS.meshlog.ev.mesh.kubernetes.eu.>", "$JS.API.DIRECT.GET.MESHLOG_EVENTS.meshlog.ev.mesh.>",
	}
	readVersions := []string{
		"$JS.API.STREAM.MSG.GET.MESHLOG_VERSIONS", "$JS.API.DIRECT.GET.MESHLOG_VERSIONS", "$JS.API.DIRECT.GET.OBJ_meshlog_blobs",
		"$JS.API.STREAM.INFO.MESHLOG_VERSIONS",
	}
	watch := []string{
		"meshlog.ev.mesh.file.default._ctl", "meshlog.ev.mesh.file.default.Gateway.x",
		"meshlog.fleet.mesh.digests", "meshlog.fleet.mesh.report.watcher.x.file.default", "meshlog.audit.mesh.watcher.file.default",
	}
	front := []string{"meshlog.key.mesh.file.default", "meshlog.key.mesh.kubernetes.eu", "meshlog.audit.mesh.frontend"} // rights of frontends
	readAudit := []string{"$JS.API.STREAM.INFO.MESHLOG_AUDIT", "$JS.API.STREAM.MSG.GET.MESHLOG_AUDIT", "$JS.API.DIRECT.GET.MESHLOG_AUDIT"}
	ask := []string{"meshlog.fleet.mesh.listing.file.default"} // rights of builders and operators
	others := []string{                                        // rights of another watcher
		"meshlog.ev.mesh.file.other._ctl", "meshlog.ev.mesh.kubernetes.default.Gateway.x",
		"meshlog.fleet.mesh.report.watcher.x.kubernetes.eu", "meshlog.audit.mesh.watcher.kubernetes.eu",
	}
	tests := map[string]struct {
		publish   [][]string
		subscribe []string
	}{
		"watcher-file-default": {
			[][]string{admin, write, ask, operate, readLog, readVersions, readAudit, front, others, {"meshlog.fleet.mesh.report.frontend.x"}},
			[]string{
				">", "meshlog.>", "_IN.>", "_IN.frontend.>", "_IN.watcher.kubernetes.eu.>", "meshlog.ev.>", "meshlog.live.ver.mesh",
				"meshlog.fleet.mesh.listing.kubernetes.eu", "meshlog.fleet.mesh.digests", "meshlog.fleet.mesh.issuers", "meshlog.fleet.mesh.report.>", "$KV.>",
				"meshlog.key.mesh.kubernetes.eu", "meshlog.audit.>",
			},
		},
		"frontend": {
			[][]string{admin, write, ask, operate, readLog, readAudit, watch, others, {"$JS.API.STREAM.INFO.MESHLOG_EVENTS"}},
			[]string{">", "meshlog.>", "_IN.>", "_IN.builder.>", "meshlog.ev.>", "meshlog.live.ver.other", "meshlog.fleet.mesh.report.>", "$KV.>", "$O.>", "meshlog.key.>", "meshlog.audit.>"},
		},
		"builder": {
			[][]string{admin, operate, watch, front, readAudit[1:], others, {"meshlog.fleet.mesh.report.frontend.x"}},
			[]string{">", "meshlog.>", "_IN.>", "_IN.operator.>", "meshlog.ev.>", "$O.>", "meshlog.key.>", "meshlog.audit.>"},
		},
		"operator": {
			[][]string{admin, write, front, watch[1:], {"meshlog.ev.mesh.file.other.Gateway.x", "meshlog.fleet.mesh.report.frontend.x"}},
			[]string{">", "meshlog.>", "_IN.>", "_IN.builder.>", "meshlog.ev.>", "$KV.>", "$O.>", "meshlog.fleet.mesh.digests", "meshlog.fleet.mesh.listing.>", "meshlog.key.>", "meshlog.audit.>"},
		},
	}
	for role, test := range tests {
		t.Run(role, func(t *testing.T) {
			nc := connectAs(t, server, role)
			for _, list := range test.publish {
				for _, subject := range list {
					deny(t, nc, subject, nc.Publish(subject, nil))
				}
			}
			for _, subject := range test.subscribe {
				_, err := nc.SubscribeSync(subject)
				deny(t, nc, subject, err)
			}
		})
	}
}

// deny demands that the server refused the last operation.
func deny(t *testing.T, nc *nats.Conn, subject string, err error) {
	t.Helper()
	if err == nil {
		err = nc.FlushTimeout(5 * time.Second)
	}
	if err != nil {
		t.Fatalf("%s: %v", subject, err)
	}
	if said := nc.LastError(); said == nil || !strings.Contains(said.Error(), `"`+subject+`"`) {
		t.Errorf("the server did not deny %s; its last error: %v", subject, said)
	}
}

func connectAs(t *testing.T, server *rig.NATS, role string) *nats.Conn {
	t.Helper()
	in := func(file string) string { return filepath.Join(server.Auth, file) }
	key, err := nats.NkeyOptionFromSeed(in(role + ".nk"))
	if err != nil {
		t.Fatal(err)
	}
	nc, err := nats.Connect(server.URL(), key, nats.RootCAs(in("ca.pem")), nats.ClientCert(in("client.pem"), in("client.key")),
		nats.ErrorHandler(func(*nats.Conn, *nats.Subscription, error) {})) // LastError returns it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	return nc
}

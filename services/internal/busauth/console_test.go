package busauth

import (
	"strings"
	"testing"

	"meshlog.dev/services/internal/bus"
)

// The console reads what an operator reads, and writes nothing: none of its subjects is one of a
// stream, or changes a stream or another process. What it publishes is answered only.
func TestConsoleReadsOnly(t *testing.T) {
	operator := Permissions(bus.Operator(), "mesh")
	reads := []string{
		"$JS.API.INFO", "$JS.API.STREAM.INFO.", "$JS.API.STREAM.MSG.GET.", "$JS.API.DIRECT.GET.",
		// A reader of the log is a consumer of the server, which it makes, and which ends with it.
		"$JS.API.CONSUMER.CREATE.MESHLOG_EVENTS.", "$JS.API.CONSUMER.MSG.NEXT.MESHLOG_EVENTS.",
		"$JS.API.CONSUMER.RESET.MESHLOG_EVENTS.", "$JS.API.CONSUMER.DELETE.MESHLOG_EVENTS.",
		"meshlog.fleet.mesh.ask.", "meshlog.fleet.mesh.proxy",
	}
	p := Permissions(bus.Console(), "mesh")
	for _, s := range p.Publish {
		known := false
		for _, r := range reads {
			known = known || strings.HasPrefix(s, r)
		}
		if !known {
			t.Errorf("the console may publish to %s", s)
		}
		if !covered(operator.Publish, s) {
			t.Errorf("the console may publish to %s, and an operator may not", s)
		}
	}
	for _, s := range []string{
		"meshlog.ev.mesh._operator.overlay", "meshlog.ev.mesh.file.default.Gateway.x", "meshlog.ev.mesh.api.default._ctl", "meshlog.ver.mesh",
		"meshlog.fleet.mesh.drain", "meshlog.fleet.mesh.listing.file.default", "meshlog.fleet.mesh.tick", "meshlog.fleet.mesh.report.frontend.x",
		"meshlog.key.mesh.file.default", "meshlog.audit.mesh.operator", "$KV.meshlog_ca.mesh.join.x", "$KV.meshlog_lease.builder.mesh",
		"$JS.API.STREAM.DELETE.MESHLOG_EVENTS", "$JS.API.STREAM.PURGE.MESHLOG_EVENTS", "$JS.API.STREAM.UPDATE.MESHLOG_EVENTS",
		"$JS.API.STREAM.CREATE.X", "$JS.API.STREAM.MSG.DELETE.MESHLOG_EVENTS", "$JS.API.CONSUMER.CREATE.MESHLOG_VERSIONS.x",
	} {
		if covered(p.Publish, s) {
			t.Errorf("the console may publish to %s", s)
		}
	}
}

func covered(all []string, subject string) bool {
	for _, s := range all {
		if covers(s, subject) {
			return true
		}
	}
	return false
}

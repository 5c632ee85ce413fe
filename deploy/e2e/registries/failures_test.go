//go:build registries

package registries

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/consultest"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

// sourceView is a source as `meshlog sources -o json` shows it.
type sourceView struct {
	Source, State  string
	Synced, Frozen bool
	Objects        int
}

// showsSource waits until `meshlog sources` shows a source so.
func showsSource(ctx context.Context, t *testing.T, m *rig.Mesh, source, what string, is func(sourceView) bool) {
	t.Helper()
	must(t, program.Until(ctx, source+" "+what, func(ctx context.Context) error {
		var all []sourceView
		if err := m.CLI(ctx, &all, "sources"); err != nil {
			return err
		}
		for _, v := range all {
			if v.Source == source && is(v) {
				return nil
			}
		}
		return fmt.Errorf("sources are %+v", all)
	}))
}

func frozen(v sourceView) bool { return v.State == "down" && v.Frozen }
func whole(v sourceView) bool  { return v.State == "following" && v.Synced }

// answersAt waits until an instance answers the requests at an entry of a router.
func answersAt(ctx context.Context, t *testing.T, envoy *rig.Envoy, entry int, instance string) {
	t.Helper()
	must(t, envoy.UntilAlive(ctx, "an answer of "+instance, func(ctx context.Context) error {
		body, err := ask(ctx, entry, "web.service.consul")
		if err == nil && body != instance {
			err = fmt.Errorf("%s answers", body)
		}
		return err
	}))
}

// TestAwayAtStart: a mesh starts while its registry is away. The source is down and not
// synced, and delays nothing else; when the registry comes, its services are called
// (REG-10, AGG-8).
func TestAwayAtStart(t *testing.T) {
	for source, begin := range map[string]func(context.Context, *testing.T, *world) (entry, documents string, come func()){
		"consul": consulComes, "nacos": nacosComes, "mcpxds": meshComes,
	} {
		t.Run(source, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			w := &world{}
			w.serveInstances(t, 1)
			entry, documents, come := begin(ctx, t, w)
			port, err := testport.TCP()
			must(t, err)
			mesh, envoy := route(ctx, t, port, documents, entry)
			showsSource(ctx, t, mesh, source, "to be away", func(v sourceView) bool { return v.State == "down" && !v.Synced && v.Objects == 0 })
			come()
			showsSource(ctx, t, mesh, source, "to be listed", whole)
			answersAt(ctx, t, envoy, port, address(0))
		})
	}
}

func consulComes(ctx context.Context, t *testing.T, w *world) (entry, documents string, come func()) {
	w.consul = consultest.Start(t, consultest.Options{})
	w.consul.Kill()
	return "{type: consul, consul: [" + w.consul.Addr + "]}", fmt.Sprintf(config, w.port), func() {
		must(t, w.consul.Start(ctx))
		w.register(ctx, t, 0, "1")
	}
}

func meshComes(ctx context.Context, t *testing.T, w *world) (entry, documents string, come func()) {
	from := startSource(ctx, t, t.TempDir(), sinks+"---\n"+strings.Replace(fmt.Sprintf(webEntry, w.port), "127.0.0.1", address(0), 1), "")
	server := from.mesh.Servers()[0]
	server.Kill()
	return fmt.Sprintf("{type: xds, mcp-source: \"xds://127.0.0.1:%d\"}", from.port), fmt.Sprintf(config, 80), func() {
		must(t, server.Restart(), server.Ready(ctx))
	}
}

// TestSourceMeshDies: a mesh reads another one by MCP-over-xDS. The other is killed, and
// comes back with another configuration; then it does not serve this sink any more. Each
// time the source is frozen, and no request fails (MCP-3, MCP-5, MCP-16).
func TestSourceMeshDies(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	first, err := rig.StartBackend("first")
	must(t, err)
	t.Cleanup(first.Stop)
	second, err := rig.StartBackend("second")
	must(t, err)
	t.Cleanup(second.Stop)
	entry, err := testport.TCP()
	must(t, err)
	documents := func(sinks string, backend int) string { return sinks + "---\n" + fmt.Sprintf(webEntry, backend) }
	from := startSource(ctx, t, t.TempDir(), documents(sinks, first.Port), "")
	reader, envoy := route(ctx, t, entry, fmt.Sprintf(config, 80), fmt.Sprintf("{type: xds, mcp-source: \"xds://127.0.0.1:%d\"}", from.port))
	answersAt(ctx, t, envoy, entry, "first")
	load, err := rig.StartLoad(ctx, fmt.Sprintf("http://127.0.0.1:%d/", entry), 2)
	must(t, err)

	server := from.mesh.Servers()[0]
	server.Kill()
	showsSource(ctx, t, reader, "mcpxds", "to be frozen", frozen)
	_, err = from.files.Save("mesh.yaml", documents(sinks, second.Port))
	must(t, err)
	must(t, server.Restart())
	answersAt(ctx, t, envoy, entry, "second")

	_, err = from.files.Save("mesh.yaml", documents(strings.Replace(sinks, "istio-system", "elsewhere", 1), first.Port))
	must(t, err)
	showsSource(ctx, t, reader, "mcpxds", "to be frozen", frozen)
	answersAt(ctx, t, envoy, entry, "second")
	_, err = from.files.Save("mesh.yaml", documents(sinks, first.Port))
	must(t, err)
	answersAt(ctx, t, envoy, entry, "first")
	tally := load.Stop()
	must(t, tally.Err())
	t.Logf("%d requests, none failed", tally.Sent)
}

// TestImpossibleAddress: an instance at an impossible address is left out, with a warning,
// and takes no other away. When it is the only one that Consul has, the service stays as it
// was (REG-1).
func TestImpossibleAddress(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w := start(ctx, t, 2)
	w.knows(ctx, t, 1, true)
	load, err := rig.StartLoad(ctx, w.url, 2)
	must(t, err)
	must(t, w.consul.Put(ctx, "/v1/catalog/register", map[string]any{
		"Node": "n", "Address": "127.0.0.1",
		"Service": map[string]any{"ID": "bad", "Service": "web", "Address": "no host", "Port": w.port},
	}, nil))
	says := func(what string) {
		t.Helper()
		must(t, program.Until(ctx, what, func(ctx context.Context) error {
			text, err := w.mesh.Show(ctx, "sources")
			if err == nil && !strings.Contains(text, what) {
				err = errors.New(text)
			}
			return err
		}))
	}
	says(`1 of 3 instances have an address that is neither an IP address nor a DNS name: ["no host"]; they are left out`)
	w.deregister(ctx, t, 1)
	w.knows(ctx, t, 1, false)
	w.deregister(ctx, t, 0)
	says(`1 of 1 instances have an address that is neither an IP address nor a DNS name`)
	w.knows(ctx, t, 0, true)
	tally := load.Stop()
	must(t, tally.Err())
	t.Logf("%d requests, none failed", tally.Sent)
}

package faults

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"meshlog.dev/deploy/e2e/rig"
)

// comes is how long a certificate takes at most to be in handshakes, once the process
// that was killed is started again. A frontend waits for a request that died with its
// watcher for 2 s at first, and for 5 s at most.
const comes = 12 * time.Second

// T-6, KEY-3: the frontend is killed at each step of a request for a private key, and the
// watcher at each step of its answer: when a host gets its first certificate, and when
// that is replaced. The twin of the watcher answers instead.
func TestKeysKilledAtEachStep(t *testing.T) {
	g := startGateway(t, gatewayParts{twins: 1, sealed: true})
	for _, point := range slices.DeleteFunc(allPoints(t), func(point string) bool { return !ofKey(point) }) {
		g.step(t, point, func(t *testing.T) {
			host := strings.ReplaceAll(point, ".", "-")
			if strings.HasPrefix(point, "watcher.") {
				g.answerLost(t, g.Watcher, point, host)
				return
			}
			g.requestLost(t, point, host) // the first certificate
			g.requestLost(t, point, host) // another one
		})
	}
	g.step(t, "torn files", g.torn)
}

// requestLost kills the frontend at a step of its request for the key of a new
// certificate. The router serves the one before until the frontend is back.
func (g *gateway) requestLost(t *testing.T, point, host string) {
	t.Helper()
	f := g.Frontends[0]
	must(t, f.Stop())
	must(t, f.RestartWith(failAt+"="+point))
	must(t, f.Ready(g.ctx))
	must(t, g.envoy.Connected(g.ctx, true))
	must(t, f.Running()) // the keys of the other hosts do not pass the step
	g.save(t, host)
	stopped(g.ctx, t, f, point)
	g.noKeyInClear(t)
	if last := g.versions[host]; last > 1 {
		name, err := g.call(g.ctx, g.ports["warm"], host)
		must(t, err)
		if sent := point == "frontend.key-given"; name != nameOf(host, last-1) && !(sent && name == nameOf(host, last)) {
			t.Errorf("while the frontend is dead, the router has %s", name)
		}
	}
	must(t, f.Restart())
	g.serves(t, host, g.versions[host])
	must(t, f.Ready(g.ctx))
}

// answerLost kills a watcher at a step of its answer: the other watcher of the shard
// answers while it is dead. Each of the two may get a request, so certificates are
// replaced until the one that dies got one.
func (g *gateway) answerLost(t *testing.T, s *rig.Server, point, host string) {
	t.Helper()
	must(t, s.Stop())
	must(t, s.RestartWith(failAt+"="+point))
	must(t, s.Ready(g.ctx))
	g.save(t, host)
	g.serves(t, host, g.versions[host])
	for s.Ready(g.ctx) == nil { // a watcher that has ended never is
		g.save(t, host)
		g.serves(t, host, g.versions[host])
	}
	stopped(g.ctx, t, s, point)
	must(t, s.Restart())
	must(t, s.Ready(g.ctx))
}

// torn damages sealed files while all but the router is dead. A frontend starts alone,
// serves what is whole, and asks for the rest when the others are back.
func (g *gateway) torn(t *testing.T) {
	whole, cut, empty, flipped, swapped := g.hosts[0], g.hosts[1], g.hosts[2], g.hosts[3], g.hosts[4]
	for _, host := range []string{cut, empty, flipped, swapped} {
		g.save(t, host)
		g.serves(t, host, g.versions[host])
	}
	f := g.Frontends[0]
	must(t, f.UntilAlive(g.ctx, "the newest version to be on the disk", g.persisted))
	files := g.sealedFiles(t)
	for _, s := range g.Servers() {
		s.Kill()
	}
	g.NATS.Kill()
	must(t, os.Truncate(files[cut], size(t, files[cut])/2))
	must(t, os.Truncate(files[empty], 0))
	b, err := os.ReadFile(files[flipped])
	must(t, err)
	b[len(b)-1] ^= 1
	must(t, os.WriteFile(files[flipped], b, 0o600))
	other, err := os.ReadFile(files[whole])
	must(t, err)
	must(t, os.WriteFile(files[swapped], other, 0o600))
	leftover := filepath.Join(filepath.Dir(files[cut]), "."+filepath.Base(files[cut])+".123")
	must(t, os.WriteFile(leftover, other[:len(other)/2], 0o600))

	must(t, f.Restart())
	cold := g.proxy(t, "cold")
	g.servesBy(t, cold, whole, g.versions[whole])
	for _, host := range []string{cut, empty, flipped, swapped} {
		if name, err := g.call(g.ctx, cold.port, host); err == nil {
			t.Errorf("the file of %s is damaged, and a new proxy serves %s", host, name)
		}
		g.serves(t, host, g.versions[host]) // the other proxy has it still
	}
	must(t, g.NATS.Restart(g.ctx))
	for _, s := range g.Servers() {
		if s != f {
			must(t, s.Restart())
		}
	}
	for _, host := range []string{cut, empty, flipped, swapped} {
		g.servesBy(t, cold, host, g.versions[host])
	}
	for _, s := range g.Servers() {
		must(t, s.Ready(g.ctx))
	}
}

// persisted returns nil if the frontend has the version that it serves on its disk.
func (g *gateway) persisted(ctx context.Context) error {
	m, err := g.Frontends[0].Metrics(ctx)
	if err == nil && m["meshlog_frontend_persisted"].Sum != 1 {
		err = fmt.Errorf("meshlog_frontend_persisted is %v", m["meshlog_frontend_persisted"].Sum)
	}
	return err
}

// sealedFiles returns the sealed file of each host's key.
func (g *gateway) sealedFiles(t *testing.T) map[string]string {
	t.Helper()
	status, err := g.keys(g.ctx)
	must(t, err)
	files := map[string]string{}
	for _, k := range status.Keys {
		found, err := filepath.Glob(filepath.Join(g.keysDir(), k.HMAC+"-*"))
		must(t, err)
		if len(found) != 1 {
			t.Fatalf("%s has the sealed files %q", k.Object, found)
		}
		files[strings.TrimSuffix(strings.TrimPrefix(k.Object, "Secret default/"), " (file/default)")] = found[0]
	}
	return files
}

func size(t *testing.T, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	must(t, err)
	return info.Size()
}

//go:build faults && linux

package faults

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// keySteps returns the steps of a request for a private key that processes pass.
func keySteps(t *testing.T, processes ...string) []string {
	t.Helper()
	return slices.DeleteFunc(allPoints(t), func(point string) bool {
		process, _, _ := strings.Cut(point, ".")
		return !ofKey(point) || !slices.Contains(processes, process)
	})
}

// T-6, KEY-9: the frontend is killed at each step of its request, and so is every other
// process. It starts alone: proxies have the certificates that they had, and a new proxy
// has them too. When the others are back, the new certificate comes.
func TestKeysKilledWithAllOthers(t *testing.T) {
	g := startGateway(t, gatewayParts{sealed: true})
	for _, point := range keySteps(t, "frontend", "file") {
		g.step(t, point, func(t *testing.T) {
			f, host := g.Frontends[0], strings.ReplaceAll(point, ".", "-")
			g.save(t, host)
			g.serves(t, host, 1)
			must(t, f.UntilAlive(g.ctx, "the newest version to be on the disk", g.persisted))
			must(t, f.Stop())
			must(t, f.RestartWith(failAt+"="+point))
			must(t, f.Ready(g.ctx))
			must(t, g.envoy.Connected(g.ctx, true))
			g.save(t, host)
			stopped(g.ctx, t, f, point)
			for _, s := range g.Servers() {
				s.Kill()
			}
			g.NATS.Kill()
			must(t, f.Restart())
			must(t, g.envoy.Connected(g.ctx, true))
			cold := g.proxy(t, "cold")
			g.servesBy(t, cold, standing, 1)
			// The version with the new certificate may be on the disk or not, and the key
			// with it. Then the new proxy has one certificate of the host, or none.
			if name, err := g.call(g.ctx, cold.port, host); err == nil && name != nameOf(host, 1) && name != nameOf(host, 2) {
				t.Errorf("a new proxy serves %s for %s", name, host)
			}
			cold.Kill()
			g.noKeyInClear(t)
			must(t, g.NATS.Restart(g.ctx))
			for _, s := range g.Servers() {
				if s != f {
					must(t, s.Restart())
				}
			}
			g.serves(t, host, 2)
			for _, s := range g.Servers() {
				must(t, s.Ready(g.ctx))
			}
		})
	}
}

// T-6: the twin, which has published nothing, is killed at each step of its answer.
func TestTwinKilledAtEachStepOfItsAnswer(t *testing.T) {
	g := startGateway(t, gatewayParts{twins: 1, sealed: true})
	for _, point := range keySteps(t, "watcher") {
		g.step(t, point, func(t *testing.T) { g.answerLost(t, g.Twins[0], point, strings.ReplaceAll(point, ".", "-")) })
	}
}

// T-6, KEY-8: without a seal key the frontend has its keys in memory only. It is killed at
// each step, and asks for all of them again.
func TestKeysInMemoryKilledAtEachStep(t *testing.T) {
	g := startGateway(t, gatewayParts{})
	for _, point := range keySteps(t, "frontend") {
		g.step(t, point, func(t *testing.T) {
			f, host := g.Frontends[0], strings.ReplaceAll(point, ".", "-")
			for range 2 {
				g.save(t, host)
				f.Kill() // it asks for all keys after its restart
				must(t, f.RestartWith(failAt+"="+point))
				stopped(g.ctx, t, f, point)
				must(t, f.Restart())
				g.serves(t, host, g.versions[host])
				must(t, f.Ready(g.ctx))
			}
		})
	}
}

// T-6: certificates are replaced one after the other while the frontend and the watchers
// are killed at random moments. Each ends with the newest.
func TestKeysKilledAtRandom(t *testing.T) {
	g := startGateway(t, gatewayParts{twins: 1, sealed: true})
	dice := dice(t)
	for round := range soaks {
		victims := append(slices.Clone(g.Frontends), g.Watcher, g.Twins[0])
		dice.Shuffle(len(victims), func(i, j int) { victims[i], victims[j] = victims[j], victims[i] })
		victims = victims[:1+dice.IntN(2)]
		var names []string
		for _, s := range victims {
			names = append(names, s.Name)
		}
		g.step(t, fmt.Sprintf("%d %s", round, strings.Join(names, " and ")), func(t *testing.T) {
			for _, host := range g.hosts {
				g.save(t, host)
			}
			// A save is in handshakes after 50 ms and more.
			timer := time.NewTimer(time.Duration(dice.Int64N(int64(300 * time.Millisecond))))
			defer timer.Stop()
			<-timer.C
			for _, s := range victims {
				s.Kill()
			}
			for _, s := range victims {
				must(t, s.Restart())
			}
			for _, host := range g.hosts {
				g.serves(t, host, g.versions[host])
			}
			for _, s := range g.Servers() {
				must(t, s.Ready(g.ctx))
			}
		})
	}
}

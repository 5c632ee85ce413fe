//go:build faults && linux

package faults

import (
	"context"
	"flag"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"meshlog.dev/deploy/e2e/rig"
)

var attackFor = flag.Duration("attack", time.Minute, "how long TestAttacks attacks, half of it on one NATS server and half on three")

// attacksEach is the pause of an attacker between two attacks: together they stay
// below what the machine can generate, so that a slow answer is the server's.
const attacksEach = 5 * time.Millisecond

// memoryUnder is how much resident memory a process may have under attack: twice its
// memory before. A process that has little to do may have twice what is normal for
// one with work, such as a frontend with 1000 services and 1000 proxies
// (services/frontend/README.md).
var memoryUnder = map[string]int64{
	"frontend": 120 << 20,
	"builder":  84 << 20,
	"watcher":  64 << 20,
	"nats":     90 << 20,
}

// attacker makes random attacks with one kind of access, and counts them.
type attacker struct {
	name   string
	dice   *rand.Rand
	made   map[string]int
	attack func(ctx context.Context, a *attacker) (what string)
}

// The walls hold against attackers with a frontend's key, with a watcher's key, and
// without a key at the xDS port: no request fails, no version is wrong, no process
// grows beyond its limit, and what they did is reported (BUS-1 to BUS-8, XDS-1 to
// XDS-6). First each attack is made once, and its report is awaited. Then all
// attackers make random ones.
func TestAttacks(t *testing.T) {
	for _, on := range []struct {
		name    string
		arrange arrangement
	}{{"one server", onOne("", 2, 0)}, {"three servers", onThree("", nil, 2, 0)}} {
		t.Run(on.name, func(t *testing.T) { attackMesh(t, on.arrange, *attackFor/2) })
	}
}

func attackMesh(t *testing.T, arranged arrangement, last time.Duration) {
	m := start(t, arranged)
	_, err := m.writer.dir.Save("policy.yaml", attackPolicy)
	must(t, err)
	m.fault(t, "none", func(t *testing.T) { m.latency(t, 20) })
	before := m.resident(t)
	ctx, cancel := context.WithTimeout(t.Context(), last+patience)
	defer cancel()
	within := func(t *testing.T, attack func(*testing.T) map[string]int64) {
		m.ctx = ctx
		peak := attack(t)
		for _, name := range slices.Sorted(maps.Keys(peak)) {
			most := 2 * max(before[name], memoryUnder[kindOf(name)])
			t.Logf("%s: %d MiB before, at most %d MiB under attack (limit %d)", name, before[name]>>20, peak[name]>>20, most>>20)
			if peak[name] > most {
				t.Errorf("%s grew from %d to %d MiB", name, before[name]>>20, peak[name]>>20)
			}
		}
	}
	began := time.Now()
	m.fault(t, "each attack", func(t *testing.T) { within(t, m.eachAttack) })
	m.fault(t, "random attacks", func(t *testing.T) {
		var attackers []*attacker
		for i, name := range []string{"xds", "xds", "xds", "xds", "xds", "xds", "frontend's key", "watcher's key"} {
			attackers = append(attackers, m.attacker(t, name, rand.New(rand.NewPCG(*seed, uint64(100+i)))))
		}
		within(t, func(t *testing.T) map[string]int64 {
			return m.underAttack(t, attackers, max(last-time.Since(began), last/4))
		})
		made := map[string]int{}
		for _, a := range attackers {
			for what, n := range a.made {
				made[a.name+": "+what] += n
			}
		}
		for _, what := range slices.Sorted(maps.Keys(made)) {
			t.Logf("%s, %d times", what, made[what])
		}
	})
	m.fault(t, "forged answers", m.forgedAnswers)
}

// underAttack lets the attackers attack, and returns the peak memory of each
// process.
func (m *mesh) underAttack(t *testing.T, attackers []*attacker, last time.Duration) map[string]int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(m.ctx, last)
	defer cancel()
	var all sync.WaitGroup
	for _, a := range attackers {
		all.Go(func() {
			_ = every(ctx, attacksEach, func(int) error { // it ends with ctx
				a.made[a.attack(ctx, a)]++
				return nil
			})
		})
	}
	peak := m.peak(ctx, t)
	all.Wait()
	return peak
}

// peak returns the peak memory of each process until ctx ends.
func (m *mesh) peak(ctx context.Context, t *testing.T) map[string]int64 {
	t.Helper()
	peak := map[string]int64{}
	_ = every(ctx, 100*time.Millisecond, func(int) error { // it ends with ctx
		for name, n := range m.resident(t) {
			peak[name] = max(peak[name], n)
		}
		return nil
	})
	return peak
}

// resident returns the resident memory of each process but the Envoys.
func (m *mesh) resident(t *testing.T) map[string]int64 {
	t.Helper()
	all := map[string]int64{}
	for _, s := range m.Servers() {
		n, err := s.RSS()
		must(t, err)
		all[s.Name] = n
	}
	for _, n := range m.servers() {
		bytes, err := rig.RSS(n.PID())
		must(t, err)
		all[n.Name] = bytes
	}
	return all
}

// servers returns the NATS servers.
func (m *mesh) servers() []*rig.NATS {
	if m.NATS != nil {
		return []*rig.NATS{m.NATS}
	}
	return m.Cluster.Nodes
}

func kindOf(name string) string {
	for kind := range memoryUnder {
		if len(name) >= len(kind) && name[:len(kind)] == kind {
			return kind
		}
	}
	return name
}

// attackPolicy allows the attacker's source nothing but hosts of its own.
const attackPolicy = `apiVersion: meshlog.dev/v1
kind: MeshPolicy
metadata: {name: default}
spec:
  sourceRules:
    - {source: file, instance: attacker, kinds: [ServiceEntry], hosts: ["*.attacker"]}
`

// attacker returns an attacker with a kind of access.
func (m *mesh) attacker(t *testing.T, name string, dice *rand.Rand) *attacker {
	t.Helper()
	a := &attacker{name: name, dice: dice, made: map[string]int{}}
	switch name {
	case "xds":
		a.attack = m.attackXDS
	case "frontend's key":
		a.attack = m.attackBus(t, "frontend", frontendAttacks)
	default:
		a.attack = m.attackBus(t, "watcher-file-attacker", watcherAttacks)
	}
	return a
}

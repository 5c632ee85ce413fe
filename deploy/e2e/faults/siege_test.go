//go:build faults

package faults

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"meshlog.dev/deploy/e2e/rig"
)

var attackFor = flag.Duration("attack", time.Minute, "how long TestAttacks attacks")

// attacksEach is the pause of an attacker between two attacks: together they stay
// below what the machine can generate, so that a slow answer is the server's.
const attacksEach = 50 * time.Millisecond

// memoryUnder is how much more resident memory a process may have under attack:
// factor times its memory before, plus floor bytes, because a process that has
// done little yet grows with its first work.
var memoryUnder = map[string]struct {
	factor float64
	floor  int64
}{
	"frontend": {2, 0},
	"builder":  {2, 64 << 20},
	"watcher":  {2, 32 << 20},
	"nats":     {2, 128 << 20},
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
// XDS-6).
func TestAttacks(t *testing.T) {
	m := start(t, onOne("", 2, 0))
	_, err := m.writer.dir.Save("policy.yaml", attackPolicy)
	must(t, err)
	m.fault(t, "none", func(t *testing.T) { m.latency(t, 20) })
	before := m.resident(t)

	var attackers []*attacker
	for i, name := range []string{"xds", "xds", "xds", "frontend's key", "watcher's key"} {
		attackers = append(attackers, m.attacker(t, name, rand.New(rand.NewPCG(*seed, uint64(100+i)))))
	}
	m.fault(t, fmt.Sprint("attacked for ", *attackFor), func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), *attackFor+patience)
		defer cancel()
		m.ctx = ctx
		peak := m.underAttack(t, attackers)
		for _, name := range slices.Sorted(maps.Keys(peak)) {
			limit := memoryUnder[kindOf(name)]
			most := int64(limit.factor*float64(before[name])) + limit.floor
			t.Logf("%s: %d MiB before, at most %d MiB under attack (limit %d)", name, before[name]>>20, peak[name]>>20, most>>20)
			if peak[name] > most {
				t.Errorf("%s grew from %d to %d MiB", name, before[name]>>20, peak[name]>>20)
			}
		}
		for _, a := range attackers {
			for _, what := range slices.Sorted(maps.Keys(a.made)) {
				t.Logf("%s: %d times %s", a.name, a.made[what], what)
			}
		}
	})
	m.reported(t)
}

// underAttack lets the attackers attack, and returns the peak memory of each
// process.
func (m *mesh) underAttack(t *testing.T, attackers []*attacker) map[string]int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(m.ctx, *attackFor)
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
	peak := map[string]int64{}
	_ = every(ctx, time.Second, func(int) error {
		for name, n := range m.resident(t) {
			peak[name] = max(peak[name], n)
		}
		return nil
	})
	all.Wait()
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
	n, err := rig.RSS(m.NATS.PID())
	must(t, err)
	all[m.NATS.Name] = n
	return all
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

// reported demands that the processes say what they were attacked with: the
// figures of each wall are in the metrics.
func (m *mesh) reported(t *testing.T) {
	t.Helper()
	for _, want := range []struct {
		of     []*rig.Server
		metric string
	}{
		{m.Builders, "meshlog_builder_refused_records_total"},
		{m.Builders, "meshlog_builder_refused_claims_total"},
	} {
		total := 0.0
		for _, s := range want.of {
			values, err := s.Metrics(m.ctx)
			must(t, err)
			total += values[want.metric].Sum
		}
		if total == 0 {
			t.Errorf("no process reports %s", want.metric)
		}
	}
}

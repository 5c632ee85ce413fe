//go:build faults && linux

package faults

import (
	"strings"
	"testing"

	"github.com/nats-io/nats.go"
)

// What a builder would say that serves a version of the year 2100, and holds back
// what no version has.
const (
	farVersion = "4102444800.77777"
	farTick    = `leader: "builder-1" head: {epoch: 4102444800 seq: 77777} position: {epoch: 4102444800 seq: 77777}`
	farReport  = `builder: "builder-1" leader: true head: {epoch: 4102444800 seq: 77777} position: {epoch: 4102444800 seq: 77777}
		holds: {id: "invented" parts: "invented"} quarantines: {id: "invented too"}`
)

// answersAsBuilder answers every question with the key of a role, in the name of a
// builder, whoever is asked, and says the same unasked. It returns how often.
func (m *mesh) answersAsBuilder(t *testing.T, role string) func() int {
	t.Helper()
	answer := &nats.Msg{Header: nats.Header{"Meshlog-Name": {"builder.builder-1"}}, Data: forge("meshlog.report.v1.BuilderReport", farReport)}
	tick := forge("meshlog.report.v1.Tick", farTick)
	asked := make(chan struct{}, 1<<16)
	for _, conn := range m.connect(t, role) {
		for _, of := range []string{"builder", "frontend", "watcher"} {
			_, err := conn.Subscribe("meshlog.fleet.mesh.ask."+of, func(question *nats.Msg) {
				for _, subject := range []string{question.Reply, strings.TrimSuffix(question.Reply, of) + "builder"} {
					if err := conn.PublishMsg(&nats.Msg{Subject: subject, Header: answer.Header, Data: answer.Data}); err != nil {
						t.Error(err)
					}
				}
				for subject, b := range map[string][]byte{"tick": tick, "report.builder.builder-1": answer.Data} {
					if err := conn.Publish("meshlog.fleet.mesh."+subject, b); err != nil {
						t.Error(err)
					}
				}
				asked <- struct{}{}
			})
			must(t, err)
		}
		must(t, conn.Flush())
	}
	return func() int { return len(asked) }
}

// BUS-7: a process with the key of a frontend or of a watcher answers as a builder,
// on every server. `approve` shows and approves what the newest version holds back,
// nothing else, and neither it nor `wait` ends before the leader has published.
func (m *mesh) forgedAnswers(t *testing.T) {
	t.Helper()
	m.saveBulk(t)
	m.hasBulk(t)
	asked := map[string]func() int{}
	for _, role := range []string{"frontend", attackerShard} {
		asked[role] = m.answersAsBuilder(t, role)
	}
	m.loseBulk(t)
	m.held(t, 1)
	for _, id := range []string{"invented", "invented too"} {
		if out, err := m.Show(m.ctx, "approve", id); err == nil || !strings.Contains(err.Error(), "nothing with this id") {
			t.Errorf("approve %s: %q, %v; want that there is no such hold", id, out, err)
		}
	}
	if out, err := m.Show(m.ctx, "wait", farVersion, "--timeout", "2s"); err == nil {
		t.Errorf("a wait for a version that does not exist ends with %q", out)
	}
	// It ends with an error: the random attacks before need attention.
	if status, _ := m.Show(m.ctx, "status"); !strings.Contains(status, "frontend-1") || strings.Contains(status, "invented") || strings.Contains(status, farVersion) {
		t.Errorf("status: %s\nwant the frontends, and nothing that an answer invents", status)
	}
	m.approve(t)
	for role, n := range asked {
		if n() == 0 {
			t.Errorf("nobody asked the attacker with the key of %s", role)
		}
	}
}

package web_test

import (
	"html"
	"net/http"
	"strings"
	"testing"

	"meshlog.dev/services/operate/operatetest"
	"meshlog.dev/services/roles/console"
)

// staged runs a mesh whose changes reach the proxies in two steps, with the console of alice. The
// first rollout has ended, and the second one is at its first step.
func staged(t *testing.T) (m *mesh, running string) {
	t.Helper()
	key, policy := operator(t)
	policy += "  rollout: {steps: [{percent: 50, manual: true}, {percent: 90, ackPercent: 80, hold: 1h}]}\n"
	m = &mesh{T: t, Copy: t.TempDir(), key: key, Mesh: operatetest.Start(t, map[string]string{
		"shop.yaml": shop, "rule.yaml": rule, "routes.yaml": route(90, 10), "policy.yaml": policy,
	})}
	s := console.DefaultSettings()
	s.OperatorKey = key
	m.url = m.console(s, m.Copy)
	m.connect("sidecar~10.0.0.9~app.demo~demo.svc.cluster.local", "")
	m.until("/fleet", "1 stream")
	p := m.person(m.url)
	m.write("routes.yaml", route(70, 30))
	id := m.rollout("running")
	p.does("/act/promote?all=true&id="+id, "", "VirtualService", "weight: 90 -> 70", "for the proxies that do not have it", "meshlog rollout promote "+id+" --all")
	m.until("/rollouts", "reached all proxies")
	m.write("routes.yaml", route(50, 50))
	return m, m.rollout("running")
}

// rollout waits for a rollout in a state, and returns its id.
func (m *mesh) rollout(state string) string {
	m.Helper()
	body := m.until("/rollouts", `">`+state+"</span>")
	before, _, _ := strings.Cut(body, `">`+state+"</span>")
	_, id, _ := strings.Cut(before[strings.LastIndex(before, "<h2 "):], `id="`)
	id, _, _ = strings.Cut(id, `"`)
	return id
}

// The page of rollouts shows one that runs, with its steps, and acts on it: each act shows what it
// would change, and for which proxies, before it is a record with the operator's name (M7). The page
// moves in time, and works without the bus.
func TestRolloutsPage(t *testing.T) {
	m, id := staged(t)
	p := m.person(m.url)
	began := versionLink.FindStringSubmatch(m.until("/rollouts", "step 1 began and reached 50% of all"))[1]
	m.shows("/rollouts", nil, id, "VirtualService demo/shop (file/default)", "<td>50% of all</td>", "<td>90% of all</td>", "80 %", "1h0m0s", "an operator begins it",
		"the step has none", "100 % wanted", "Promote "+id, "Stop "+id, ">ended</span>")

	promote, abort := "/act/promote?id="+id, "/act/abort?id="+id
	early := p.look(abort)
	p.does(promote, "", "1 object changes for the proxies that step 2 adds", "weight: 70 -> 50", "meshlog rollout promote "+id)
	m.until("/rollouts", "step 2 began and reached 90% of all")
	m.shows("/rollouts", nil, "59m", "80 % wanted", "alice")

	// A form that was shown at the step before is asked again: what stops is another step.
	if status, again := p.confirm(abort, early, "errors"); status != http.StatusConflict || !strings.Contains(again, "Nothing was written") {
		t.Errorf("a form of the step before: status %d:\n%s", status, again)
	}
	body := p.look(abort)
	if status, again := p.confirm(abort, body, " "); status != http.StatusBadRequest || !strings.Contains(again, "Say why") {
		t.Errorf("stopped without a reason: status %d:\n%s", status, again)
	}
	p.does(abort, "errors in the canary", "for the proxies that it has reached", "weight: 50 -> 70", "meshlog rollout abort "+id+" --reason ...")
	m.until("/rollouts", "Stopped by alice: errors in the canary")
	m.shows("/rollouts", []string{"Stop " + id, "Promote " + id}, "stopped at step 2", "Give to all proxies: "+id)

	t.Run("in the past", func(t *testing.T) {
		m.shows(address("/rollouts", "at", began), []string{"Stopped by", "/act/", "step 2 began"}, "step 1 began", `">running</span>`, "not recorded", "You look at the past")
	})
	t.Run("a console that reads", func(t *testing.T) {
		for path, status := range map[string]int{"/act/promote?all=true&id=" + id: 200, "/act/abort": 200, "/act/promote?id=" + id: 400, "/act/promote?id=nothing": 404} {
			w := m.attack("", "").send(attackRequest{method: "GET", path: path, from: localFrom, host: localHost})
			if body := html.UnescapeString(w.Body.String()); w.Code != status || strings.Contains(body, `method="post"`) {
				t.Errorf("%s: status %d, want %d and no button:\n%s", path, w.Code, status, body)
			}
		}
	})
	p.does("/act/promote?all=true&id="+id, "", "weight: 70 -> 50")
	m.until("/rollouts", "ended after it was stopped")
	t.Run("without the bus", func(t *testing.T) {
		if err := m.Stop(); err != nil {
			t.Fatal(err)
		}
		m.until("/rollouts", "What you see may be old")
		m.shows("/rollouts", nil, id, "ended after it was stopped", "errors in the canary")
	})
}

// shows demands texts of a page, and that it has none of others.
func (m *mesh) shows(path string, absent []string, want ...string) {
	m.Helper()
	status, body := m.get(path)
	body = html.UnescapeString(body)
	for _, w := range want {
		if status != http.StatusOK || !strings.Contains(body, w) {
			m.Errorf("%s: status %d, lacks %q:\n%s", path, status, w, body)
		}
	}
	for _, a := range absent {
		if strings.Contains(body, a) {
			m.Errorf("%s has %q:\n%s", path, a, body)
		}
	}
}

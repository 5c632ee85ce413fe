package rollback

import (
	"fmt"
	"strings"
	"testing"

	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/operatetest"
)

const stagedPolicy = `apiVersion: meshlog.dev/v1
kind: MeshPolicy
metadata: {name: default}
spec: {rollout: {steps: [{percent: 50, manual: true}]}}
`

// M7: a change waits for an operator, who promotes or aborts it, and a restart does not alter
// that. After an abort, another value of the object is a new rollout.
func TestRollout(t *testing.T) {
	m := operatetest.Start(t, map[string]string{"a.yaml": service("a", "10.0.0.1"), "policy.yaml": stagedPolicy})
	save(t, m, "b.yaml", service("b", "10.0.0.2"))
	running(t, m, "ServiceEntry demo/b (file/default)")
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	m.Run(t)
	m.Events.Wait(t, "listed", "keys")
	running(t, m, "ServiceEntry demo/b (file/default)")

	var all []command.Rollout
	must(t, m, &all, "rollout", "status")
	if len(all) != 1 || len(all[0].Plan) != 1 || all[0].Plan[0] != (command.RolloutStep{Step: 1, Reached: "50% of all", AckPercent: 100, Manual: true}) {
		t.Errorf("while it runs: %+v", all)
	}
	var v result
	must(t, m, &v, "rollout", "promote", "--dry-run")
	equal(t, "promote, dry run", changed(v), "added ServiceEntry demo/b (file/default)")
	must(t, m, &v, "rollout", "promote")
	all = nil
	if must(t, m, &all, "rollout", "status"); len(all) != 0 {
		t.Errorf("after the last step: %+v", all)
	}
	var ended []struct {
		State   string
		Records []struct{ What string }
	}
	must(t, m, &ended, "rollout", "status", "--ended")
	if len(ended) != 1 || ended[0].State != "ended" || len(ended[0].Records) < 2 || ended[0].Records[0].What != "reached all proxies" || !strings.HasPrefix(ended[0].Records[1].What, "step 1 began") {
		t.Errorf("those that ended: %+v", ended)
	}

	save(t, m, "b.yaml", onPort("b", 81))
	id := running(t, m, "ServiceEntry demo/b (file/default)")
	must(t, m, &v, "rollout", "abort", "--reason", "errors")
	all = nil
	must(t, m, &all, "rollout", "status")
	if len(all) != 1 || all[0].ID != id || all[0].State != "stopped" || all[0].Reason != "errors" {
		t.Errorf("after abort: %+v", all)
	}
	save(t, m, "b.yaml", onPort("b", 82))
	running(t, m, "ServiceEntry demo/b (file/default)")
	for args, want := range map[string]string{
		"rollout abort":           "--reason is missing",
		"rollout promote rollout": "there is no rollout",
		"rollout run":             "--check is missing",
	} {
		if err := meshlog(t, m, nil, strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// A check decides about a manual step, and its result is on the log.
func TestRolloutRun(t *testing.T) {
	m := operatetest.Start(t, map[string]string{"a.yaml": service("a", "10.0.0.1"), "policy.yaml": stagedPolicy})
	save(t, m, "b.yaml", service("b", "10.0.0.2"))
	running(t, m, "ServiceEntry demo/b (file/default)")
	if err := meshlog(t, m, nil, "rollout", "run", "--check", "true", "--timeout", "40s"); err != nil {
		t.Fatal(err)
	}
	save(t, m, "b.yaml", onPort("b", 81))
	running(t, m, "ServiceEntry demo/b (file/default)")
	err := meshlog(t, m, nil, "rollout", "run", "--check", "echo too slow; exit 3", "--timeout", "40s")
	if err == nil || !strings.Contains(err.Error(), "failed after") || !strings.Contains(err.Error(), "exit status 3: too slow") {
		t.Errorf("a check that fails: %v", err)
	}
	var all []command.Rollout
	must(t, m, &all, "rollout", "status")
	if len(all) != 1 || all[0].State != "stopped" || !strings.Contains(all[0].Reason, "too slow") {
		t.Errorf("after a check that fails: %+v", all)
	}
}

// onPort is a service on another port: a change of more than endpoints.
func onPort(name string, port int) string {
	return strings.ReplaceAll(service(name, "10.0.0.2"), "number: 80", fmt.Sprintf("number: %d", port))
}

// running waits for a version in which a rollout of one object runs, and returns its id.
func running(t *testing.T, m *operatetest.Mesh, object string) string {
	t.Helper()
	for {
		var all []command.Rollout
		must(t, m, &all, "rollout", "status")
		for _, r := range all {
			if r.State == "running" && len(r.Objects) == 1 && r.Objects[0] == object {
				return r.ID
			}
		}
		m.Events.Wait(t, "serving", "version") // fails the test if there is no other
	}
}

package rollback

import (
	"strings"
	"testing"

	"meshlog.dev/services/operate/command"
	"meshlog.dev/services/operate/operatetest"
)

// M7: a pin serves some proxies the configuration of a version, whatever the sources offer,
// until it is unpinned. It survives a restart, and changes nothing for all others.
func TestPin(t *testing.T) {
	m := operatetest.Start(t, map[string]string{"a.yaml": service("a", "10.0.0.1"), "w.yaml": entry("10.1.0.1")})
	var versions []struct{ Version string }
	must(t, m, &versions, "versions")
	good := versions[0].Version
	save(t, m, "b.yaml", service("b", "10.0.0.3"))

	var v result
	must(t, m, &v, "pin", good, "--proxies", "namespace=demo,app=pay", "--reason", "b breaks them")
	equal(t, "pin", changed(v), "removed ServiceEntry demo/b (file/default)")
	m.Events.Wait(t, "serving", "version")
	equal(t, "for all others", differences(t, m, good), "added ServiceEntry demo/b (file/default)")

	operatetest.WriteFiles(t, m.Config, map[string]string{"c.yaml": service("c", "10.0.0.4")})
	save(t, m, "w.yaml", entry("10.1.0.2"))
	if err := m.Stop(); err != nil {
		t.Fatal(err)
	}
	m.Run(t)
	m.Events.Wait(t, "listed", "keys")

	var pins []command.Word
	must(t, m, &pins, "unpin")
	if len(pins) != 1 || pins[0].ID != v.ID || pins[0].Proxies != "namespace=demo,app=pay" || pins[0].Objects != 2 || pins[0].Reason != "b breaks them" {
		t.Errorf("pins: %+v", pins)
	}
	var words []command.Word
	if must(t, m, &words, "release"); len(words) != 0 {
		t.Errorf("release lists %+v", words)
	}
	freed := result{}
	must(t, m, &freed, "unpin", v.ID, "--dry-run")
	equal(t, "unpin, dry run", changed(freed), "added ServiceEntry demo/b (file/default)", "added ServiceEntry demo/c (file/default)")
	must(t, m, &freed, "unpin", v.ID)
	equal(t, "unpin", changed(freed), "added ServiceEntry demo/b (file/default)", "added ServiceEntry demo/c (file/default)")
	pins = nil
	if must(t, m, &pins, "unpin"); len(pins) != 0 {
		t.Errorf("after unpin: %+v", pins)
	}
	for args, want := range map[string]string{
		"pin latest --reason x":                     "--proxies is missing",
		"pin latest --proxies x=1":                  "--reason is missing",
		"pin latest --proxies app= --reason x":      "want terms",
		"pin latest~9 --proxies app=pay --reason x": "latest~9",
		"unpin pin-nothing":                         "no pin",
		"release " + v.ID:                           "no rollback or freeze",
	} {
		if err := meshlog(t, m, nil, strings.Fields(args)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

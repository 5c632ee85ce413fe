package sources

import (
	"fmt"
	"strings"
	"testing"

	"meshlog.dev/services/internal/bus"
)

// AGG-6: an entry has the settings of the watcher of its type, and may have a user of the
// bus of its own.
func TestParse(t *testing.T) {
	l, err := parse(allTypes, "s.yaml", []byte(`sources:
- type: consul
  consul: [10.0.0.1:8500, 10.0.0.2:8500]
  consul-datacenter: east
  bus-nkey: east.nk
- {type: file, config: ., instance: routes}
- {type: kubernetes, cluster: west}
`))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, e := range l.entries {
		got = append(got, fmt.Sprintf("%d %s %s", e.line, e.Shard(), e.as(bus.ConnectOptions{NkeyFile: "own.nk"}).NkeyFile))
	}
	if want := "2 consul/east east.nk, 6 file/routes own.nk, 7 kubernetes/west own.nk"; strings.Join(got, ", ") != want {
		t.Errorf("got %s, want %s", strings.Join(got, ", "), want)
	}
}

// AGG-6: every error of the file names its line, and a source that is there twice is a
// warning.
func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		"sources: [{type: zookeeper}]":                                       `s.yaml:1: there is no type "zookeeper": want one of consul, file, kubernetes, nacos, xds`,
		"sources: [{consul: [a:1]}]":                                         "s.yaml:1: has no type",
		"sources: [consul]":                                                  "s.yaml:1: want a map with a type and settings",
		"sources: [{type: consul}]":                                          "s.yaml:1: --consul is missing",
		"sources: [{type: consul, consul: [a:1], consl-ca: x}]":              "s.yaml:1: consl-ca: no such setting; did you mean",
		"sources: [{type: kubernetes, remote-clusters: x}]":                  "s.yaml:1: --remote-clusters has no effect here",
		"sources: [{type: kubernetes, secret-key-file: x}]":                  "s.yaml:1: --secret-key-file cannot be set here: run watcher-kube",
		"sources: [{type: xds}]":                                             "s.yaml:1: --mcp-source is missing",
		"sorces: []":                                                         "field sorces not found",
		"sources:\n- {type: x}\n- {type: file, config: ., instance: \"\"}\n": "s.yaml:2: there is no type \"x\"",
		"sources: [}":                                                        "s.yaml: yaml",
		"sources: []\n---\nsources: []\n":                                    "only one document is read",
	} {
		if _, err := parse(allTypes, "s.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
	l, err := parse(allTypes, "s.yaml", []byte("sources:\n- {type: file, config: .}\n- {type: file, config: ..}\n"))
	if err != nil || len(l.entries) != 1 || l.entries[0].line != 2 || len(l.warnings) != 1 || !strings.Contains(l.warnings[0], "s.yaml:3: the source file/default is there already in line 2") {
		t.Errorf("twice the same source: %+v, %v", l, err)
	}
	for _, text := range []string{"", "# nothing\n", "sources:\n", "sources: []\n"} {
		if l, err := parse(allTypes, "s.yaml", []byte(text)); err != nil || len(l.entries) != 0 {
			t.Errorf("%q: %+v, %v", text, l, err)
		}
	}
}

package samebytes

import (
	"fmt"
	"strings"
	"testing"
)

func TestDifference(t *testing.T) {
	const text = "@ 1.2 aa\n! 1 error invalid Gateway a/b spec\n> one CDS 2 v1 d1\n+ 11 x\n+ 12 y z\n> two CDS = one\n@ 1.3 bb\n> one CDS 1 v2 d2\n- x\n"
	tests := map[string]struct{ from, to, want string }{
		"same":       {"", "", ""},
		"a resource": {"+ 12 y z", "+ 13 y z", "version 1.2, node one, CDS, y z: want 12, got 13"},
		"gone":       {"- x\n", "", "version 1.3, node one, CDS, x: want removed, got nothing"},
		"new":        {"- x\n", "- x\n- y z\n", "version 1.3, node one, CDS, y z: want nothing, got removed"},
		"a node":     {"= one", "2 v1 d3", "version 1.2, node two, CDS: want = one, got 2 v1 d3"},
		"a problem":  {"! 1 error", "! 2 error", "version 1.2, problem error invalid Gateway a/b spec: want 1, got 2"},
		"the root":   {"@ 1.3 bb", "@ 1.3 cc", "version 1.3: want root bb, got root cc"},
		"the order":  {"+ 11 x\n+ 12 y z\n", "+ 12 y z\n+ 11 x\n", "the same lines in another order"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			got := strings.TrimSpace(difference(text, strings.Replace(text, test.from, test.to, 1)))
			if got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestDifferenceIsBounded(t *testing.T) {
	var b strings.Builder
	for i := range 100 {
		fmt.Fprintf(&b, "@ 1.%d aa\n", i)
	}
	got := difference(b.String(), strings.ReplaceAll(b.String(), "aa", "bb"))
	if lines := strings.Count(got, "\n"); lines != mostDifferences+1 || !strings.HasSuffix(got, "and 80 more\n") {
		t.Errorf("%d lines:\n%s", lines, got)
	}
}

func TestParseNodes(t *testing.T) {
	nodes, err := parseNodes("# comment\n\n" +
		`a: sidecar~10.0.0.1~app.shop~shop.svc app=web @NETWORK=net1 @LIST=["x","y"] %cluster=edge %locality=eu/eu-1 %agent="gRPC Go/1.2" %names=a:80,b:80` + "\n")
	if err != nil || len(nodes) != 1 {
		t.Fatalf("%v, %v", nodes, err)
	}
	n := nodes[0]
	got := fmt.Sprintf("%s %s %v %s %s/%s %s %s %v", n.name, n.node.GetId(), n.node.GetMetadata().AsMap(), n.node.GetCluster(),
		n.node.GetLocality().GetRegion(), n.node.GetLocality().GetZone(), n.node.GetUserAgentName(), n.node.GetUserAgentVersion(), n.names)
	if want := "a sidecar~10.0.0.1~app.shop~shop.svc map[LABELS:map[app:web] LIST:[x y] NETWORK:net1] edge eu/eu-1 gRPC Go 1.2 [a:80 b:80]"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for _, line := range []string{"a:", "a b", "a: b c", "a: b %x=y", "a: b @x={", "a: b\na: c"} {
		if _, err := parseNodes(line); err == nil {
			t.Errorf("%q is accepted", line)
		}
	}
}

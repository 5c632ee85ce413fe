package mcpxds_test

import (
	"fmt"
	"strings"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/anypb"

	"meshlog.dev/deploy/testkit/mcptest"
)

// MCP-4: however much is wrong with an answer, what is said of it stays short.
func TestMCP4Noise(t *testing.T) {
	s := mcptest.Start(t, mcptest.Options{})
	var set []*anypb.Any
	for i := range 1000 {
		set = append(set, mcptest.Resource(fmt.Sprintf("nameless-%d-%s", i, strings.Repeat("x", 1000)), entry("a")))
		e := entry("a.example.com")
		e.ProtoReflect().SetUnknown(unknownField(protowire.Number(100 + i%2)))
		set = append(set, mcptest.Resource(fmt.Sprintf("shop/n%d", i), e))
	}
	s.Set(mcptest.ServiceEntries, set...)
	r := watch(t, s, nil)
	if l := r.list(); len(l.Objects) != 1000 || !l.Partial {
		t.Errorf("listed %d objects, partial %t", len(l.Objects), l.Partial)
	}
	nack := s.Request(t, func(r *discoveryv3.DiscoveryRequest) bool { return r.GetErrorDetail() != nil })
	if text := nack.GetErrorDetail().GetMessage(); len(text) > 4000 || !strings.HasSuffix(text, "; and 990 others") {
		t.Errorf("the NACK has %d bytes: %s", len(text), text)
	}
	d := r.problem("unknown-field")
	for _, one := range r.problems[mcptest.ServiceEntries] {
		if len(one.Reason) > 700 {
			t.Errorf("a reason has %d bytes", len(one.Reason))
		}
	}
	if len(r.problems[mcptest.ServiceEntries]) != 3 { // no names, and two fields
		t.Errorf("%d problems, one of them %+v", len(r.problems[mcptest.ServiceEntries]), d)
	}
}

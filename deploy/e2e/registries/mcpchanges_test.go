//go:build registries

package registries

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/anypb"
	networking "istio.io/api/networking/v1alpha3"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/mcptest"
	"meshlog.dev/deploy/testkit/testport"
)

// entries is how many ServiceEntries the source has: one of them is 1 %.
const entries = 100

// entrySet is the set of ServiceEntries of a source: each has an endpoint at one of the
// ports.
type entrySet [entries]int

func (s *entrySet) resources() []*anypb.Any {
	var all []*anypb.Any
	for i, port := range s {
		all = append(all, mcptest.Resource(fmt.Sprintf("shop/e%d", i), &networking.ServiceEntry{
			Hosts: []string{fmt.Sprintf("e%d.internal", i)}, Location: networking.ServiceEntry_MESH_INTERNAL, Resolution: networking.ServiceEntry_STATIC,
			Ports:     []*networking.ServicePort{{Number: 80, Name: "http", Protocol: "HTTP"}},
			Endpoints: []*networking.WorkloadEntry{{Address: "127.0.0.1", Ports: map[string]uint32{"http": uint32(port)}}},
		}))
	}
	return all
}

// paths has a path for each entry.
func paths() string {
	var b strings.Builder
	b.WriteString(`apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: entries, namespace: shop}
spec:
  hosts: ["*"]
  gateways: [edge]
  http:
`)
	for i := range entries {
		fmt.Fprintf(&b, "  - match: [{uri: {exact: /e%d}}]\n    route: [{destination: {host: e%[1]d.internal, port: {number: 80}}}]\n", i)
	}
	return b.String()
}

// TST-8: 1 % of the ServiceEntries of a source of MCP-over-xDS change each second, for a
// minute, under 1000 requests a second to all of them: none fails. The test prints how long
// a change takes from the push to Envoy.
func TestMCPChanges(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var ports [2]int
	for i := range ports {
		b, err := rig.StartBackend(fmt.Sprint("v", i+1))
		must(t, err)
		t.Cleanup(b.Stop)
		ports[i] = b.Port
	}
	var set entrySet
	for i := range set {
		set[i] = ports[0]
	}
	source := mcptest.Start(t, mcptest.Options{})
	source.Set(mcptest.ServiceEntries, set.resources()...)

	entry, err := testport.TCP()
	must(t, err)
	_, envoy := route(ctx, t, entry, paths(), "{type: xds, mcp-source: xds://"+source.Address()+", instance: entries}")
	knows := func(i, port int) {
		t.Helper()
		for {
			hosts, err := envoy.Hosts(ctx, fmt.Sprintf("outbound|80||e%d.internal", i))
			must(t, err, ctx.Err())
			if _, ok := hosts[net.JoinHostPort("127.0.0.1", strconv.Itoa(port))]; ok && len(hosts) == 1 {
				return
			}
		}
	}
	knows(entries-1, ports[0])

	var urls []string
	for i := range entries {
		urls = append(urls, fmt.Sprintf("http://127.0.0.1:%d/e%d", entry, i))
	}
	load, err := rig.StartLoads(ctx, 4, urls...)
	must(t, err)
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	var took []time.Duration
	for n := range 60 {
		<-tick.C
		i := n % (entries / 2) // ten of them twice
		if set[i] == ports[0] {
			set[i] = ports[1]
		} else {
			set[i] = ports[0]
		}
		began := time.Now()
		source.Set(mcptest.ServiceEntries, set.resources()...)
		knows(i, set[i])
		took = append(took, time.Since(began))
	}
	tally := load.Stop()
	noneFailed(t, tally, "push", took)
	if len(tally.Backends) != 2 {
		t.Errorf("answers of %v, want two backends", tally.Backends)
	}
}

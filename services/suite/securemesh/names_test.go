package securemesh_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/miekg/dns"

	"meshlog.dev/deploy/testkit/certtest"
	"meshlog.dev/services/roles/agent"
)

const named = `
apiVersion: v1
kind: Service
metadata: {name: cart, namespace: web}
spec: {clusterIP: 10.99.0.1, ports: [{name: http, port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: api, namespace: shop}
spec:
  hosts: ["*.api.example"]
  addresses: [%s]
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 127.0.0.3}]
`

// NDS-1, AGT-4, AGT-6: an agent gets the names of the mesh from the frontend on its own
// stream, and answers them. A change reaches it; its Envoy gets none. After a restart with a
// state directory it answers while no frontend can be reached.
func TestNames(t *testing.T) {
	m := start(t, fmt.Sprintf(named, "10.99.0.2"), nil)
	state := filepath.Join(m.dir, "state")
	listen := at("127.0.0.2", port(t)) // UDP ports of 127.0.0.1 are anybody's
	set := func(s *agent.Settings) {
		s.DNS, s.StateDir = listen, state
		s.ResolvConf = certtest.WriteFile(t, m.dir, "resolv.conf", []byte("nameserver 127.0.0.1\n"))
	}
	way := newRelay(t, m.xds)
	web := m.workload("web", "127.0.0.2", way.l.Addr().String(), set)
	answers := func(name string, want ...string) {
		t.Helper()
		m.until(name, time.Minute, func() error {
			resp, err := dns.Exchange(new(dns.Msg).SetQuestion(name, dns.TypeA), listen)
			if err != nil {
				return err
			}
			var got []string
			for _, rr := range resp.Answer {
				got = append(got, strings.Fields(rr.String())[4])
			}
			if !slices.Equal(got, want) {
				return fmt.Errorf("%s", resp)
			}
			return nil
		})
	}
	answers("cart.", "10.99.0.1")
	answers("cart.web.svc.cluster.local.", "10.99.0.1")
	answers("v1.api.example.", "10.99.0.2")
	certtest.WriteFile(t, m.config, "mesh.yaml", fmt.Appendf(nil, named, "10.99.0.3"))
	answers("v1.api.example.", "10.99.0.3")
	m.until("the streams of both", time.Minute, func() error {
		var views []struct {
			ID    string `json:"id"`
			Types []struct {
				Type string `json:"type"`
			} `json:"types"`
		}
		must(t, json.Unmarshal([]byte(m.meshlog("proxy-status", "-o", "json")), &views))
		if len(views) != 2 {
			return fmt.Errorf("the streams are %+v", views)
		}
		for _, v := range views {
			gets := false
			for _, of := range v.Types {
				gets = gets || of.Type == "NDS"
			}
			if agents := strings.HasSuffix(v.ID, "~agent"); gets != agents {
				t.Errorf("%s gets %+v", v.ID, v.Types)
			}
		}
		return nil
	})
	m.until("the names are saved", time.Minute, func() error {
		b, err := os.ReadFile(filepath.Join(state, "names"))
		if err == nil && !strings.Contains(string(b), "10.99.0.3") {
			err = fmt.Errorf("not yet")
		}
		return err
	})
	web.stop()
	way.sleep()
	m.workload("web", "127.0.0.2", way.l.Addr().String(), set)
	answers("v1.api.example.", "10.99.0.3")
}

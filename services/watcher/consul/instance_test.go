package consul

import (
	"encoding/json"
	"fmt"
	"maps"
	"strings"
	"testing"

	registryv1 "meshlog.dev/proto/meshlog/registry/v1"
	"meshlog.dev/services/watcher/registry"
)

// text describes an instance.
func text(in registry.Instance) string {
	health := strings.ToLower(strings.TrimPrefix(in.Health.String(), "HEALTH_"))
	s := fmt.Sprintf("%s %s:%d %s w%d %s/%s", in.ID, in.Address, in.Port, health, in.Weight, in.Locality.GetRegion(), in.Locality.GetZone())
	for _, p := range in.Named {
		s += fmt.Sprintf(" %s=%d", p.Name, p.Number)
	}
	return s
}

// node is a node without a service, and svc a service that runs there.
const (
	node = `"Node": {"Node": "n1", "Address": "10.0.0.1", "Datacenter": "dc1"}`
	svc  = `"Service": {"ID": "web-1", "Address": "10.1.0.1", "Port": 80, "Weights": {"Passing": 10, "Warning": 3}`
)

// Each row is an instance as Consul writes it, and what becomes of it.
func TestInstances(t *testing.T) {
	checks := func(all ...string) string {
		var list []string
		for i := 0; i < len(all); i += 2 {
			list = append(list, fmt.Sprintf(`{"CheckID": %q, "Status": %q}`, all[i], all[i+1]))
		}
		return node + "," + svc + `}, "Checks": [` + strings.Join(list, ",") + "]"
	}
	for name, c := range map[string]struct {
		entry    string
		settings Settings
		want     string
	}{
		"CON-12 datacenter":        {node + "," + svc + "}", Settings{}, "n1/web-1 10.1.0.1:80 healthy w10 dc1/"},
		"CON-12 zone of the node":  {`"Node": {"Node": "n1", "Datacenter": "dc1", "Meta": {"zone": "a"}},` + svc + "}", Settings{}, "n1/web-1 10.1.0.1:80 healthy w10 dc1/a"},
		"CON-12 node's locality":   {`"Node": {"Node": "n1", "Datacenter": "dc1", "Meta": {"zone": "a"}, "Locality": {"Region": "eu", "Zone": "eu-1"}},` + svc + "}", Settings{}, "n1/web-1 10.1.0.1:80 healthy w10 eu/eu-1"},
		"CON-12 own locality":      {`"Node": {"Node": "n1", "Locality": {"Region": "eu", "Zone": "eu-1"}},` + svc + `, "Locality": {"Region": "us", "Zone": "us-1"}}`, Settings{}, "n1/web-1 10.1.0.1:80 healthy w10 us/us-1"},
		"CON-13 node's address":    {node + `, "Service": {"ID": "web-1", "Port": 80, "Weights": {"Passing": 1}}`, Settings{}, "n1/web-1 10.0.0.1:80 healthy w1 dc1/"},
		"CON-13 tagged":            {node + "," + svc + `, "TaggedAddresses": {"wan": {"Address": "192.0.2.1", "Port": 8080}}}`, Settings{TaggedAddress: "wan"}, "n1/web-1 192.0.2.1:8080 healthy w10 dc1/"},
		"CON-13 tagged, unset":     {node + "," + svc + `, "TaggedAddresses": {"wan": {"Address": "192.0.2.1", "Port": 8080}}}`, Settings{}, "n1/web-1 10.1.0.1:80 healthy w10 dc1/"},
		"CON-13 node's tagged":     {`"Node": {"Node": "n1", "Address": "10.0.0.1", "TaggedAddresses": {"wan": "192.0.2.9"}}, "Service": {"ID": "web-1", "Port": 80, "Weights": {"Passing": 1}}`, Settings{TaggedAddress: "wan"}, "n1/web-1 192.0.2.9:80 healthy w1 /"},
		"CON-14 several ports":     {node + "," + svc + `, "Ports": [{"Name": "http", "Port": 80, "Default": true}, {"Name": "metrics", "Port": 9090}]}`, Settings{}, "n1/web-1 10.1.0.1:0 healthy w10 dc1/ http=80 metrics=9090"},
		"CON-15 passing":           {checks("serfHealth", passing, "c", passing), Settings{}, "n1/web-1 10.1.0.1:80 healthy w10 dc1/"},
		"CON-15 warning":           {checks("serfHealth", passing, "c", warning), Settings{}, "n1/web-1 10.1.0.1:80 healthy w3 dc1/"},
		"CON-15 warning, dropped":  {checks("c", warning), Settings{DropWarning: true}, "n1/web-1 10.1.0.1:80 unhealthy w3 dc1/"},
		"CON-15 critical node":     {checks("serfHealth", critical, "c", warning), Settings{}, "n1/web-1 10.1.0.1:80 unhealthy w10 dc1/"},
		"CON-15 unknown state":     {checks("c", "new"), Settings{}, "n1/web-1 10.1.0.1:80 unhealthy w10 dc1/"},
		"CON-15 weight 0":          {node + `, "Service": {"ID": "web-1", "Port": 80, "Weights": {"Passing": 0}}`, Settings{}, "n1/web-1 10.0.0.1:80 unhealthy w0 dc1/"},
		"CON-15 maintenance":       {checks("_service_maintenance:web-1", critical, "c", passing), Settings{}, "n1/web-1 10.1.0.1:80 draining w10 dc1/"},
		"CON-15 node maintenance":  {checks("_node_maintenance", critical, "c", critical), Settings{}, "n1/web-1 10.1.0.1:80 draining w10 dc1/"},
		"CON-18 a host name":       {`"Node": {"Node": "n1"}, "Service": {"ID": "web-1", "Address": "web.example.com", "Port": 443, "Weights": {"Passing": 1}}`, Settings{}, "n1/web-1 web.example.com:443 healthy w1 /"},
		"CON-17 a proxy, left out": {node + "," + svc + `, "Kind": "connect-proxy"}`, Settings{}, ""},
	} {
		var e entry
		if err := json.Unmarshal([]byte("{"+c.entry+"}"), &e); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		got := ""
		if v := c.settings.service("web", "http://ui", []entry{e}); len(v.Instances) > 0 {
			got = text(v.Instances[0])
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// CON-12, CON-18, REG-8: the host, the origin and the version of a service.
func TestService(t *testing.T) {
	s := Settings{Datacenter: "east", Namespace: "consul"}
	var e entry
	e.Service.Meta, e.Service.ModifyIndex = map[string]string{"external": "true"}, 42
	v := s.service("web", "http://ui", []entry{e, {}})
	if v.Host != "web.service.consul" || !v.External || v.Version != "42" || v.Origin != "http://ui/ui/east/services/web" || v.Namespace != "consul" {
		t.Errorf("%+v", v)
	}
	s.DatacenterHosts, e.Service.Meta = true, map[string]string{"external": "false"}
	if v := s.service("web", "", []entry{e}); v.Host != "web.service.east.consul" || v.External {
		t.Errorf("%+v", v)
	}
}

// CON-16: metadata win, then the first tag.
func TestCON16Labels(t *testing.T) {
	got := labels(map[string]string{"version": "v1"}, []string{"version=v2", "team=a", "team|b", "zone|x=y", "canary", "=odd"})
	want := map[string]string{"version": "v1", "team": "a", "zone": "x=y", "consul-tag/canary": "true", "consul-tag/=odd": "true"}
	if !maps.Equal(got, want) {
		t.Errorf("labels %v, want %v", got, want)
	}
}

// CON-13: of two instances at one address and port the healthy one counts, then the lower
// identity.
func TestCON13Distinct(t *testing.T) {
	in := func(id, address string, port uint32, h registryv1.Health) registry.Instance {
		return registry.Instance{ID: id, Address: address, Port: port, Health: h}
	}
	const healthy, unhealthy = registryv1.Health_HEALTH_HEALTHY, registryv1.Health_HEALTH_UNHEALTHY
	got := distinct([]registry.Instance{
		in("a", "10.0.0.1", 80, unhealthy), in("b", "10.0.0.1", 80, healthy), in("c", "10.0.0.1", 80, healthy), in("d", "10.0.0.1", 81, unhealthy), in("e", "10.0.0.2", 80, healthy),
	})
	var ids string
	for _, i := range got {
		ids += i.ID
	}
	if ids != "bde" {
		t.Errorf("%s are left, want bde", ids)
	}
}

// CON-17, CON-20: settings hide services by name and tag.
func TestCON20Wanted(t *testing.T) {
	for name, c := range map[string]struct {
		settings Settings
		service  string
		tags     []string
		want     bool
	}{
		"all":                   {Settings{}, "web", nil, true},
		"consul itself":         {Settings{}, "consul", nil, false},
		"a glob":                {Settings{Services: []string{"web*", "db"}}, "web-1", nil, true},
		"no glob":               {Settings{Services: []string{"web*", "db"}}, "db-1", nil, false},
		"a tag":                 {Settings{Tags: []string{"a", "b"}}, "web", []string{"b", "c"}, true},
		"no tag":                {Settings{Tags: []string{"a", "b"}}, "web", []string{"c"}, false},
		"copied from the k8s":   {Settings{ExcludeTags: []string{"k8s"}}, "web", []string{"k8s"}, false},
		"excluded though asked": {Settings{Tags: []string{"a"}, ExcludeTags: []string{"k8s"}}, "web", []string{"a", "k8s"}, false},
	} {
		if got := c.settings.wanted(c.service, c.tags); got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

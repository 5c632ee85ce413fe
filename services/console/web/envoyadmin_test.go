package web_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"meshlog.dev/services/console/web"
	"meshlog.dev/services/roles/console"
)

// envoy is the admin interface of an Envoy of a proxy that has one cluster of the mesh, one that
// differs, and one that the mesh does not have.
func envoy(t *testing.T, id string, answer func(w http.ResponseWriter, r *http.Request)) string {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch asked := r.Method + " " + r.URL.RequestURI(); {
		case answer != nil:
			answer(w, r)
			return
		case asked == "GET /server_info":
			fmt.Fprintf(w, `{"version": "1/1.40.0/Clean", "node": {"id": %q}}`, id)
			return
		case asked != "GET /config_dump?include_eds":
			t.Errorf("the console sends %s", asked)
		}
		fmt.Fprint(w, `{"configs": [
 {"@type": "type.googleapis.com/envoy.admin.v3.BootstrapConfigDump", "bootstrap": {"node": {"a_field_of_a_later_envoy": 1}}},
 {"@type": "type.googleapis.com/envoy.admin.v3.ClustersConfigDump", "dynamic_active_clusters": [
  {"cluster": {"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "BlackHoleCluster", "type": "STATIC", "connect_timeout": "3s"}},
  {"cluster": {"@type": "type.googleapis.com/envoy.config.cluster.v3.Cluster", "name": "stray", "type": "STATIC"}}]},
 {"@type": "type.googleapis.com/envoy.admin.v3.EndpointsConfigDump", "dynamic_endpoint_configs": [
  {"endpoint_config": {"@type": "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment", "cluster_name": "outbound|80|v1|shop.internal",
   "endpoints": [{"locality": {}, "lb_endpoints": [{"endpoint": {"address": {"socket_address": {"address": "10.1.0.1", "port_value": 80}}}, "health_status": "HEALTHY", "load_balancing_weight": 1}]}],
   "policy": {"overprovisioning_factor": 140}}}]},
 {"@type": "type.googleapis.com/envoy.admin.v3.ListenersConfigDump", "dynamic_listeners": [{"name": "bad", "error_state": {"details": "<b>no such filter</b>"}}]}
]}`)
	}))
	t.Cleanup(s.Close)
	return strings.TrimPrefix(s.URL, "http://")
}

// The page of an Envoy compares its config_dump with what the control plane has.
func TestEnvoyPage(t *testing.T) {
	m := start(t)
	const app = "sidecar~10.0.0.9~app.demo~demo.svc.cluster.local"
	status, body := m.get(address("/envoy", "proxy", app, "admin", envoy(t, app, nil)))
	for _, want := range []string{"BlackHoleCluster: differs", "connect_timeout", "&#34;3s&#34;", "stray: only in Envoy", "outbound|80|v2|shop.internal: only here", "Envoy has not taken an update: &lt;b&gt;no such filter"} {
		if !strings.Contains(body, want) {
			t.Errorf("status %d, the page lacks %q:\n%s", status, want, body)
		}
	}
	if strings.Contains(body, "<span class=\"faint\">EDS</span> outbound|80|v1|shop.internal") {
		t.Errorf("endpoints that are the same are listed:\n%s", body)
	}
	redirected := envoy(t, app, func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, "http://192.0.2.1/secret", http.StatusFound)
	})
	secret := envoy(t, app, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"configs": "a secret"}`) })
	endless := envoy(t, app, func(w http.ResponseWriter, _ *http.Request) {
		for chunk := strings.Repeat("[", 1<<20); ; {
			if _, err := fmt.Fprint(w, chunk); err != nil {
				return
			}
		}
	})
	for name, c := range map[string]struct {
		admin  string
		status int
		want   string
	}{
		"another Envoy":        {envoy(t, "other", nil), 409, "another node id"},
		"a redirect":           {redirected, 502, "no admin interface of an Envoy"},
		"no config_dump":       {secret, 502, "no admin interface of an Envoy"},
		"an endless answer":    {endless, 502, "more than 1 MiB"},
		"nothing there":        {"127.0.0.1:1", 502, "no Envoy answers"},
		"nothing there, IPv6":  {"[::1]:1", 502, "no Envoy answers"},
		"another machine":      {"192.0.2.1:15000", 403, "--console-envoy-admin"},
		"metadata of a cloud":  {"169.254.169.254:80", 403, "--console-envoy-admin"},
		"any address":          {"0.0.0.0:15000", 403, "--console-envoy-admin"},
		"any address of IPv6":  {"[::]:15000", 403, "--console-envoy-admin"},
		"IPv4 in IPv6":         {"[::ffff:192.0.2.1]:15000", 403, "--console-envoy-admin"},
		"a zone":               {"[fe80::1%25eth0]:15000", 400, "want IP:PORT"},
		"a name":               {"localhost:15000", 400, "want IP:PORT"},
		"a name and more":      {"127.0.0.1:15000@evil.example:80", 400, "want IP:PORT"},
		"a path":               {"127.0.0.1:15000/quitquitquit?", 400, "want IP:PORT"},
		"an octal address":     {"0177.0.0.1:15000", 400, "want IP:PORT"},
		"a number":             {"2130706433:15000", 400, "want IP:PORT"},
		"a URL":                {"http://127.0.0.1:15000", 400, "want IP:PORT"},
		"no port":              {"127.0.0.1", 400, "want IP:PORT"},
		"a line and a request": {"127.0.0.1:15000\r\nX: y", 400, "want IP:PORT"},
	} {
		t.Run(name, func(t *testing.T) {
			status, body := m.get(address("/envoy", "proxy", app, "admin", c.admin))
			if status != c.status || !strings.Contains(body, c.want) || strings.Contains(body, "secret") {
				t.Errorf("status %d, want %d and %q:\n%s", status, c.status, c.want, body)
			}
		})
	}
	t.Run("loopback, asked from elsewhere", func(t *testing.T) {
		a := m.attack("", m.tokenFile())
		w := a.send(attackRequest{method: "GET", path: address("/envoy", "proxy", app, "admin", "127.0.0.1:15000"), from: "192.0.2.7:1", host: "mesh.example", headers: map[string]string{"Authorization": "Bearer open sesame"}})
		if w.Code != http.StatusForbidden || !strings.Contains(w.Body.String(), "requests of that machine only") {
			t.Errorf("status %d:\n%s", w.Code, w.Body)
		}
	})
}

// What --console-envoy-admin takes.
func TestAdminRules(t *testing.T) {
	for rule, ok := range map[string]bool{
		"loopback": true, "10.0.0.0/8": true, "10.1.2.3": true, "10.1.2.3:15000": true, "::1/128": true, "[::1]:15000": true, "fd00::/8": true,
		"": false, "localhost": false, "envoy:15000": false, "10.0.0.0/33": false, "10.1.2.3:0": false, "http://10.1.2.3": false, "fe80::1%eth0": false, "*": false,
	} {
		if _, err := web.ParseAdminRules(rule); (err == nil) != ok {
			t.Errorf("%q: %v", rule, err)
		}
		s := console.DefaultSettings()
		s.EnvoyAdmin = []string{rule}
		if err := s.Check(); (err == nil) != ok {
			t.Errorf("the setting %q: %v", rule, err)
		}
	}
}

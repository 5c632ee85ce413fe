package rig

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"meshlog.dev/deploy/testkit/program"
)

// EnvoyConfig sets how an Envoy connects to a mesh.
type EnvoyConfig struct {
	// Node is the node id, and the name of the process; unique among Envoys that
	// share Dir.
	Node string
	// Cluster is the cluster of the node.
	Cluster string
	// Overlay is YAML that is merged over the bootstrap. If it is not empty, it
	// must set the node's id and cluster.
	Overlay string
	// Delta selects delta.yaml instead of sotw.yaml.
	Delta bool
	// TLS selects tls.yaml with these files.
	TLS *TLS
	// XDS are the ports of the frontends, at least one; Hosts are their addresses,
	// nil: loopback.
	XDS   []int
	Hosts []string
	// Dir is the directory of its bootstrap, log and admin address.
	Dir string
}

// Envoy is a running Envoy with a bootstrap of deploy/envoy.
type Envoy struct {
	*program.Process
	admin string // host:port
}

// StartEnvoy starts Envoy and waits until its admin interface answers. Envoy is
// not yet Ready then.
func StartEnvoy(ctx context.Context, c EnvoyConfig) (*Envoy, error) {
	bin, err := program.Tool(ctx, "envoy")
	if err != nil {
		return nil, err
	}
	boot, err := bootstrap(c)
	if err != nil {
		return nil, err
	}
	adminPath := filepath.Join(c.Dir, c.Node+".admin")
	if err := os.Remove(adminPath); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	node := []string{"--service-node", c.Node, "--service-cluster", c.Cluster}
	if c.Overlay != "" {
		node = []string{"--config-yaml", c.Overlay}
	}
	p, err := program.Start(c.Node, c.Dir, append([]string{
		bin, "-c", boot, "--admin-address-path", adminPath,
		// Two Envoys on one machine must not take part in each other's hot
		// restart.
		"--disable-hot-restart",
		"--concurrency", "1", "--log-level", "warning", "--drain-time-s", "1",
	}, node...))
	if err != nil {
		return nil, err
	}
	e := &Envoy{Process: p}
	err = p.UntilAlive(ctx, "Envoy's admin interface", func(ctx context.Context) error {
		b, err := os.ReadFile(adminPath)
		if err != nil {
			return err
		}
		e.admin = string(b)
		_, err = e.get(ctx, "/server_info")
		return err
	})
	if err != nil {
		p.Kill()
		return nil, err
	}
	return e, nil
}

// bootstrap writes a bootstrap of deploy/envoy with the ports of c.
func bootstrap(c EnvoyConfig) (string, error) {
	root, err := program.Root()
	if err != nil {
		return "", err
	}
	from := "sotw.yaml"
	files := strings.NewReplacer()
	switch {
	case c.TLS != nil:
		from = "tls.yaml"
		files = strings.NewReplacer(
			"/etc/meshlog/tls/proxy.pem", c.TLS.Cert, "/etc/meshlog/tls/proxy-key.pem", c.TLS.Key, "/etc/meshlog/tls/ca.pem", c.TLS.CA)
	case c.Delta:
		from = "delta.yaml"
	}
	b, err := os.ReadFile(filepath.Join(root, "deploy", "envoy", from))
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for line := range strings.Lines(string(b)) {
		switch {
		case strings.Contains(line, "port_value: 15000"):
			out.WriteString(strings.Replace(line, "15000", "0", 1))
		case strings.Contains(line, "port_value: 15010"), strings.Contains(line, "port_value: 15012"):
			for i, port := range c.XDS {
				at := strings.NewReplacer("15010", strconv.Itoa(port), "15012", strconv.Itoa(port)).Replace(line)
				if c.Hosts != nil {
					at = strings.Replace(at, "127.0.0.1", c.Hosts[i], 1)
				}
				out.WriteString(at)
			}
		default:
			out.WriteString(files.Replace(line))
		}
	}
	path := filepath.Join(c.Dir, c.Node+".yaml")
	return path, os.WriteFile(path, []byte(out.String()), 0o600)
}

// ValidateBootstrap lets Envoy validate a bootstrap file, with overlay merged
// over it if that is not empty.
func ValidateBootstrap(ctx context.Context, path, overlay string) error {
	bin, err := program.Tool(ctx, "envoy")
	if err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, bin, "--mode", "validate", "-c", path, "--config-yaml", overlay).CombinedOutput()
	if err != nil {
		return fmt.Errorf("validate %s: %w\n%s", path, err, out)
	}
	return nil
}

// Admin returns the address of the admin interface, host:port.
func (e *Envoy) Admin() string { return e.admin }

// Ready waits until Envoy has its first configuration and serves.
func (e *Envoy) Ready(ctx context.Context) error {
	return e.UntilAlive(ctx, e.Name+" to be ready", func(ctx context.Context) error {
		_, err := e.get(ctx, "/ready")
		return err
	})
}

// Listening waits until Envoy accepts connections on a port.
func (e *Envoy) Listening(ctx context.Context, port int) error {
	return e.UntilAlive(ctx, fmt.Sprintf("%s to listen on port %d", e.Name, port), func(ctx context.Context) error {
		return dial(ctx, loopback(port))
	})
}

// Stat returns the value of one counter or gauge.
func (e *Envoy) Stat(ctx context.Context, name string) (int, error) {
	b, err := e.get(ctx, "/stats?usedonly&format=json&filter=^"+name+"$")
	if err != nil {
		return 0, err
	}
	var reply struct {
		Stats []struct {
			Name  string
			Value int
		}
	}
	if err := json.Unmarshal(b, &reply); err != nil {
		return 0, fmt.Errorf("stats of %s: %w", e.Name, err)
	}
	for _, s := range reply.Stats {
		if s.Name == name {
			return s.Value, nil
		}
	}
	return 0, nil // Envoy omits a stat that was never touched
}

// Connected waits until Envoy has a stream to a frontend, or with false, until it
// has none.
func (e *Envoy) Connected(ctx context.Context, want bool) error {
	what := e.Name + " to be connected"
	if !want {
		what = e.Name + " to notice that the frontend is gone"
	}
	return e.UntilAlive(ctx, what, func(ctx context.Context) error {
		n, err := e.Stat(ctx, "control_plane.connected_state")
		if err == nil && (n == 1) != want {
			err = fmt.Errorf("control_plane.connected_state is %d", n)
		}
		return err
	})
}

// ConfigDump decodes all configuration that Envoy has received.
func (e *Envoy) ConfigDump(ctx context.Context, into any) error {
	b, err := e.get(ctx, "/config_dump?include_eds")
	if err != nil {
		return err
	}
	return decode("/config_dump of "+e.Name, b, into)
}

// Hosts returns the endpoints of a cluster, host:port, and whether Envoy sends
// requests to each.
func (e *Envoy) Hosts(ctx context.Context, cluster string) (map[string]bool, error) {
	b, err := e.get(ctx, "/clusters?format=json&filter=^"+url.QueryEscape(regexp.QuoteMeta(cluster))+"$")
	if err != nil {
		return nil, err
	}
	var reply struct {
		Clusters []struct {
			Name  string
			Hosts []struct {
				Address struct {
					Socket struct {
						Address string
						Port    int `json:"port_value"`
					} `json:"socket_address"`
				}
				Health struct {
					EDS string `json:"eds_health_status"`
				} `json:"health_status"`
			} `json:"host_statuses"`
		} `json:"cluster_statuses"`
	}
	if err := decode("/clusters of "+e.Name, b, &reply); err != nil {
		return nil, err
	}
	hosts := map[string]bool{}
	for _, c := range reply.Clusters {
		for _, h := range c.Hosts {
			at := h.Address.Socket
			hosts[net.JoinHostPort(at.Address, strconv.Itoa(at.Port))] = h.Health.EDS == "HEALTHY"
		}
	}
	return hosts, nil
}

// Rejected returns how many responses, of all types, Envoy has rejected since it
// started.
func (e *Envoy) Rejected(ctx context.Context) (int, error) {
	b, err := e.get(ctx, "/stats?usedonly&filter=update_rejected$")
	if err != nil {
		return 0, err
	}
	total := 0
	for line := range strings.Lines(string(b)) {
		_, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		n, err := strconv.Atoi(value)
		if err != nil {
			return 0, fmt.Errorf("stats of %s: %q", e.Name, line)
		}
		total += n
	}
	return total, nil
}

// get asks the admin interface; any code but 200 is an error.
func (e *Envoy) get(ctx context.Context, path string) ([]byte, error) {
	return httpGet(ctx, "http://"+e.admin+path)
}

// httpGet returns the body of a response with code 200.
func httpGet(ctx context.Context, url string) ([]byte, error) {
	return httpGetWith(ctx, http.DefaultClient, url)
}

func httpGetWith(ctx context.Context, client *http.Client, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("GET %s: %s: %s", url, resp.Status, strings.TrimSpace(string(b)))
	}
	return b, err
}

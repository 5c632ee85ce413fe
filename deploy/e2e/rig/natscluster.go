package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

// clusterSize is the smallest number of servers that survives the loss of one.
const clusterSize = 3

// maximumStreams is the code of the server's error that an account may have no more streams.
const maximumStreams jetstream.ErrorCode = 10027

// NATSCluster is three NATS servers that replicate streams. Each is a separate
// process with its own data. A test may kill, pause or restart any of them, or
// delete its data.
type NATSCluster struct {
	Nodes []*NATS
}

// ClusterOptions sets where the servers of a cluster run; the zero value is loopback.
type ClusterOptions struct {
	// Hosts are the addresses that the servers listen on, one each.
	Hosts []string
	// Wrap returns the command line of a server with a prefix such as ip netns
	// exec. nil: no prefix.
	Wrap func(node int, argv []string) []string
}

// StartNATSCluster starts three servers that keep their data in
// dir/nats-<n>.data, on which a SmallDisk may already be mounted. It waits until
// the servers can create streams. A server syncs each write before it
// acknowledges it.
func StartNATSCluster(ctx context.Context, dir string, o ClusterOptions) (_ *NATSCluster, err error) {
	if o.Hosts == nil {
		o.Hosts = []string{"127.0.0.1", "127.0.0.1", "127.0.0.1"}
	}
	if len(o.Hosts) != clusterSize {
		return nil, fmt.Errorf("a cluster has %d servers, not %d", clusterSize, len(o.Hosts))
	}
	c := new(NATSCluster)
	defer func() {
		if err != nil {
			c.Kill()
		}
	}()
	var routes []string
	ports := make([]int, clusterSize)
	for i, host := range o.Hosts {
		if ports[i], err = testport.TCP(); err != nil {
			return nil, err
		}
		routes = append(routes, fmt.Sprintf("%s:%d", host, ports[i]))
	}
	auth := authIn(dir)
	if err := BusAuth(ctx, auth, append(watchers, "--routes", strings.Join(routes, ","))...); err != nil {
		return nil, err
	}
	for i, host := range o.Hosts {
		cluster := fmt.Sprintf(`cluster {
  name: rig, listen: "%s:%d"
  include %q
  tls { cert_file: "%[4]s/route.pem", key_file: "%[4]s/route.key", ca_file: "%[4]s/routes-ca.pem", verify: true, pinned_certs: $ROUTE_KEYS, timeout: 10 }
}
`, host, ports[i], filepath.Join(filepath.Base(auth), "routes.conf"), auth)
		n, err := startNATS(ctx, natsConfig{
			name: fmt.Sprintf("nats-%d", i+1), dir: dir, host: host, more: cluster, auth: auth,
			wrap: func(argv []string) []string {
				if o.Wrap == nil {
					return argv
				}
				return o.Wrap(i, argv)
			},
		})
		if err != nil {
			return nil, err
		}
		c.Nodes = append(c.Nodes, n)
	}
	return c, c.whole(ctx)
}

// URL returns the addresses of all servers, in the form that clients accept.
func (c *NATSCluster) URL() string {
	var urls []string
	for _, n := range c.Nodes {
		urls = append(urls, n.URL())
	}
	return strings.Join(urls, ",")
}

// Flags returns the flags by which a program with a role finds the servers and its
// key.
func (c *NATSCluster) Flags(role string) []string {
	return []string{"--bus", c.URL(), "--bus-nkey", keyOf(c.Nodes[0].Auth, role)}
}

// Admin is NATS.Admin.
func (c *NATSCluster) Admin() (nats.Option, error) { return c.Nodes[0].Admin() }

// Key is NATS.Key.
func (c *NATSCluster) Key(role string) (nats.Option, error) { return c.Nodes[0].Key(role) }

// AsAdmin runs a command of bin/meshlog on the servers as administrator.
func (c *NATSCluster) AsAdmin(ctx context.Context, into any, args ...string) error {
	return meshlog(ctx, into, append(args, c.Flags("admin")...)...)
}

// Ready waits until every running server is in sync with the others.
func (c *NATSCluster) Ready(ctx context.Context) error {
	for _, n := range c.Nodes {
		if n.Running() != nil {
			continue
		}
		if err := n.Ready(ctx); err != nil {
			return err
		}
	}
	return nil
}

// whole waits until all servers are in sync, and a stream can be placed on all of
// them. /healthz does not tell the second, and no other page of the monitoring
// endpoint does: the meta leader places nothing on a server from which it has not
// received the statistics that each server sends within its first second (nodeInfo's
// selectable in the source of nats-server). Until then it answers the error 10005,
// "no suitable peers for placement, peer offline", although /jsz says that the
// server is online. So whole creates a stream that has as many replicas as there
// are servers, and deletes it.
func (c *NATSCluster) whole(ctx context.Context) error {
	if err := c.Ready(ctx); err != nil {
		return err
	}
	admin, err := c.Admin()
	if err != nil {
		return err
	}
	nc, err := nats.Connect(c.URL(), admin)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc)
	if err != nil {
		return err
	}
	probe := jetstream.StreamConfig{Name: "rig-probe", Storage: jetstream.MemoryStorage, Replicas: clusterSize}
	return program.Until(ctx, "a stream to have a place on all servers", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, answer)
		defer cancel()
		var refused *jetstream.APIError
		switch _, err := js.CreateStream(ctx, probe); {
		case errors.As(err, &refused) && refused.ErrorCode == maximumStreams:
			return nil // the mesh has all streams that its account may have: nothing needs a place
		case err != nil:
			return err
		}
		return js.DeleteStream(ctx, probe.Name)
	})
}

// Leader waits until one of the servers that answer leads a stream, and returns
// that server.
func (c *NATSCluster) Leader(ctx context.Context, stream string) (leader *NATS, err error) {
	err = program.Until(ctx, "a leader of "+stream, func(ctx context.Context) error {
		var errs []error
		for _, n := range c.Nodes {
			if n.Running() != nil {
				continue
			}
			s, err := n.stream(ctx, stream)
			switch {
			case err != nil:
				errs = append(errs, err)
			case s.Cluster.Leader == n.Name: // only the leader's own report counts: the others may not know of an election yet
				leader = n
				return nil
			}
		}
		return errors.Join(append(errs, errors.New("no server says that it leads"))...)
	})
	return leader, err
}

// Others returns all servers except one.
func (c *NATSCluster) Others(than *NATS) []*NATS {
	var others []*NATS
	for _, n := range c.Nodes {
		if n != than {
			others = append(others, n)
		}
	}
	return others
}

// Kill ends all servers.
func (c *NATSCluster) Kill() {
	for _, n := range c.Nodes {
		n.Kill()
	}
}

// Restart starts all servers again. They must have ended.
func (c *NATSCluster) Restart(ctx context.Context) error {
	for _, n := range c.Nodes {
		if err := n.Restart(ctx); err != nil {
			return err
		}
	}
	return c.whole(ctx)
}

// Ready waits until the server has joined, and has caught up.
func (n *NATS) Ready(ctx context.Context) error {
	return n.UntilAlive(ctx, n.Name+" to be healthy", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, answer)
		defer cancel()
		_, err := httpGet(ctx, "http://"+n.monitor+"/healthz")
		return err
	})
}

// Wipe deletes the server's data. The server must have ended.
func (n *NATS) Wipe() error {
	if n.Running() == nil {
		return fmt.Errorf("%s runs: kill it before its data is deleted", n.Name)
	}
	// The directory itself stays: it may be a mount point.
	entries, err := os.ReadDir(n.Data)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(n.Data, e.Name())))
	}
	return errors.Join(errs...)
}

// streamState is a server's report of a stream.
type streamState struct {
	Name  string `json:"name"`
	State struct {
		First uint64 `json:"first_seq"`
		Last  uint64 `json:"last_seq"`
	} `json:"state"`
	Cluster struct {
		Leader   string `json:"leader"`
		Replicas []struct {
			Name    string `json:"name"`
			Current bool   `json:"current"`
			Lag     uint64 `json:"lag"`
		} `json:"replicas"`
	} `json:"cluster"`
}

func (n *NATS) stream(ctx context.Context, name string) (streamState, error) {
	ctx, cancel := context.WithTimeout(ctx, answer)
	defer cancel()
	b, err := httpGet(ctx, "http://"+n.monitor+"/jsz?streams=true")
	if err != nil {
		return streamState{}, fmt.Errorf("%s: %w", n.Name, err)
	}
	var jsz struct {
		Accounts []struct {
			Streams []streamState `json:"stream_detail"`
		} `json:"account_details"`
	}
	if err := json.Unmarshal(b, &jsz); err != nil {
		return streamState{}, fmt.Errorf("%s: /jsz: %w", n.Name, err)
	}
	for _, a := range jsz.Accounts {
		for _, s := range a.Streams {
			if s.Name == name {
				return s, nil
			}
		}
	}
	return streamState{}, fmt.Errorf("%s has no stream %s", n.Name, name)
}

// CaughtUp waits until all servers have caught up with a stream.
func (c *NATSCluster) CaughtUp(ctx context.Context, stream string) error {
	return program.Until(ctx, "all servers to have "+stream, func(ctx context.Context) error {
		leader, err := c.Leader(ctx, stream)
		if err != nil {
			return err
		}
		s, err := leader.stream(ctx, stream)
		if err != nil {
			return err
		}
		if len(s.Cluster.Replicas) != clusterSize-1 {
			return fmt.Errorf("%s has %d followers", leader.Name, len(s.Cluster.Replicas))
		}
		for _, r := range s.Cluster.Replicas {
			if !r.Current || r.Lag > 0 {
				return fmt.Errorf("%s is %d behind", r.Name, r.Lag)
			}
		}
		return nil
	})
}

// Package envoyadmin asks the admin interface of an Envoy what an agent has to know:
// whether it serves, and how many connections it has.
package envoyadmin

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
)

// Limits of one answer.
const (
	timeout   = 2 * time.Second
	maxAnswer = 8 << 20
)

// Client asks the admin interface at an address, HOST:PORT.
type Client struct {
	address string
	http    *http.Client
}

// New returns a Client. It ignores the proxies that the environment names.
func New(address string) *Client {
	return &Client{address, &http.Client{Timeout: timeout, Transport: &http.Transport{DisableKeepAlives: true}}}
}

func (c *Client) do(ctx context.Context, method, path string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.address+path, nil)
	if err != nil {
		return "", err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return "", fmt.Errorf("the admin interface of Envoy: %w", err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s %s: %s", method, path, resp.Status)
	}
	return string(b), err
}

// stats returns the statistics whose names match a regular expression.
func (c *Client) stats(ctx context.Context, filter string) (map[string]int, error) {
	text, err := c.do(ctx, http.MethodGet, "/stats?filter="+url.QueryEscape(filter))
	if err != nil {
		return nil, err
	}
	all := map[string]int{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ": ")
		if n, err := strconv.Atoi(value); err == nil {
			all[name] = n
		}
	}
	return all, nil
}

// Names of Envoy's statistics.
const (
	state     = "server.state"
	workers   = "listener_manager.workers_started"
	listeners = "listener_manager.lds.update_success"
	active    = "downstream_cx_active"
)

// states are the values of server.state.
var states = []string{"live", "draining", "pre-initializing", "initializing"}

// Ready returns an error unless Envoy is live and serves the listeners that it got from a
// frontend.
func (c *Client) Ready(ctx context.Context) error {
	s, err := c.stats(ctx, `^(server\.state|listener_manager\.(workers_started|lds\.update_success))$`)
	switch n, ok := s[state]; {
	case err != nil:
		return err
	case !ok:
		return fmt.Errorf("the admin interface of Envoy at %s does not know its state", c.address)
	case n < 0 || n >= len(states):
		return fmt.Errorf("the state of Envoy is %d", n)
	case n > 0:
		return fmt.Errorf("the state of Envoy is %s: it waits for its first configuration, or ends", states[n])
	case s[workers] == 0 || s[listeners] == 0:
		return errors.New("the Envoy has no listeners from a frontend yet")
	}
	return nil
}

// Connections returns how many connections clients have to Envoy's listeners.
func (c *Client) Connections(ctx context.Context) (sum int, err error) {
	s, err := c.stats(ctx, `^listener\..*\.downstream_cx_active$`)
	for name, n := range s {
		if !strings.HasPrefix(name, "listener.admin.") && !strings.Contains(name, ".worker_") && strings.HasSuffix(name, active) {
			sum += n
		}
	}
	return sum, err
}

// Drain asks clients to leave: Envoy ends idle connections, says so in responses, and
// closes its listeners after its drain time.
func (c *Client) Drain(ctx context.Context) error {
	_, err := c.do(ctx, http.MethodPost, "/drain_listeners?graceful")
	return err
}

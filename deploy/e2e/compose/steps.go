package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/program"
)

const (
	streamCount = 40
	spreadLimit = 0.2 // how far the streams of one frontend may be from even
	// arrival bounds how long a change may take while the bus elects a leader.
	arrival = time.Minute
	// enough is how many requests show that they flow.
	enough = 200
)

// versions of the shop, one of which answers everything after a change.
var versions = []string{"shop-v1", "shop-v2"}

func (t *trial) steps() []step {
	steps := []step{
		{"up", func(ctx context.Context) (string, error) {
			if err := t.join(ctx); err != nil {
				return "", err
			}
			return "18 containers are healthy", t.up(ctx, 1)
		}},
		{"requests through Envoys", t.serve},
		{"a file changes", t.changed},
	}
	for _, r := range registries {
		steps = append(steps, step{"--profile " + r.profile, func(ctx context.Context) (string, error) { return t.register(ctx, r) }})
	}
	steps = append(steps, []step{
		{"HTTPS at the gateway", t.https},
		{"its certificate is replaced", t.replaced},
		{"a client without certificate", t.stranger},
		{"agents are killed", t.rejoined},
		{"frontends: 1 to 3", func(ctx context.Context) (string, error) { return t.scale(ctx, 3) }},
		{"frontends: 3 to 2", func(ctx context.Context) (string, error) { return t.scale(ctx, 2) }},
	}...)
	for _, v := range []victim{
		{service: "nats-1"}, {service: "nats-2"}, {service: "nats-3"},
		{service: "builder-1"}, {service: "builder-2"}, {service: "frontend"},
		{service: "ca"}, {service: "watcher", stalls: true}, {service: "edge", stalls: true},
		{service: "shop-v1"}, {service: "shop-v2"}, {service: envoys[0]}, {service: envoys[1]},
	} {
		steps = append(steps, step{v.service + " is killed", func(ctx context.Context) (string, error) { return t.kill(ctx, v) }})
	}
	return append(steps,
		step{"a builder crashes", t.crash},
		step{"all but Envoys is killed", t.alone},
		step{"down, and up again", t.again},
	)
}

// serve sends requests through both Envoys from now on.
func (t *trial) serve(ctx context.Context) (string, error) {
	t.loads = map[string]*rig.Load{}
	for _, envoy := range envoys {
		if err := t.load(ctx, envoy); err != nil {
			return "", err
		}
	}
	if err := t.flows(ctx, envoys); err != nil {
		return "", err
	}
	return t.noneFailed()
}

// load sends requests through an Envoy once it answers.
func (t *trial) load(ctx context.Context, envoy string) error {
	url := "http://" + t.addr(envoy) + "/"
	err := await(ctx, envoy+" to answer", func(ctx context.Context) error { return rig.Send(ctx, url, 1).Err() })
	if err == nil {
		t.loads[envoy], err = rig.StartLoad(ctx, url, 2)
	}
	return err
}

// flows waits until some more requests are answered.
func (t *trial) flows(ctx context.Context, through []string) error {
	for _, envoy := range through {
		sent := t.loads[envoy].Sent()
		if err := await(ctx, "requests through "+envoy, func(context.Context) error {
			if n := t.loads[envoy].Sent() - sent; n < enough {
				return fmt.Errorf("%d requests of %d", n, enough)
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// noneFailed returns how many requests were answered since its last call; it is
// an error if a request failed.
func (t *trial) noneFailed() (string, error) {
	n := 0
	for envoy, l := range t.loads {
		tally := l.Reset()
		if err := tally.Err(); err != nil {
			return "", fmt.Errorf("%s: %w", envoy, err)
		}
		n += tally.Sent
	}
	return fmt.Sprintf("%d requests, none failed", n), nil
}

// changed changes the routes, and waits until Envoys have acknowledged the
// change.
func (t *trial) changed(ctx context.Context) (string, error) {
	took, err := t.change(ctx, envoys)
	if err != nil {
		return "", err
	}
	var wait struct{ Applied int } // the command fails unless all proxies have it
	if err := t.meshlog(ctx, &wait, "wait", "latest"); err != nil {
		return "", err
	}
	figure, err := t.noneFailed()
	return fmt.Sprintf("seen behind both Envoys after %s, acknowledged by %d; %s", took, wait.Applied, figure), err
}

func (t *trial) proxies(ctx context.Context) ([]rig.ProxyStatus, error) {
	var proxies []rig.ProxyStatus
	return proxies, t.meshlog(ctx, &proxies, "proxy-status")
}

// change sends all requests to the other version of the shop, and waits until
// Envoys route so.
func (t *trial) change(ctx context.Context, through []string) (time.Duration, error) {
	began, err := t.save()
	if err != nil {
		return 0, err
	}
	return t.arrived(ctx, began, through)
}

// save saves routes that send all requests to the other version.
func (t *trial) save() (time.Time, error) {
	t.weights = 1 - t.weights
	path := filepath.Join(t.mesh, "routes.yaml")
	text, err := os.ReadFile(path)
	if err != nil {
		return time.Time{}, err
	}
	var lines []string
	left := 100 * (1 - t.weights)
	for line := range strings.Lines(string(text)) {
		if before, _, ok := strings.Cut(line, "weight: "); ok {
			line = fmt.Sprintf("%sweight: %d\n", before, left)
			left = 100 - left
		}
		lines = append(lines, line)
	}
	// Atomically, as an editor does.
	aside := path + ".new"
	if err := os.WriteFile(aside, []byte(strings.Join(lines, "")), 0o644); err != nil {
		return time.Time{}, err
	}
	return time.Now(), os.Rename(aside, path)
}

// arrived waits until the version that was saved last answers everything.
func (t *trial) arrived(ctx context.Context, began time.Time, through []string) (time.Duration, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, arrival, fmt.Errorf("not within %s", arrival))
	defer cancel()
	for _, envoy := range through {
		if err := program.Until(ctx, "the change at "+envoy, func(ctx context.Context) error {
			if share := rig.Send(ctx, "http://"+t.addr(envoy)+"/", 10).Share(versions[t.weights]); share < 100 {
				return fmt.Errorf("%s answers %.0f %%", versions[t.weights], share)
			}
			return nil
		}); err != nil {
			return 0, err
		}
	}
	return time.Since(began).Round(time.Millisecond), nil
}

// scale changes the number of frontends, and checks after two ages how the
// streams are spread.
func (t *trial) scale(ctx context.Context, frontends int) (string, error) {
	var err error
	if t.streams == nil {
		if t.streams, err = startStreams(ctx, t.addr("edge"), streamCount); err != nil {
			return "", err
		}
		if _, err := t.spread(ctx); err != nil {
			return "", err
		}
	}
	if err := t.up(ctx, frontends); err != nil {
		return "", err
	}
	twoAges := time.NewTimer(2 * t.age)
	defer twoAges.Stop()
	select {
	case <-twoAges.C:
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	counts, err := t.spread(ctx)
	if err != nil {
		return "", err
	}
	if len(counts) != frontends {
		return "", fmt.Errorf("streams on %d frontends: %v", len(counts), counts)
	}
	even := float64(streamCount) / float64(frontends)
	for _, n := range counts {
		if off := float64(n)/even - 1; off > spreadLimit || off < -spreadLimit {
			return "", fmt.Errorf("streams per frontend: %v; more than %.0f %% from even", counts, 100*spreadLimit)
		}
	}
	ended, longest, err := t.streams.tally()
	if err != nil {
		return "", err
	}
	figure, err := t.noneFailed()
	return fmt.Sprintf("streams per frontend: %v; %d reconnected, within %s at most; %s",
		counts, ended, longest.Round(time.Millisecond), figure), err
}

// spread returns how many streams each frontend has, once all streams are
// connected.
func (t *trial) spread(ctx context.Context) ([]int, error) {
	ctx, cancel := context.WithTimeout(ctx, arrival)
	defer cancel()
	var counts []int
	err := await(ctx, "all streams", func(ctx context.Context) error {
		proxies, err := t.proxies(ctx)
		if err != nil {
			return err
		}
		where, at := map[string]string{}, map[string]int{}
		for _, p := range proxies {
			if strings.HasPrefix(p.ID, streamID) && where[p.ID] == "" {
				where[p.ID] = p.Frontend
				at[p.Frontend]++
			}
		}
		counts = nil
		for _, n := range at {
			counts = append(counts, n)
		}
		slices.Sort(counts)
		if len(where) < streamCount {
			return fmt.Errorf("%d of %d are connected", len(where), streamCount)
		}
		return nil
	})
	return counts, err
}

// victim is a service; kill kills one of its containers.
type victim struct {
	service string
	stalls  bool // no change arrives without it
}

// kill kills a container. Requests continue. Changes arrive meanwhile if the
// deployment promises that, and in any case when the container is back.
func (t *trial) kill(ctx context.Context, v victim) (string, error) {
	ids, err := t.containers(ctx, v.service)
	if err != nil {
		return "", err
	}
	if i := slices.Index(versions, v.service); i == t.weights {
		if _, err := t.change(ctx, envoys); err != nil { // the watcher is not needed for it
			return "", err
		}
	}
	// A killed server does not answer.
	through := slices.DeleteFunc(slices.Clone(envoys), func(e string) bool { return e == v.service })
	if l := t.loads[v.service]; l != nil {
		if err := l.Stop().Err(); err != nil {
			return "", err
		}
		delete(t.loads, v.service)
	}
	if _, err := command(ctx, nil, "docker", "kill", ids[0]); err != nil {
		return "", err
	}
	var figures []string
	began, err := time.Now(), error(nil)
	switch {
	case slices.Contains(versions, v.service): // a change would change the server that answers
	case v.stalls:
		began, err = t.save()
	default:
		var took time.Duration
		took, err = t.change(ctx, through)
		figures = append(figures, fmt.Sprintf("a change arrives after %s", took))
	}
	if err != nil {
		return "", err
	}
	if err := t.flows(ctx, through); err != nil {
		return "", err
	}
	if _, err := command(ctx, nil, "docker", "start", ids[0]); err != nil {
		return "", err
	}
	back := time.Now()
	if err := healthy(ctx, ids[0]); err != nil {
		return "", err
	}
	if slices.Contains(envoys, v.service) {
		if err := t.load(ctx, v.service); err != nil {
			return "", err
		}
	}
	if v.stalls {
		_, err = t.arrived(ctx, began, envoys)
		figures = append(figures, fmt.Sprintf("a change made meanwhile arrives %s after its return", time.Since(back).Round(time.Millisecond)))
	} else {
		var took time.Duration
		took, err = t.change(ctx, envoys)
		figures = append(figures, fmt.Sprintf("after its return: %s", took))
	}
	if err != nil {
		return "", err
	}
	figure, err := t.noneFailed()
	return strings.Join(append(figures, figure), "; "), err
}

// crash kills a process from outside of its container, as a bug in the program
// would end it: Docker restarts the container.
func (t *trial) crash(ctx context.Context) (string, error) {
	ids, err := t.containers(ctx, "builder-1")
	if err != nil {
		return "", err
	}
	pid, err := inspect(ctx, ids[0], "{{.State.Pid}}")
	if err != nil {
		return "", err
	}
	// The process has the same user, so no capability is needed.
	if _, err := command(ctx, nil, "docker", "run", "--rm", "--pid", "host", "--network", "none", "--cap-drop", "ALL",
		"meshlog-demo:dev", "backend", "kill", pid); err != nil {
		return "", err
	}
	began := time.Now()
	if err := await(ctx, "a restart", func(ctx context.Context) error {
		if n, err := inspect(ctx, ids[0], "{{.RestartCount}}"); err != nil || n == "0" {
			return fmt.Errorf("%s restarts: %w", n, err)
		}
		return nil
	}); err != nil {
		return "", err
	}
	if err := healthy(ctx, ids[0]); err != nil {
		return "", err
	}
	back := time.Since(began).Round(time.Millisecond)
	took, err := t.change(ctx, envoys)
	if err != nil {
		return "", err
	}
	figure, err := t.noneFailed()
	return fmt.Sprintf("restarted and ready after %s; a change arrives after %s; %s", back, took, figure), err
}

// again removes all containers and creates them again: the data stays.
func (t *trial) again(ctx context.Context) (string, error) {
	type version struct{ Version, Root string }
	var before, after []version
	if err := t.meshlog(ctx, &before, "versions"); err != nil || len(before) == 0 {
		return "", fmt.Errorf("%d versions: %w", len(before), err)
	}
	t.stop()
	if err := t.down(ctx); err != nil {
		return "", err
	}
	if err := t.up(ctx, 1); err != nil {
		return "", err
	}
	if err := t.meshlog(ctx, &after, "versions"); err != nil {
		return "", err
	}
	if !slices.Contains(after, before[0]) {
		return "", fmt.Errorf("version %s is gone", before[0].Version)
	}
	if _, err := t.arrived(ctx, time.Now(), envoys); err != nil {
		return "", err
	}
	took, err := t.change(ctx, envoys)
	return fmt.Sprintf("%d versions before, %d after; a change arrives after %s", len(before), len(after), took), err
}

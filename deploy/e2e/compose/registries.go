package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/nacostest"
	"meshlog.dev/deploy/testkit/program"
)

// registry is a source of services with a profile of its own.
type registry struct {
	profile string // also the service of the registry
	watcher string // the service that reads it
	host    string // of the service that the test calls
	// register puts an instance at port 8080 of an address into it, unless it is there.
	register func(ctx context.Context, t *trial, container, address string) error
}

var registries = []registry{
	{"consul", "watcher-consul", "trial.service.consul", func(ctx context.Context, _ *trial, container, address string) error {
		_, err := command(ctx, nil, "docker", "exec", container, "consul", "services", "register", "-name=trial", "-address="+address, "-port=8080")
		return err
	}},
	{"nacos", "watcher-nacos", "trial.DEFAULT-GROUP.public.nacos", func(ctx context.Context, t *trial, _, address string) error {
		s := nacostest.Server{Addr: t.addr("nacos")}
		return s.Call(ctx, http.MethodPost, "/nacos/v1/ns/instance", url.Values{"serviceName": {"trial"}, "ip": {address}, "port": {"8080"}, "ephemeral": {"false"}}, nil)
	}},
	{"mcp", "watcher-xds", "shop.other", func(context.Context, *trial, string, string) error { return nil }},
}

// toRegistry routes requests for a host to the service of that name.
const toRegistry = `apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: %s, namespace: demo}
spec:
  hosts: [%s]
  gateways: [edge]
  http: [{route: [{destination: {host: %[2]s}}]}]
`

// register starts the profile of a registry, which has or gets the first version of the shop:
// it answers through both Envoys, also when the registry is dead. At the end the profile is
// removed.
func (t *trial) register(ctx context.Context, r registry) (string, error) {
	if _, err := t.compose(ctx, "--profile", r.profile, "up", "--detach", "--wait", "--wait-timeout", "120", "--no-recreate", r.profile, r.watcher); err != nil {
		return "", err
	}
	ids, err := t.containers(ctx, r.profile)
	if err != nil {
		return "", err
	}
	shops, err := t.containers(ctx, versions[0])
	if err != nil {
		return "", err
	}
	address, err := inspect(ctx, shops[0], "{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}")
	if err != nil {
		return "", err
	}
	file := filepath.Join(t.mesh, r.profile+".yaml")
	if err := os.WriteFile(file, fmt.Appendf(nil, toRegistry, r.profile, r.host), 0o644); err != nil {
		return "", err
	}
	began := time.Now()
	if err := t.registered(ctx, r, ids[0], address); err != nil {
		return "", err
	}
	took := time.Since(began).Round(time.Millisecond)
	if _, err := command(ctx, nil, "docker", "kill", ids[0]); err != nil {
		return "", err
	}
	for _, envoy := range envoys {
		call, end := t.to(envoy, r.host)
		tally := rig.SendCalls(ctx, enough, call)
		end()
		if err := tally.Err(); err != nil {
			return "", fmt.Errorf("%s, with %s dead: %w", envoy, r.profile, err)
		}
	}
	if _, err := t.compose(ctx, "--profile", r.profile, "rm", "--stop", "--force", r.profile, r.watcher); err != nil {
		return "", err
	}
	figure, err := t.noneFailed()
	return fmt.Sprintf("%s answers after %s, and with %s dead; %s", r.host, took, r.profile, figure), errors.Join(err, os.Remove(file))
}

// registered registers an instance, and waits until it answers through both Envoys.
func (t *trial) registered(ctx context.Context, r registry, container, address string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, arrival, fmt.Errorf("not within %s", arrival))
	defer cancel()
	if err := await(ctx, r.profile+" to take an instance", func(ctx context.Context) error { return r.register(ctx, t, container, address) }); err != nil {
		return err
	}
	for _, envoy := range envoys {
		call, end := t.to(envoy, r.host)
		defer end()
		if err := program.Until(ctx, r.host+" at "+envoy, func(ctx context.Context) error {
			tally := rig.SendCalls(ctx, 1, call)
			if tally.Share(versions[0]) < 100 {
				return fmt.Errorf("it is not %s that answers: %w", versions[0], tally.Err())
			}
			return nil
		}); err != nil {
			return err
		}
	}
	return nil
}

// to returns calls of a host through an Envoy.
func (t *trial) to(envoy, host string) (rig.Call, func()) {
	return rig.To("http://"+t.addr(envoy)+"/", host, 1)
}

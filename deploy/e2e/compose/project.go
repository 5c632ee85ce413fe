package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

// project is the deployment under a name of its own.
type project struct {
	name  string
	argv  []string // command line of docker-compose with the files
	env   []string
	mesh  string            // the watched directory
	keys  string            // the directory of secrets
	tools string            // deploy/compose, with its scripts
	ports map[string]string // loopback ports, by service
}

// The two Envoys, by service.
var envoys = []string{"envoy-sotw", "envoy-delta"}

// gateway is the service that takes HTTPS.
const gateway = "gateway"

// newProject copies the configuration to dir; it starts nothing.
func newProject(ctx context.Context, dir string, age time.Duration) (*project, error) {
	root, err := program.Root()
	if err != nil {
		return nil, err
	}
	if out, err := command(ctx, nil, "docker", "version", "--format", "{{.Server.Version}}"); err != nil {
		return nil, fmt.Errorf("no Docker engine: start one, or name it in DOCKER_HOST: %w\n%s", err, out)
	}
	if out, err := command(ctx, nil, "docker", "image", "inspect", "meshlog:dev", "meshlog-demo:dev", "meshlog-nats:dev", "meshlog-envoy:dev", "meshlog-agent:dev", "meshlog-consul:dev", "meshlog-nacos:dev"); err != nil {
		return nil, fmt.Errorf("images are missing: run `deploy/compose/images registries`: %w\n%.300s", err, out)
	}
	compose, err := program.Tool(ctx, "docker-compose")
	if err != nil {
		return nil, err
	}
	deploy := filepath.Join(root, "deploy")
	p := &project{
		name:  fmt.Sprintf("meshlog-test-%06x", rand.N(1<<24)),
		mesh:  filepath.Join(dir, "mesh"),
		keys:  filepath.Join(dir, "secrets"),
		tools: filepath.Join(deploy, "compose"),
		ports: map[string]string{},
	}
	p.argv = []string{
		compose, "--project-name", p.name, "--progress", "quiet",
		"--file", filepath.Join(deploy, "compose.yaml"),
	}
	if err := os.CopyFS(p.mesh, os.DirFS(filepath.Join(p.tools, "mesh"))); err != nil {
		return nil, err
	}
	// The watcher runs as another user.
	if err := os.Chmod(p.mesh, 0o755); err != nil {
		return nil, err
	}
	if _, err := command(ctx, nil, filepath.Join(p.tools, "write-secrets"), p.keys); err != nil {
		return nil, err
	}
	nacos, err := testport.Pair(1000) // gRPC is there
	if err != nil {
		return nil, err
	}
	p.ports["nacos"] = fmt.Sprint(nacos)
	p.env = []string{
		"MESHLOG_MESH=" + p.mesh, "MESHLOG_SECRETS=" + p.keys, "MESHLOG_MAX_STREAM_AGE=" + age.String(),
		"MESHLOG_CONSUL_IMAGE=meshlog-consul:dev", "MESHLOG_NACOS_IMAGE=meshlog-nacos:dev",
		fmt.Sprintf("MESHLOG_NACOS_PORT=%d", nacos), fmt.Sprintf("MESHLOG_NACOS_GRPC_PORT=%d", nacos+1000),
	}
	for service, variable := range map[string]string{
		"edge": "MESHLOG_XDS_PORT", envoys[0]: "MESHLOG_SOTW_PORT", envoys[1]: "MESHLOG_DELTA_PORT", gateway: "MESHLOG_HTTPS_PORT",
	} {
		port, err := testport.TCP()
		if err != nil {
			return nil, err
		}
		p.ports[service] = fmt.Sprint(port)
		p.env = append(p.env, fmt.Sprintf("%s=%d", variable, port))
	}
	return p, nil
}

// addr returns the address on which this machine publishes a service.
func (p *project) addr(service string) string { return "127.0.0.1:" + p.ports[service] }

// compose runs a command of docker-compose and returns its output.
func (p *project) compose(ctx context.Context, args ...string) (string, error) {
	return command(ctx, p.env, append(p.argv, args...)...)
}

// up brings the deployment to a state in which the given number of frontends and
// all other services run and are healthy.
func (p *project) up(ctx context.Context, frontends int) error {
	_, err := p.compose(ctx, "up", "--detach", "--wait", "--wait-timeout", "120", "--no-recreate",
		"--scale", fmt.Sprintf("frontend=%d", frontends))
	return err
}

// join writes what the agents join the mesh with, as `make up` does before all the rest.
func (p *project) join(ctx context.Context) error {
	_, err := command(ctx, p.env, append([]string{filepath.Join(p.tools, "join")}, p.argv...)...)
	return err
}

// meshlog runs a command of the CLI in a container and decodes its JSON output.
func (p *project) meshlog(ctx context.Context, into any, args ...string) error {
	out, err := p.compose(ctx, append([]string{"run", "--rm", "--no-TTY", "meshlog", "-o", "json"}, args...)...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(out), into); err != nil {
		return fmt.Errorf("meshlog %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// containers returns the ids of a service's containers, running or not.
func (p *project) containers(ctx context.Context, service string) ([]string, error) {
	out, err := command(ctx, nil, "docker", "ps", "--all", "--quiet", "--no-trunc",
		"--filter", "label=com.docker.compose.project="+p.name, "--filter", "label=com.docker.compose.service="+service)
	if err == nil && out == "" {
		err = fmt.Errorf("%s has no container", service)
	}
	return strings.Fields(out), err
}

// inspect returns a part of Docker's description of a container.
func inspect(ctx context.Context, id, format string) (string, error) {
	return command(ctx, nil, "docker", "inspect", "--format", format, id)
}

// healthy waits until a container's own health check succeeds. It runs the check
// itself instead of waiting for Docker's next one.
func healthy(ctx context.Context, id string) error {
	out, err := inspect(ctx, id, "{{json .Config.Healthcheck.Test}}")
	if err != nil {
		return err
	}
	var test []string
	if err := json.Unmarshal([]byte(out), &test); err != nil || len(test) < 2 || test[0] != "CMD" {
		return fmt.Errorf("health check of %s: %q: %w", id, out, err)
	}
	return await(ctx, "a healthy container", func(ctx context.Context) error {
		_, err := command(ctx, nil, append([]string{"docker", "exec", id}, test[1:]...)...)
		return err
	})
}

// logs returns the last output of the containers.
func (p *project) logs(ctx context.Context) string {
	out, err := p.compose(ctx, "logs", "--no-color", "--tail", "15")
	if err != nil {
		return err.Error()
	}
	return out
}

// down removes all containers. It stops them one after the other: an engine
// before 20.10.27 sometimes hangs when several end at once (moby #46661).
func (p *project) down(ctx context.Context, args ...string) error {
	out, err := command(ctx, nil, "docker", "ps", "--quiet", "--filter", "label=com.docker.compose.project="+p.name)
	if err != nil {
		return err
	}
	for _, id := range strings.Fields(out) {
		if _, err := command(ctx, nil, "docker", "stop", id); err != nil {
			return err
		}
	}
	_, err = p.compose(ctx, append([]string{"--profile", "*", "down", "--remove-orphans"}, args...)...)
	return err
}

// remove removes everything that the project has created.
func (p *project) remove(ctx context.Context) error {
	err := p.down(ctx, "--volumes")
	// The volumes of frontends that were scaled away belong to no container.
	out, listed := command(ctx, nil, "docker", "volume", "ls", "--quiet", "--filter", "label=dev.meshlog.frontend-of="+p.name)
	err = errors.Join(err, listed)
	if volumes := strings.Fields(out); len(volumes) > 0 {
		_, removed := command(ctx, nil, append([]string{"docker", "volume", "rm"}, volumes...)...)
		err = errors.Join(err, removed)
	}
	return err
}

// command runs a program and returns its output; an error has its standard error.
func command(ctx context.Context, env []string, argv ...string) (string, error) {
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), env...)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", filepath.Base(argv[0]), strings.Join(argv[1:], " "), err, strings.TrimSpace(stderr.String()))
	}
	return strings.TrimSpace(string(out)), err
}

// await calls check from time to time until it returns nil. If ctx ends first, the
// error has the last error of check.
func await(ctx context.Context, what string, check func(context.Context) error) error {
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil {
			last = err // a check that ctx cut short reports less
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w: %w", what, context.Cause(ctx), last)
		case <-tick.C:
		}
	}
}

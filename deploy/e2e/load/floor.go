package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"meshlog.dev/deploy/e2e/floor"
	"meshlog.dev/deploy/e2e/load/fleet"
	"meshlog.dev/deploy/e2e/load/world"
	"meshlog.dev/deploy/testkit/program"
	"meshlog.dev/deploy/testkit/testport"
)

// floorCommand makes this program the floor's server, in a separate process like
// a frontend.
const floorCommand = "serve-floor"

func serveFloor(ctx context.Context, args []string) error {
	fs := flag.NewFlagSet(floorCommand, flag.ContinueOnError)
	script := fs.String("script", "", "`file` with the responses")
	xds := fs.String("listen", "", "`address` of xDS")
	admin := fs.String("admin", "", "`address` of changes and pprof")
	if err := fs.Parse(args); err != nil {
		return err
	}
	b, err := os.ReadFile(*script)
	if err != nil {
		return err
	}
	var s floor.Script
	if err := json.Unmarshal(b, &s); err != nil {
		return fmt.Errorf("%s: %w", *script, err)
	}
	var listeners [2]net.Listener
	for i, addr := range []string{*xds, *admin} {
		if listeners[i], err = net.Listen("tcp", addr); err != nil {
			return err
		}
	}
	return floor.Serve(ctx, listeners[0], listeners[1], s)
}

// script writes the responses that a proxy got from a frontend to a file.
func (r *results) script(dir string, said *result) (string, error) {
	s := floor.Script{First: map[string][]byte{}, Change: map[string][]byte{
		fleet.EDS.URL(): said.endpoint.resources, fleet.RDS.URL(): said.route.resources,
	}}
	for _, t := range fleet.Types() {
		s.First[t.URL()] = r.lesson.Answers[t]
	}
	b, err := json.Marshal(s)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, "floor.json")
	return file, os.WriteFile(file, b, 0o600)
}

// floorCase measures the proxies of a case with a floor's server, which sends the
// responses that the frontend had sent.
func floorCase(ctx context.Context, dir string, w *world.World, r *results, of *result) (*result, error) {
	script, err := r.script(dir, of)
	if err != nil {
		return nil, err
	}
	xds, err := testport.TCP()
	if err != nil {
		return nil, err
	}
	admin, err := testport.TCP()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p, err := program.Start("floor", dir, []string{
		self, floorCommand, "-script", script, "-listen", address(xds), "-admin", address(admin),
	})
	if err != nil {
		return nil, err
	}
	defer p.Kill()
	err = p.UntilAlive(ctx, "the floor to listen", func(ctx context.Context) error { return collect(ctx, admin) })
	if err != nil {
		return nil, err
	}
	t := target{address: address(xds), pid: p.PID(), admin: admin}
	t.change = func(ctx context.Context, of fleet.Type) (world.Change, error) {
		at := fmt.Sprintf("http://%s/change?type=%s", address(admin), url.QueryEscape(of.URL()))
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, at, nil)
		if err != nil {
			return world.Change{}, err
		}
		now := time.Now()
		return world.Change{Saved: now}, do(req)
	}
	c, err := r.config(w, t, of.streams, of.classes)
	if err != nil {
		return nil, err
	}
	out := &result{streams: of.streams}
	if out.figures, err = measure(ctx, t, c, r.plan); err != nil {
		return nil, errors.Join(err, p.Running())
	}
	return out, nil
}

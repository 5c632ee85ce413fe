package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/e2e/shop"
	"meshlog.dev/deploy/testkit/consultest"
	"meshlog.dev/deploy/testkit/nacostest"
	"meshlog.dev/deploy/testkit/testport"
)

// instancesEach is how many instances each registry has. A registry that loses five or
// fewer is believed at once.
const instancesEach = 6

// The service in Consul, which is also what clients call, and in Nacos.
const (
	consulHost = "shop.service.consul"
	nacosHost  = "shop.DEFAULT-GROUP.public.nacos"
)

// half is the instances of the service in one registry.
type half struct {
	registry string // also the name of its backends
	host     string
	slice    string // the object with the instances
	backends []*rig.Backend
}

// registriesStage holds the running parts of the demo with two registries.
type registriesStage struct {
	scene

	consul      *consultest.Agent
	nacos       *nacostest.Server
	before      half // the service before the migration
	after       half // and after it
	config      *rig.ConfigDir
	port        int // where the first Envoy accepts requests
	servicePort int // of the service, in both registries; there the second Envoy does
	mcpPort     int // where istiod reads meshlog
	fed         fed
	loads       []*rig.Load // through each Envoy, to the end
	answered    int         // requests of all loads
	seen        rig.Version
}

func newRegistriesStage(s scene) play {
	return &registriesStage{
		scene:  s,
		before: half{registry: "consul", host: consulHost, slice: "EndpointSlice consul/shop#"},
		after:  half{registry: "nacos", host: nacosHost, slice: "EndpointSlice public/shop#"},
	}
}

func (s *registriesStage) steps() []step {
	return []step{s.set, s.shift, s.deregister, s.critical, s.consulEmpty, s.nacosEmpty, s.feed, s.finish}
}

// set starts everything.
func (s *registriesStage) set(ctx context.Context) (err error) {
	if err := s.registries(ctx); err != nil {
		return err
	}
	flags, err := s.configure()
	if err != nil {
		return err
	}
	if s.mesh, err = rig.UpWith(ctx, s.dir, nil, flags...); err != nil {
		return err
	}
	if s.envoy, err = s.mesh.Join(ctx, rig.EnvoyConfig{Node: "envoy-1", Cluster: "demo"}, s.port); err != nil {
		return err
	}
	up := s.up()
	s.chapter("What runs")
	s.where("consul", fmt.Sprintf("a real Consul; shop has %d instances in it", instancesEach), fmt.Sprintf("pid %d, %s", s.consul.PID(), s.consul.URL))
	s.where("rnacos", fmt.Sprintf("a real Nacos server; shop has %d other instances in it", instancesEach), fmt.Sprintf("pid %d, http://%s", s.nacos.PID(), s.nacos.Addr))
	s.where("meshlog up", "watches both: --sources sources.yaml", fmt.Sprintf("pid %d, xDS 127.0.0.1:%d, admin http://127.0.0.1:%d", up.PID(), up.XDS, up.Admin))
	s.where("envoy-1", "a real Envoy, configured by it", fmt.Sprintf("pid %d, http://127.0.0.1:%d/, admin http://%s", s.envoy.PID(), s.port, s.envoy.Admin()))
	s.where("config", "the watched directory, from deploy/e2e/demo/registries", s.config.Path)
	s.where("data", "the log, the versions, the frontend's replica", s.mesh.Data)
	s.note("")
	s.note("Clients call %s. In Nacos the service has another name, %s.", consulHost, nacosHost)
	for _, h := range []half{s.before, s.after} {
		for _, b := range h.backends {
			if err := s.known(ctx, h, b, true); err != nil {
				return err
			}
		}
	}
	s.note("")
	return s.await(ctx, fmt.Sprintf("nacos/public: 1 service, %d instances", instancesEach), "sources")
}

// registries starts both registries, and the instances in them.
func (s *registriesStage) registries(ctx context.Context) (err error) {
	for _, dir := range []string{"consul", "nacos"} {
		if err := os.Mkdir(filepath.Join(s.dir, dir), 0o700); err != nil {
			return err
		}
	}
	if s.consul, err = consultest.StartIn(ctx, filepath.Join(s.dir, "consul"), consultest.Options{}); err != nil {
		return err
	}
	if s.nacos, err = nacostest.StartIn(ctx, filepath.Join(s.dir, "nacos"), nacostest.Options{}); err != nil {
		return err
	}
	for _, h := range []*half{&s.before, &s.after} {
		for range instancesEach {
			b, err := rig.StartBackend(h.registry)
			if err != nil {
				return err
			}
			h.backends = append(h.backends, b)
		}
	}
	return errors.Join(s.registerInConsul(ctx), s.registerInNacos(ctx))
}

// configure writes the configuration, on free ports, and returns the flags of `meshlog up`.
func (s *registriesStage) configure() (flags []string, err error) {
	if s.config, err = rig.NewConfigDir(s.dir); err != nil {
		return nil, err
	}
	for _, port := range []*int{&s.port, &s.servicePort, &s.mcpPort} {
		if *port, err = testport.TCP(); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"gateway.yaml", "policy.yaml"} {
		text, err := ours("registries", name)
		if err != nil {
			return nil, err
		}
		if _, err := s.config.Save(name, shop.Ports(text, 10000, s.port)); err != nil {
			return nil, err
		}
	}
	if _, err := s.weigh(100, 0); err != nil {
		return nil, err
	}
	sources, err := ours("registries", "sources.yaml")
	if err != nil {
		return nil, err
	}
	path := filepath.Join(s.dir, "sources.yaml")
	text := strings.NewReplacer("127.0.0.1:8500", s.consul.Addr, "127.0.0.1:8848", s.nacos.Addr, "*=80", fmt.Sprint("*=", s.servicePort)).Replace(sources)
	flags = []string{"--config", s.config.Path, "--sources", path, "--mcp-listen", fmt.Sprint("127.0.0.1:", s.mcpPort)}
	return flags, os.WriteFile(path, []byte(text), 0o600)
}

// weigh saves the routes with new weights.
func (s *registriesStage) weigh(consul, nacos int) (time.Time, error) {
	text, err := ours("registries", shop.Routes)
	if err != nil {
		return time.Time{}, err
	}
	return s.config.Save(shop.Routes, shop.Weighted(text, consul, nacos))
}

// consulID is the ID of an instance in Consul.
func consulID(i int) string { return fmt.Sprint("shop-", i+1) }

// registerInConsul registers the instances in Consul, as their own processes do.
func (s *registriesStage) registerInConsul(ctx context.Context) error {
	for i, b := range s.before.backends {
		err := s.consul.Put(ctx, "/v1/agent/service/register", map[string]any{
			"ID": consulID(i), "Name": "shop", "Address": "127.0.0.1", "Port": b.Port,
			"Check": map[string]string{"TTL": "1h", "Status": "passing"},
		}, nil)
		if err != nil {
			return err
		}
	}
	return nil
}

// registerInNacos registers the instances in Nacos.
func (s *registriesStage) registerInNacos(ctx context.Context) error {
	for _, b := range s.after.backends {
		if err := s.nacos.Call(ctx, http.MethodPost, nacosInstances, nacosInstance(b), nil); err != nil {
			return err
		}
	}
	return nil
}

const nacosInstances = "/nacos/v1/ns/instance"

// nacosInstance names an instance in Nacos. It is not ephemeral, so no client has to beat for it.
func nacosInstance(b *rig.Backend) url.Values {
	return url.Values{"serviceName": {"shop"}, "ip": {"127.0.0.1"}, "port": {strconv.Itoa(b.Port)}, "ephemeral": {"false"}}
}

// end stops the running parts, the last started first.
func (s *registriesStage) end() {
	for _, l := range s.loads {
		l.Stop()
	}
	s.fed.end()
	if s.envoy != nil {
		s.envoy.Kill()
	}
	if s.mesh != nil {
		s.mesh.End()
	}
	if s.nacos != nil {
		s.nacos.Kill()
	}
	if s.consul != nil {
		s.consul.Kill()
	}
	for _, h := range []half{s.before, s.after} {
		for _, b := range h.backends {
			b.Stop()
		}
	}
}

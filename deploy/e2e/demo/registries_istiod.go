package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"meshlog.dev/deploy/e2e/rig"
	"meshlog.dev/deploy/testkit/istiotest"
	"meshlog.dev/deploy/testkit/kubetest"
)

// fed is a real istiod whose only source is meshlog, and the Envoy that it configures.
type fed struct {
	kube   *kubetest.Server
	istiod *istiotest.Server
	envoy  *rig.Envoy
}

// client is how the second Envoy names itself: a sidecar of a client, which calls
// 127.0.0.1 at the port of a service.
const client = "node: {id: sidecar~127.0.0.1~client.demo~demo.svc.cluster.local, cluster: client, metadata: {NAMESPACE: demo, CLUSTER_ID: Kubernetes, INTERCEPTION_MODE: NONE}}"

// feed has an istiod that reads only meshlog configure a second Envoy.
func (s *registriesStage) feed(ctx context.Context) (err error) {
	s.chapter("A real istiod that reads nothing but meshlog configures a second Envoy")
	dir := filepath.Join(s.dir, "istiod")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return err
	}
	if s.fed.kube, err = kubetest.StartIn(ctx, dir); err != nil {
		return err
	}
	access, err := kubetest.Kubeconfig(s.fed.kube.Config())
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(dir, "kubeconfig")
	if err := os.WriteFile(kubeconfig, access, 0o600); err != nil {
		return err
	}
	source := fmt.Sprintf("configSources: [{address: xds://127.0.0.1:%d}]", s.mcpPort)
	if s.fed.istiod, err = istiotest.StartIn(ctx, dir, istiotest.Options{Kubeconfig: kubeconfig, MeshConfig: source + "\n"}); err != nil {
		return err
	}
	if s.fed.envoy, err = rig.StartEnvoy(ctx, rig.EnvoyConfig{Node: "envoy-2", Overlay: client, XDS: []int{s.fed.istiod.XDS}, Dir: s.dir}); err != nil {
		return err
	}
	s.where("istiod", "a real istiod", fmt.Sprintf("pid %d, xDS 127.0.0.1:%d", s.fed.istiod.PID(), s.fed.istiod.XDS))
	s.where("apiserver", "an empty Kubernetes, which it cannot do without", fmt.Sprintf("pid %d", s.fed.kube.API.PID()))
	s.where("envoy-2", "a real Envoy, configured by istiod", fmt.Sprintf("pid %d, http://127.0.0.1:%d/, admin http://%s", s.fed.envoy.PID(), s.servicePort, s.fed.envoy.Admin()))
	s.note("")
	s.note("Its MeshConfig says %s", source)
	s.note("")
	if err := s.second(ctx, "an answer", func(t rig.Tally) error { return t.Err() }); err != nil {
		return err
	}
	if err := s.request(ctx, s.servicePort); err != nil {
		return err
	}
	measured, err := s.measure(ctx, s.loads[1], 50, 50)
	if err != nil {
		return err
	}
	s.holds("envoy-2 follows the weights 50/50 of routes.yaml: %s requests", measured)
	if err := s.unrejected(ctx, s.fed.envoy); err != nil {
		return err
	}
	return s.await(ctx, "istiod.istio-system", "proxy-status")
}

// follows waits until the second Envoy sends all requests to Nacos, as the first one does.
func (s *registriesStage) follows(ctx context.Context) error {
	if err := s.second(ctx, "all answers from nacos", func(t rig.Tally) error {
		if got := t.Share(s.after.registry); got < 100 {
			return fmt.Errorf("nacos answers %.0f %%", got)
		}
		return nil
	}); err != nil {
		return err
	}
	measured, err := s.measure(ctx, s.loads[1], 0, 100)
	if err != nil {
		return err
	}
	s.holds("envoy-2, configured by istiod, follows: %s requests", measured)
	return s.unrejected(ctx, s.fed.envoy)
}

// second sends requests through the second Envoy until their answers are as wanted.
func (s *registriesStage) second(ctx context.Context, what string, is func(rig.Tally) error) error {
	call, end := rig.To(fmt.Sprintf("http://127.0.0.1:%d/", s.servicePort), consulHost, 1)
	defer end()
	return s.fed.envoy.UntilAlive(ctx, what+" through envoy-2", func(ctx context.Context) error {
		return is(rig.SendCalls(ctx, 10*conns, call))
	})
}

// end stops the running parts.
func (f *fed) end() {
	if f.envoy != nil {
		f.envoy.Kill()
	}
	if f.istiod != nil {
		f.istiod.Kill()
	}
	if f.kube != nil {
		f.kube.Kill()
	}
}

package main

import (
	"context"
	"errors"
	"fmt"

	"meshlog.dev/deploy/e2e/cluster"
	"meshlog.dev/deploy/e2e/rig"
)

// clusterStage holds the running parts of the demo with Kubernetes.
type clusterStage struct {
	scene

	cluster *cluster.Cluster
	shop    *cluster.Shop
	v1      *cluster.Pod
	v2      []*cluster.Pod
	// seen is the newest version that Envoy is known to have.
	seen rig.Version
}

func newClusterStage(s scene) play { return &clusterStage{scene: s} }

func (s *clusterStage) steps() []step {
	return []step{s.set, s.apply, s.canary, s.scale, s.history, s.away, s.back}
}

// set starts everything; the cluster is empty.
func (s *clusterStage) set(ctx context.Context) (err error) {
	if s.cluster, err = cluster.Start(ctx, s.dir, "east"); err != nil {
		return err
	}
	// All of Istio's and the Gateway API's kinds, as in a cluster that has both.
	if err := errors.Join(s.cluster.InstallIstioCRDs(ctx), s.cluster.InstallGatewayCRDs(ctx)); err != nil {
		return err
	}
	if s.shop, err = cluster.NewShop(s.dir, "edge"); err != nil {
		return err
	}
	if s.mesh, err = rig.UpWith(ctx, s.dir, nil, "--kubeconfig", s.cluster.Kubeconfig, "--cluster", s.cluster.Name); err != nil {
		return err
	}
	up := s.up()
	s.envoy, err = rig.StartEnvoy(ctx, rig.EnvoyConfig{Node: "envoy-1", Cluster: "demo", XDS: []int{up.XDS}, Dir: s.dir})
	if err != nil {
		return err
	}
	if err := s.envoy.Ready(ctx); err != nil {
		return err
	}
	s.chapter("What runs")
	s.where("etcd", "where Kubernetes keeps its objects", fmt.Sprintf("pid %d", s.cluster.Etcd.PID()))
	s.where("apiserver", "a real kube-apiserver, with the kinds of Istio", fmt.Sprintf("pid %d, %s", s.cluster.API.PID(), s.cluster.Config().Host))
	s.where("meshlog up", "watches it: --kubeconfig, --cluster east", fmt.Sprintf("pid %d, xDS 127.0.0.1:%d, admin http://127.0.0.1:%d", up.PID(), up.XDS, up.Admin))
	s.where("envoy-1", "a real Envoy, configured by it; it has nothing yet", fmt.Sprintf("pid %d, admin http://%s", s.envoy.PID(), s.envoy.Admin()))
	s.where("kubeconfig", "the administrator's access to the cluster", s.cluster.Kubeconfig)
	s.where("manifests", "what is applied, a copy of deploy/e2e/demo/kubernetes", s.shop.Path)
	s.where("data", "the log, the versions, the frontend's replica", s.mesh.Data)
	s.note("")
	s.note("The demo runs on a network of its own with its own 127.0.0.1. To open a shell there:")
	s.note("%s", rig.Enter())
	s.note("The demo does not run kubectl: it shows the command, and sends the API server the same request")
	s.note("(server-side apply). No controllers run: the demo writes the pods and EndpointSlices itself.")
	return nil
}

// edge is where Envoy accepts requests.
func (s *clusterStage) edge() cluster.Edge { return s.shop.Edges[0] }

// end stops the running parts, the last started first.
func (s *clusterStage) end() {
	if s.envoy != nil {
		s.envoy.Kill()
	}
	if s.mesh != nil {
		s.mesh.End()
	}
	if s.cluster != nil {
		s.cluster.End()
	}
}

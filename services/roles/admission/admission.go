// Package admission runs the validating webhook in a process: its port, its certificate,
// and the leader that keeps its configuration in the API server. It needs no bus.
package admission

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"meshlog.dev/services/admission"
	"meshlog.dev/services/internal/certificates"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/watcher/kube/apiserver"
)

// Times of the Lease: another replica leads after the first one.
const (
	leaseTime  = 15 * time.Second
	leaseRenew = 10 * time.Second
	leaseRetry = 2 * time.Second
)

// Run serves until ctx is done.
func (s *Settings) Run(ctx context.Context, p *process.Process) error {
	log := p.Log.With(process.Component, "admission")
	c, err := s.Cluster.REST()
	if err != nil {
		return err
	}
	serving, err := newServing(s.pair)
	if err != nil {
		return err
	}
	if _, err := readRoots(s.Roots); err != nil {
		return err
	}
	certs, err := certificates.Load(certificates.Files{Issued: serving.certificate})
	if err != nil {
		return err
	}
	port, err := net.Listen("tcp", s.Listen)
	if err != nil {
		return fmt.Errorf("%w; give another address with --listen", err)
	}
	defer port.Close()
	metrics := admission.NewMetrics()
	keeper, err := newKeeper(s, c, serving, metrics, log)
	if err != nil {
		return err
	}
	p.Admin.Register(append(metrics.Collectors(), certs.Metrics("meshlog_admission")...)...)
	p.Admin.Ready("webhook", certs.Trouble)
	p.Admin.Warn("webhook certificate", serving.problem)
	p.Admin.Warn("webhook configuration", func() error { return keeper.state.Load().warning() })
	p.Admin.Report("admission", func() any {
		return struct {
			*state
			Certificate certificates.Report `json:"certificate"`
		}{keeper.state.Load(), certs.Report()}
	})
	log.Info("answering the API server", "port", port.Addr().String(), "host", s.host())
	server := admission.NewServer(log, metrics)
	quiet := apiserver.Quietly(ctx, log)
	return process.RunStages(ctx,
		process.Stage{
			func(ctx context.Context) error { return certs.Run(ctx, log) },
			keeper.run,
			func(ctx context.Context) error { return s.lead(ctx, quiet, c, keeper, log) },
		},
		// Ends last: the API server may still send requests.
		process.Stage{func(ctx context.Context) error { return server.Serve(ctx, tls.NewListener(port, tlsConfig(certs))) }},
	)
}

// tlsConfig returns the configuration of an HTTP/1.1 server: certs offers HTTP/2 alone, as
// gRPC needs it.
func tlsConfig(certs *certificates.Certificates) *tls.Config {
	c := certs.Config()
	newest := c.GetConfigForClient
	c.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		now, err := newest(h)
		if err != nil {
			return nil, err
		}
		now = now.Clone()
		now.NextProtos = []string{"http/1.1"}
		return now, nil
	}
	return c
}

// lead has this replica lead whenever no other one does.
func (s *Settings) lead(ctx, quiet context.Context, c *rest.Config, k *keeper, log *slog.Logger) error {
	c = rest.CopyConfig(c)
	c.Timeout = leaseRenew / 2
	leases, err := coordinationclient.NewForConfig(c)
	if err != nil {
		return err
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Name: s.name(), Namespace: s.Namespace}, Client: leases,
		LockConfig: resourcelock.ResourceLockConfig{Identity: s.ID},
	}
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: leaseTime, RenewDeadline: leaseRenew, RetryPeriod: leaseRetry, ReleaseOnCancel: true, Name: s.name(),
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { log.Info("this replica leads"); k.leads.Store(true) },
			OnStoppedLeading: func() { k.leads.Store(false) },
		},
	})
	if err != nil {
		return err
	}
	quiet, stop := context.WithCancel(quiet) // has the logger of client-go
	defer stop()
	defer context.AfterFunc(ctx, stop)()
	for ctx.Err() == nil {
		elector.Run(quiet)
	}
	return ctx.Err()
}

// warning returns what an operator should know.
func (s *state) warning() error {
	var errs []error
	if s.err != nil {
		errs = append(errs, s.err)
	}
	if s.Paused != "" {
		errs = append(errs, fmt.Errorf("invalid objects are stored if the webhook does not answer: %s; `meshlog admission resume` ends the pause", s.Paused))
	}
	if s.Leader && s.unproven != nil {
		errs = append(errs, fmt.Errorf("the API server has not refused an invalid object by this webhook yet, so it takes objects that the webhook cannot check: %w", s.unproven))
	}
	return errors.Join(errs...)
}

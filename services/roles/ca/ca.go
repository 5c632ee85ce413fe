// Package ca runs the certificate authority of the mesh in a process: with its key, its
// port, the authenticators that the settings name, and the watcher that publishes its
// roots. cmd/ca and `meshlog up --ca` run it.
package ca

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/ca"
	"meshlog.dev/services/ca/authn"
	"meshlog.dev/services/ca/signer"
	"meshlog.dev/services/internal/audit"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/cakv"
	"meshlog.dev/services/internal/process"
)

// Shard is the shard of the authority's roots on the log: the authority is their watcher.
var Shard = ident.Shard{Source: bus.CASource, Instance: "default"}

// warnBefore is how long before the end of the CA's certificate or of a root /readyz
// warns (CA-10).
const warnBefore = 90 * 24 * time.Hour

// Options connect the authority with its process.
type Options struct {
	Domain string
	// ID names this replica, stable over restarts.
	ID      string
	Connect func(context.Context) (*bus.Conn, error)
	Process *process.Process
	// Prepared is the authority, if Prepare was called.
	Prepared *Prepared
}

// Prepared is an authority that can sign, and that does not run yet.
type Prepared struct {
	signer signing
	roots  *roots
	log    *slog.Logger
	xds    *serving // nil: none
}

// Prepare reads the files of an authority that signs, or makes them.
func (s *Settings) Prepare(p *process.Process) (*Prepared, error) {
	log := p.Log.With(process.Component, "ca")
	signer, roots, err := s.open(time.Now(), log)
	return &Prepared{signer: signer, roots: roots, log: log}, err
}

// ServeXDS issues the certificate of the xDS port of this process, with these names, and
// returns what returns the newest one (CA-11). Run renews it.
func (p *Prepared) ServeXDS(names []string) (certificate func() *tls.Certificate, err error) {
	if p.xds, err = newServing("the xDS port", p.signer.authority, names, p.log); err != nil {
		return nil, err
	}
	return p.xds.certificate, nil
}

// authority is a running authority.
type authority struct {
	*Settings
	Options
	log      *slog.Logger
	signer   signing
	roots    *roots
	gate     *gate
	rotation *rotation
	serving  *serving
	records  *audit.Writer
}

// Run serves until ctx is done.
func (s *Settings) Run(ctx context.Context, o Options) error {
	log := o.Process.Log.With(process.Component, "ca")
	o.Process.Admin.Ready("ca", func() error { return bus.ErrNotConnected })
	if s.Signer == none {
		return (&authority{Settings: s, Options: o, log: log}).publish(ctx)
	}
	port, err := net.Listen("tcp", s.Listen)
	if err != nil {
		return fmt.Errorf("%w; give another address with --%s", err, s.flag("listen"))
	}
	defer port.Close()
	if o.Prepared == nil {
		if o.Prepared, err = s.Prepare(o.Process); err != nil {
			return err
		}
	}
	a := &authority{Settings: s, Options: o, log: log, signer: o.Prepared.signer, roots: o.Prepared.roots}
	if a.serving, err = newServing("the CA's own port", a.signer.authority, s.DNSNames, log); err != nil {
		return err
	}
	a.gate = newGate(time.Now())
	a.rotation = &rotation{a.signer, a.roots, a.gate}
	nc, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	return a.run(ctx, nc, port)
}

// run serves with a connection to the bus.
func (a *authority) run(ctx context.Context, nc *bus.Conn, port net.Listener) error {
	records, err := audit.NewWriter(nc, audit.WriterOptions{Domain: a.Domain, Role: bus.Watcher(Shard), Process: a.ID, Log: a.log})
	if err != nil {
		return err
	}
	a.records = records
	fleet := bus.NewFleet(nc, a.Domain, a.log)
	authenticators, err := a.authenticators(nc, fleet)
	if err != nil {
		return err
	}
	metrics := ca.NewMetrics()
	server, err := ca.New(ca.Config{
		Listeners: []net.Listener{port}, TLS: a.serving.config(), TrustDomain: a.TrustDomain,
		Authority: a.signer.authority, Authenticators: authenticators, Metrics: metrics, Logger: a.Process.Log, MaxTTL: a.MaxTTL,
		Audit: recorder{records}.record,
	})
	if err != nil {
		return err
	}
	admin := a.Process.Admin
	admin.Register(append(append(metrics.Collectors(), bus.ConnMetrics("ca", nc)...), records, a.serving.metric(), a.roots.metric())...)
	admin.Ready("ca", func() error {
		return cmp.Or(bus.Ready(nc), a.signer.authority().Check(signer.DefaultTTL, time.Now()), a.serving.ready(time.Now()))
	})
	admin.Warn("ca files", a.signer.trouble)
	admin.Warn("ca end", func() error { return ends(a.signer.authority(), time.Now()) })
	admin.Warn("ca serving certificate", a.serving.problem)
	renewXDS := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	if xds := a.Prepared.xds; xds != nil {
		admin.Warn("xds serving certificate", xds.problem)
		renewXDS = xds.run
	}
	admin.Report("ca", func() any { return a.report() })
	a.log.Info("serving certificates", "port", port.Addr().String(), "trust_domain", a.TrustDomain, "ends", a.signer.authority().Ends())
	return process.RunStages(ctx,
		process.Stage{server.Run},
		process.Stage{
			records.Run,
			a.serving.run,
			renewXDS,
			func(ctx context.Context) error { return a.signer.run(ctx, a.log) },
			a.rotation.run,
			// Receives the reports of frontends: which roots proxies have applied.
			func(ctx context.Context) error {
				return fleet.FrontendSummaries(ctx, func(name string, r *reportv1.FrontendReport, last bool) { a.gate.hear(name, r, last, time.Now()) })
			},
			// Answers operators.
			func(ctx context.Context) error { return fleet.ServeAuthority(ctx, a.ID, Shard, a.act) },
			a.watch,
		},
	)
}

// authenticators returns what the settings name. Kubernetes takes every JSON web token, so
// it follows the issuers.
func (a *authority) authenticators(nc *bus.Conn, fleet *bus.Fleet) (authn.Set, error) {
	var set authn.Set
	if a.JoinTokens {
		tokens, err := cakv.New(nc, a.Domain)
		if err != nil {
			return nil, err
		}
		set = append(set, authn.NewJoin(a.TrustDomain, tokens))
	}
	issuers, err := a.issuers()
	for _, o := range issuers {
		set = append(set, o)
	}
	if err == nil && a.Kubernetes {
		var reviews authn.TokenReviews
		if reviews, err = a.reviews(); err == nil {
			set = append(set, authn.NewKubernetes(a.TrustDomain, reviews, a.knows(fleet)))
		}
	}
	if a.CertificateRenewal {
		set = append(set, authn.NewCertificate(a.TrustDomain, a.signer.authority))
	}
	return set, err
}

// knows returns how to ask the leader whether the mesh has a pod (CA-5); nil: each pod of
// the cluster gets a certificate.
func (a *authority) knows(fleet *bus.Fleet) authn.Knows {
	if a.UnknownPods {
		return nil
	}
	return func(ctx context.Context, p authn.Pod) (bool, error) {
		return fleet.KnowsPod(ctx, &reportv1.PodRequest{Namespace: p.Namespace, Name: p.Name, ServiceAccount: p.ServiceAccount})
	}
}

// ends returns a warning if the authority's certificate, or a root, ends soon (CA-10).
func ends(a *signer.Authority, now time.Time) error {
	var errs []error
	soon := func(what string, end time.Time) {
		if end.Sub(now) < warnBefore {
			errs = append(errs, fmt.Errorf("%s ends at %s: replace it before", what, end.UTC().Format(time.RFC3339)))
		}
	}
	soon("the chain of the CA's certificate", a.Ends())
	for _, r := range a.Roots() {
		soon("the root "+named(r), r.NotAfter)
	}
	return errors.Join(errs...)
}

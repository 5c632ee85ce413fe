// Package frontend runs the frontend role of a process: it opens the local
// replica, serves, and, once the bus is connected, follows the version chain
// and reports.
package frontend

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"

	"meshlog.dev/services/frontend"
	"meshlog.dev/services/frontend/keys"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/internal/tracing"
	"meshlog.dev/store"
	"meshlog.dev/store/bolt"
)

// Options are what the frontend role needs.
type Options struct {
	Domain string
	// ID names the frontend and is stable over restarts.
	ID string
	// Data is the data directory; process.VersionsFile names the
	// frontend's file in it.
	Data string
	// Ports take xDS; Run closes them.
	Ports *Ports
	// Connect blocks until the bus is connected; the frontend serves meanwhile.
	// nil: no bus, the frontend serves what its file has.
	Connect func(context.Context) (*bus.Conn, error)
	// Keys say how the frontend gets private keys; without them it has none but those
	// in sealed files.
	Keys Keys
	// Limits are frontend.DefaultLimits if they are zero.
	Limits  frontend.Limits
	Process *process.Process
}

// keptVersions is how many versions stay in the file: those that a client which
// reconnects may have.
const keptVersions = 256

// Run serves until ctx is done and the streams have ended.
func Run(ctx context.Context, o Options) error {
	log := o.Process.Log.With(process.Component, "frontend")

	// The frontend serves from its own file, even if everything else is dead.
	file := process.VersionsFile(o.Data, "frontend")
	if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
		return process.DataError(fmt.Errorf("data directory: %w", err))
	}
	versions, damaged, err := bolt.Open(file, store.Retention{Versions: keptVersions})
	if err != nil {
		return process.DataError(err)
	}
	defer versions.Close()
	if damaged != nil {
		log.Warn("the frontend starts from the bus", "file", file, "reason", damaged)
	}

	metrics := frontend.NewMetrics()
	o.Process.Admin.Register(metrics, process.FileMetric("frontend", file))
	link, away := &busLink{ready: make(chan struct{}), foreign: newForeign(log)}, &outage{look: func() error { return nil }}
	config := frontend.Config{
		ID: o.ID, Build: o.Process.Build, Store: versions, Listeners: o.Ports.Plain, TLSListeners: o.Ports.TLS,
		SinkListeners: o.Ports.Sinks,
		Logger:        log, Metrics: metrics, Tracer: tracing.New(o.Process.Traces, "frontend"),
		OnChange: link.changed, Limits: o.Limits,
	}
	if config.Limits == (frontend.Limits{}) {
		config.Limits = frontend.DefaultLimits()
	}
	var server *frontend.Server // set before the store runs
	store := o.keyStore(log, link, func(k keys.Key) { server.KeyChanged(k) })
	config.Keys, config.Audit = store, link.audit.write
	beside := process.Stage{store.Run}
	if certs := o.Ports.Certificates; certs != nil {
		config.TLS, config.MeshClients = certs.Config(), o.Ports.MeshClients
		if len(o.Ports.Plain) > 0 {
			log.Warn("xDS is served without TLS, too: a proxy on that port needs no certificate and can claim to be any other one; --listen \"\" closes it",
				"xds", o.Ports.Plain[0].Addr().String())
		}
		beside = append(beside, o.Ports.certificatesStage(&o, log))
	}
	if certs := o.Ports.SinkCertificates; certs != nil {
		config.SinkTLS = certs.Config()
		o.Process.Admin.Warn("certificates of MCP-over-xDS", certs.Trouble)
		beside = append(beside, func(ctx context.Context) error { return certs.Run(ctx, log) })
	} else if len(o.Ports.Sinks) > 0 {
		log.Warn("MCP-over-xDS is served without TLS: a client can claim to be in any namespace; give --tls-cert and --tls-key", "mcp", o.Ports.Sinks[0].Addr().String())
	}
	if o.Connect != nil {
		config.Chain, config.Head, config.Connected, config.Away = link, link.Head, link.connected, away.get
	}
	server, err = frontend.New(config)
	if err != nil {
		return err
	}
	if o.Connect != nil {
		away.look = func() error { return cmp.Or(link.state(), server.Following()) }
		report(o.Process.Admin, away, link.foreign)
		beside = append(beside,
			func(ctx context.Context) error { return o.connectBus(ctx, log, link, server) },
			away.watch)
	}
	if issued := o.Ports.issued; issued != nil {
		beside = append(beside, issued.keeper.Run, func(ctx context.Context) error { return issued.follow(ctx, server.MeshRoots) })
	}
	o.Process.Admin.Ready("frontend", server.Ready)
	o.Process.Admin.Report("frontend", func() any { return server.Report() })
	addPages(o.Process.Admin, server)
	reportKeys(o.Process.Admin, store)
	return process.RunStages(ctx, process.Stage{server.Run}, beside)
}

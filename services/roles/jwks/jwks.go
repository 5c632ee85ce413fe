// Package jwks runs the watcher of token issuers' keys in a process (POL-12): builders
// tell it over the bus which issuers the configuration names.
package jwks

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/spf13/pflag"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
	"meshlog.dev/services/roles/watcher"
	"meshlog.dev/services/watcher/jwks"
)

// Shard is the shard of the fetched keys.
var Shard = ident.Shard{Source: bus.JWKSSource, Instance: "default"}

// Settings of the fetches. The flags' texts describe them.
type Settings struct {
	CAFile   string
	Networks []string
	Every    time.Duration
}

// DefaultSettings returns the defaults.
func DefaultSettings() Settings { return Settings{Every: jwks.DefaultEvery} }

// Flags binds the settings.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&s.CAFile, "jwks-ca", s.CAFile, "PEM `file` with CAs that certificates of token issuers may have beside those of the system; read for each fetch. "+
		"Set it if an issuer's certificate is of a CA of your own")
	fs.StringSliceVar(&s.Networks, "jwks-networks", s.Networks, "`networks` of token issuers that are not public, as 10.1.0.0/16, separated by commas. Without them, a jwksUri or an issuer cannot make the process reach private, loopback and link-local addresses; a proxy of the environment (HTTPS_PROXY) is reached anyway. "+
		"Set it, as narrow as possible, if an issuer is inside your network")
	fs.DurationVar(&s.Every, "jwks-every", s.Every, "`time` between two fetches of the keys of a token issuer, at least 10s, give or take a tenth. "+
		"Lower it if an issuer uses a new key soon after it has published it")
}

// Check returns an error for each setting that makes no sense.
func (s *Settings) Check() error {
	var every error
	if s.Every < 10*time.Second {
		every = process.Invalid("jwks-every", "want 10s at least")
	}
	_, networks := s.networks()
	return errors.Join(every, networks)
}

func (s *Settings) networks() (all []netip.Prefix, err error) {
	var errs []error
	for _, text := range s.Networks {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			errs = append(errs, process.Invalid("jwks-networks", "%q is no network: write it as 10.1.0.0/16", text))
			continue
		}
		all = append(all, p.Masked())
	}
	return all, errors.Join(errs...)
}

// fetcher returns what fetches with the settings.
func (s *Settings) fetcher() (*jwks.Fetcher, error) {
	networks, err := s.networks()
	return &jwks.Fetcher{CAFile: s.CAFile, Networks: networks}, err
}

// Verify checks the file that the settings name.
func (s *Settings) Verify() error {
	f, err := s.fetcher()
	if err == nil {
		if err = f.Verify(); err != nil {
			err = process.Invalid("jwks-ca", "%w", err)
		}
	}
	return err
}

// Options connect the watcher with its process.
type Options struct {
	Domain string
	// Holder names this process, stable over restarts.
	Holder   string
	Connect  func(context.Context) (*bus.Conn, error)
	Process  *process.Process
	LogShare int
	// Lazy: the watcher starts when a policy names an issuer, or the log has keys that
	// no policy needs any more. Without policies about tokens the mesh has no such source.
	Lazy bool
}

// Run watches until ctx is done.
func (s *Settings) Run(ctx context.Context, o Options) error {
	fetcher, err := s.fetcher()
	if err != nil {
		return err
	}
	metrics := jwks.NewMetrics()
	w := jwks.New(fetcher, s.Every, metrics)
	nc, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	o.Process.Admin.Register(bus.ConnMetrics("token issuers", nc)...)
	fleet := bus.NewFleet(nc, o.Domain, o.Process.Log.With(process.Component, "watcher"))
	needed := make(chan struct{})
	if !o.Lazy {
		close(needed)
	}
	return process.RunStages(ctx,
		process.Stage{func(ctx context.Context) error {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-needed:
			}
			o.Process.Admin.Register(metrics) // a mesh without issuers has no such metrics
			return watcher.Run(ctx, watcher.Options{
				Domain: o.Domain, Shard: Shard, Holder: o.Holder, Watcher: w, Connect: o.Connect, Process: o.Process, LogShare: o.LogShare, Optional: o.Lazy,
			})
		}},
		// Hears which issuers the configuration names.
		process.Stage{func(ctx context.Context) error {
			waits := o.Lazy
			return fleet.Issuers(ctx, func(i *reportv1.Issuers) {
				w.Offer(i)
				if waits && len(i.GetIssuers())+len(i.GetUnnamed()) > 0 {
					waits = false
					close(needed)
				}
			})
		}},
	)
}

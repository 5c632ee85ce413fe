package builder

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/store/natsfeed"
)

// opening is a builder before it has its streams. While it cannot make or open them,
// /readyz says why, and it reports, so that `meshlog status` does.
type opening struct {
	o   *Options
	nc  *bus.Conn
	log *slog.Logger

	mu    sync.Mutex
	err   error     // of the last try; nil: none has failed
	since time.Time // when the first try failed
}

// run tries until the streams are open, or ctx is done.
func (p *opening) run(ctx context.Context, open func(context.Context) (*natsfeed.Feed, error)) (*natsfeed.Feed, error) {
	p.o.Process.Admin.Ready("builder", p.ready)
	fleet := bus.NewFleet(p.nc, p.o.Domain, p.log)
	reporter := fleet.BuilderReporter(p.o.ID, bus.NewPeers(fleet), p.report)
	reports, stop := context.WithCancel(ctx)
	var reporting sync.WaitGroup
	defer reporting.Wait() // before the builder itself reports
	defer stop()
	var begin sync.Once
	return bus.Retry(ctx, p.log, func(ctx context.Context) (*natsfeed.Feed, error) {
		chain, err := open(ctx)
		if err == nil {
			return chain, nil
		}
		err = p.failed(err)
		begin.Do(func() {
			reporting.Go(func() {
				if err := reporter.Run(reports); reports.Err() == nil {
					p.log.Warn("cannot report", "error", err)
				}
			})
		})
		reporter.Changed()
		return nil, err
	})
}

// failed notes the error of a try, and returns it with what it was about.
func (p *opening) failed(err error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.since.IsZero() {
		p.since = time.Now()
	}
	p.err = fmt.Errorf("cannot make or open the streams of the bus: %w%s", err, advice(err))
	return p.err
}

// ready returns why the builder is not ready.
func (p *opening) ready() error {
	if err := bus.Ready(p.nc); err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		return errors.New("opens the streams of the bus")
	}
	return fmt.Errorf("since %s: %w", p.since.UTC().Format(time.RFC3339), p.err)
}

func (p *opening) report() *reportv1.BuilderReport {
	r := &reportv1.BuilderReport{Builder: p.o.ID, Build: p.o.Process.Build, Time: timestamppb.Now()}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err != nil {
		r.Error = p.err.Error()
	}
	return r
}

// advice says what to do about an error of JetStream; empty: the error says it.
func advice(err error) string {
	if bus.NoRoom(err) {
		return "; give the NATS servers more room (max_file_store), or the streams less (--log-mib, --audit-mib)"
	}
	return ""
}

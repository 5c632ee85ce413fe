// Package kubeevents runs a process that shows the problems of a mesh on the objects of
// Kubernetes that have them, as Events. It creates Events and does nothing else in the
// cluster; it reads nothing back. On the bus it asks for reports, as `meshlog diagnostics`
// does, and may do nothing else there either.
package kubeevents

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	snapshotv1 "meshlog.dev/proto/meshlog/snapshot/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/kubeaccess"
	"meshlog.dev/services/internal/process"
)

// Settings of the process. The flags' texts describe them.
type Settings struct {
	Cluster string
	Server  kubeaccess.Settings
	Every   time.Duration
}

// DefaultSettings returns the defaults.
func DefaultSettings() Settings { return Settings{Cluster: "default", Every: 30 * time.Second} }

// Flags binds the settings.
func (s *Settings) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&s.Cluster, "cluster", s.Cluster, "`name` of the cluster, as its watcher has it: Events are written on the objects of the source kubernetes/NAME")
	s.Server.Flags(fs)
	fs.DurationVar(&s.Every, "every", s.Every, "`time` between two looks at the problems of the mesh, at least 5s")
}

// Check returns all errors of the settings.
func (s *Settings) Check() error {
	var errs []error
	if s.Cluster == "" {
		errs = append(errs, process.Invalid("cluster", "is empty"))
	}
	if s.Every < 5*time.Second {
		errs = append(errs, process.Invalid("every", "want 5s at least"))
	}
	return errors.Join(append(errs, s.Server.Check())...)
}

// Verify checks the files that the settings name. It does not contact the API server.
func (s *Settings) Verify() error {
	_, err := s.Server.REST()
	return err
}

// Options connect the process with its mesh.
type Options struct {
	Domain  string
	Connect func(context.Context) (*bus.Conn, error)
	Process *process.Process
}

// Limits of what is written, whatever the mesh reports.
const (
	perSecond   = 5
	burst       = 20
	perLook     = 100
	requestTime = 5 * time.Second
)

// writer creates Events.
type writer struct {
	*Settings
	log     *slog.Logger
	metrics *metrics
	events  coreclient.EventsGetter
	known   map[string]bool // the names of the Events that exist, of the problems of now
	trouble atomic.Pointer[error]
}

// Run writes Events until ctx is done.
func (s *Settings) Run(ctx context.Context, o Options) error {
	log := o.Process.Log.With(process.Component, "events")
	o.Process.Admin.Ready("bus", func() error { return bus.ErrNotConnected })
	c, err := s.Server.REST()
	if err != nil {
		return err
	}
	c.QPS, c.Burst, c.Timeout = perSecond, burst, requestTime
	events, err := coreclient.NewForConfig(c)
	if err != nil {
		return err
	}
	w := &writer{Settings: s, log: log, metrics: newMetrics(), events: events}
	nc, err := o.Connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	fleet := bus.NewFleet(nc, o.Domain, log)
	o.Process.Admin.Register(append(bus.ConnMetrics("events", nc), w.metrics.events, w.metrics.problems)...)
	o.Process.Admin.Ready("bus", func() error { return bus.Ready(nc) })
	o.Process.Admin.Warn("events", func() error {
		if err := w.trouble.Load(); err != nil {
			return *err
		}
		return nil
	})
	log.Info("writing Events", "cluster", s.Cluster)
	tick := time.NewTicker(s.Every)
	defer tick.Stop()
	for {
		w.look(ctx, fleet)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		}
	}
}

// look writes the Events about the problems of now.
func (w *writer) look(ctx context.Context, fleet *bus.Fleet) {
	reports, err := fleet.Reports(ctx, bus.Diagnostics)
	if err == nil {
		err = w.write(ctx, problems(reports), time.Now())
	}
	if ctx.Err() != nil {
		return
	}
	if err == nil {
		w.trouble.Store(nil)
		return
	}
	w.log.Warn("some problems have no Event", "error", err)
	w.trouble.Store(&err)
}

// problems returns those that a builder, the leader if it answers, and the watchers report.
func problems(r *bus.Reports) (all []*snapshotv1.Diagnostic) {
	var builder *reportv1.BuilderReport
	for _, b := range r.Builders {
		if builder == nil || b.GetLeader() {
			builder = b
		}
	}
	all = builder.GetDiagnostics()
	for _, w := range r.Watchers {
		all = append(all, w.GetDiagnostics()...)
	}
	return all
}

// write creates the Events that are missing, 100 at most; the others follow with the next
// look.
func (w *writer) write(ctx context.Context, problems []*snapshotv1.Diagnostic, now time.Time) error {
	var errs []error
	known, created, of := map[string]bool{}, 0, 0
	for _, d := range problems {
		e, ok := eventOf(d, w.Cluster, now)
		if !ok {
			continue
		}
		of++
		id := e.Namespace + "/" + e.Name
		if w.known[id] || known[id] || created == perLook {
			known[id] = w.known[id] || known[id]
			continue
		}
		created++
		if err := w.create(ctx, e); err != nil {
			errs = append(errs, err)
			continue
		}
		known[id] = true
	}
	w.known = known
	w.metrics.problems.Set(float64(of))
	if len(errs) > 0 {
		return fmt.Errorf("%d Events were not written; the first: %w", len(errs), errs[0])
	}
	return nil
}

func (w *writer) create(ctx context.Context, e *corev1.Event) error {
	_, err := w.events.Events(e.Namespace).Create(ctx, e, metav1.CreateOptions{})
	switch {
	case apierrors.IsAlreadyExists(err): // of another process, or before a restart
		return nil
	case err != nil:
		w.metrics.events.WithLabelValues(outcomeFailed).Inc()
		return fmt.Errorf("%s %s/%s: %w", e.InvolvedObject.Kind, e.InvolvedObject.Namespace, e.InvolvedObject.Name, err)
	}
	w.metrics.events.WithLabelValues(outcomeCreated).Inc()
	return nil
}

// Outcomes of an Event.
const (
	outcomeCreated = "created"
	outcomeFailed  = "failed"
)

type metrics struct {
	events   *prometheus.CounterVec
	problems prometheus.Gauge
}

func newMetrics() *metrics {
	m := &metrics{
		events: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "meshlog_kube_events_total", Help: "Events about problems on objects of Kubernetes, by outcome: created, failed (the log says why).",
		}, []string{"outcome"}),
		problems: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "meshlog_kube_events_problems", Help: "Errors and warnings that the mesh reports on objects of this cluster.",
		}),
	}
	m.events.WithLabelValues(outcomeCreated)
	m.events.WithLabelValues(outcomeFailed)
	return m
}

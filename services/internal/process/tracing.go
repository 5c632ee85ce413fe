package process

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// tracing are the settings of traces: where they go, and how many.
type tracing struct {
	// endpoint takes OTLP over HTTP. Where it is empty, OpenTelemetry's own
	// variables say; without those nothing is traced.
	endpoint string
	// sample is which share of changes is traced whose source does not say.
	sample float64
}

func (t *tracing) flags(fs *pflag.FlagSet) {
	fs.StringVar(&t.endpoint, "trace-endpoint", "", "`URL` that takes traces, as OTLP over HTTP: http://collector:4318. "+
		"Give it to see what a change does from its source to the proxies; without it OpenTelemetry's variables count (OTEL_EXPORTER_OTLP_ENDPOINT), and without those nothing is traced")
	fs.Float64Var(&t.sample, "trace-sample", 1, "`share` of changes that are traced, from 0 to 1, where their source does not say. "+
		"Lower it where changes are many; watchers decide, builders and frontends follow")
}

func (t *tracing) check() error {
	var errs []error
	if u, err := url.Parse(t.endpoint); t.endpoint != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https") {
		errs = append(errs, Invalid("trace-endpoint", "want a URL such as http://collector:4318"))
	}
	if t.sample < 0 || t.sample > 1 {
		errs = append(errs, Invalid("trace-sample", "want a share from 0 to 1"))
	}
	return errors.Join(errs...)
}

// wanted says whether anything is to be traced.
func (t *tracing) wanted() bool {
	return os.Getenv("OTEL_SDK_DISABLED") != "true" &&
		(t.endpoint != "" || os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "")
}

// traceFlush is how long the last spans may take to be taken when the process
// ends.
const traceFlush = 2 * time.Second

// start returns what makes tracers, nil where nothing is traced, and what ends
// it. Spans are gathered and sent by a goroutine of OpenTelemetry's; where the
// endpoint does not take them in time they are dropped, and nobody waits.
func (t *tracing) start(ctx context.Context, service, build string, log *slog.Logger) (oteltrace.TracerProvider, func(), error) {
	if !t.wanted() {
		return nil, func() {}, nil
	}
	var o []otlptracehttp.Option
	if t.endpoint != "" {
		u, err := url.JoinPath(t.endpoint, "v1", "traces")
		if err != nil {
			return nil, nil, fmt.Errorf("--trace-endpoint: %w", err)
		}
		o = append(o, otlptracehttp.WithEndpointURL(u))
	}
	exporter, err := otlptracehttp.New(ctx, o...)
	if err != nil {
		return nil, nil, fmt.Errorf("traces: %w", err)
	}
	// What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say comes last, and counts.
	of, err := resource.New(ctx, resource.WithHost(), resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", service), attribute.String("service.version", build)),
		resource.WithFromEnv())
	if err != nil {
		log.Warn("traces: not all is known of this process", "error", err)
	}
	// OpenTelemetry has no other place for what goes wrong in its own goroutine.
	otel.SetErrorHandler(&traceErrors{log: log})
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter, sdktrace.WithBatchTimeout(time.Second)), sdktrace.WithResource(of),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(t.sample))),
	)
	return provider, func() {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), traceFlush)
		defer cancel()
		if err := provider.Shutdown(grace); err != nil {
			log.Warn("the last traces were not taken", "error", err)
		}
	}, nil
}

// traceErrors logs why traces are not taken, once for each reason.
type traceErrors struct {
	log *slog.Logger

	mu   sync.Mutex
	said string
}

// Handle implements otel.ErrorHandler.
func (e *traceErrors) Handle(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err.Error() != e.said {
		e.said = err.Error()
		e.log.Warn("traces are not taken; see to the endpoint", "error", err)
	}
}

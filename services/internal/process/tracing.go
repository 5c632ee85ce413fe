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

// tracing holds the settings of traces, which the flags' texts describe.
type tracing struct {
	endpoint string
	sample   float64
}

func (t *tracing) flags(fs *pflag.FlagSet) {
	fs.StringVar(&t.endpoint, "trace-endpoint", "", "`URL` of an OTLP/HTTP collector for traces: http://collector:4318. "+
		"Set it to follow a change from its source to the proxies. If it is empty, OpenTelemetry's variables apply (OTEL_EXPORTER_OTLP_ENDPOINT); without those, nothing is traced")
	fs.Float64Var(&t.sample, "trace-sample", 1, "`share` of changes to trace, from 0 to 1, if their source does not decide. "+
		"Lower it if there are many changes. Watchers decide; builders and frontends follow them")
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

// wanted reports whether traces are on.
func (t *tracing) wanted() bool {
	return os.Getenv("OTEL_SDK_DISABLED") != "true" &&
		(t.endpoint != "" || os.Getenv("OTEL_EXPORTER_OTLP_ENDPOINT") != "" || os.Getenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") != "")
}

// traceFlush limits the time to send the last spans when the process ends.
const traceFlush = 2 * time.Second

// start returns the provider of tracers, which is nil if traces are off, and a
// function that ends it. A goroutine of OpenTelemetry sends the spans in batches
// and drops them if the endpoint is too slow; the process never waits for it.
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
	// OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES come last, so they override.
	of, err := resource.New(ctx, resource.WithHost(), resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", service), attribute.String("service.version", build)),
		resource.WithFromEnv())
	if err != nil {
		log.Warn("traces lack some attributes of this process", "error", err)
	}
	// Errors of OpenTelemetry's goroutine are reported only to a global handler.
	otel.SetErrorHandler(&traceErrors{log: log})
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithBatcher(exporter, sdktrace.WithBatchTimeout(time.Second)), sdktrace.WithResource(of),
		sdktrace.WithSampler(sdktrace.ParentBased(sdktrace.TraceIDRatioBased(t.sample))),
	)
	return provider, func() {
		grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), traceFlush)
		defer cancel()
		if err := provider.Shutdown(grace); err != nil {
			log.Warn("the last traces could not be sent", "error", err)
		}
	}, nil
}

// traceErrors logs why traces cannot be sent, once for each reason in a row.
type traceErrors struct {
	log *slog.Logger

	mu     sync.Mutex
	logged string
}

// Handle implements otel.ErrorHandler.
func (e *traceErrors) Handle(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if err.Error() != e.logged {
		e.logged = err.Error()
		e.log.Warn("cannot send traces; check the endpoint", "error", err)
	}
}

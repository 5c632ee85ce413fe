package rig

import (
	"compress/gzip"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	collectorv1 "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonv1 "go.opentelemetry.io/proto/otlp/common/v1"
	tracev1 "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"
)

// Span is a span that a process has exported.
type Span struct {
	Service, Role, Name     string   // Service is the process, Role the part of it, Name the stage
	TraceID, SpanID, Parent string   // hex; a root has an empty Parent
	Links                   []string // ids of other traces
	Attributes              map[string]string
	Start, End              time.Time
	Events                  []SpanEvent
	Failed                  bool
}

// SpanEvent is an event of a span.
type SpanEvent struct {
	Name       string
	Time       time.Time
	Attributes map[string]string
}

// Traces receives traces as OpenTelemetry's collector does: OTLP over HTTP.
type Traces struct {
	server *http.Server
	addr   string
	served chan struct{} // closed once the server has ended

	mu    sync.Mutex
	spans []Span
	wrong error // the first request that was not OTLP
}

// StartTraces listens on loopback.
func StartTraces() (*Traces, error) {
	l, err := net.Listen("tcp", loopback(0))
	if err != nil {
		return nil, err
	}
	t := &Traces{addr: l.Addr().String(), served: make(chan struct{})}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /v1/traces", t.take)
	t.server = &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() {
		defer close(t.served)
		_ = t.server.Serve(l) // until Stop
	}()
	return t, nil
}

// URL returns the address that exporters send to.
func (t *Traces) URL() string { return "http://" + t.addr }

// Stop closes the receiver.
func (t *Traces) Stop() {
	_ = t.server.Close() // lost traces do not matter any more
	<-t.served
}

// Spans returns all spans received so far. It is an error if a process sent something
// other than OTLP.
func (t *Traces) Spans() ([]Span, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]Span(nil), t.spans...), t.wrong
}

func (t *Traces) take(w http.ResponseWriter, r *http.Request) {
	spans, err := readSpans(r)
	t.mu.Lock()
	t.spans = append(t.spans, spans...)
	if err != nil {
		t.wrong = err
	}
	t.mu.Unlock()
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer, err := proto.Marshal(&collectorv1.ExportTraceServiceResponse{})
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/x-protobuf")
	_, _ = w.Write(answer) // the exporter may have gone
}

func readSpans(r *http.Request) ([]Span, error) {
	body := io.Reader(r.Body)
	if r.Header.Get("Content-Encoding") == "gzip" {
		zip, err := gzip.NewReader(body)
		if err != nil {
			return nil, fmt.Errorf("traces: %w", err)
		}
		body = zip
	}
	b, err := io.ReadAll(body)
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	request := &collectorv1.ExportTraceServiceRequest{}
	if err := proto.Unmarshal(b, request); err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	var spans []Span
	for _, of := range request.GetResourceSpans() {
		service := attributes(of.GetResource().GetAttributes())["service.name"]
		for _, scope := range of.GetScopeSpans() {
			for _, s := range scope.GetSpans() {
				role := strings.TrimPrefix(scope.GetScope().GetName(), "meshlog.dev/")
				spans = append(spans, spanOf(service, role, s))
			}
		}
	}
	return spans, nil
}

func spanOf(service, role string, s *tracev1.Span) Span {
	span := Span{
		Service: service, Role: role, Name: s.GetName(),
		TraceID: hex.EncodeToString(s.GetTraceId()), SpanID: hex.EncodeToString(s.GetSpanId()), Parent: hex.EncodeToString(s.GetParentSpanId()),
		Attributes: attributes(s.GetAttributes()), Failed: s.GetStatus().GetCode() == tracev1.Status_STATUS_CODE_ERROR,
		Start: nanos(s.GetStartTimeUnixNano()), End: nanos(s.GetEndTimeUnixNano()),
	}
	for _, l := range s.GetLinks() {
		span.Links = append(span.Links, hex.EncodeToString(l.GetTraceId()))
	}
	for _, e := range s.GetEvents() {
		span.Events = append(span.Events, SpanEvent{e.GetName(), nanos(e.GetTimeUnixNano()), attributes(e.GetAttributes())})
	}
	return span
}

func nanos(unix uint64) time.Time { return time.Unix(0, int64(unix)) }

func attributes(list []*commonv1.KeyValue) map[string]string {
	all := map[string]string{}
	for _, kv := range list {
		switch v := kv.GetValue().GetValue().(type) {
		case *commonv1.AnyValue_StringValue:
			all[kv.GetKey()] = v.StringValue
		case *commonv1.AnyValue_IntValue:
			all[kv.GetKey()] = fmt.Sprint(v.IntValue)
		}
	}
	return all
}

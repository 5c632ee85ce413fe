package admission

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"meshlog.dev/services/internal/loglimit"
)

// maxRequest is the largest request: two states of the largest object that an API server
// stores, with room.
const maxRequest = 8 << 20

// drain is how long running requests may take after the end of Serve's context.
const drain = time.Duration(timeout) * time.Second

// farewell is how long Serve goes on after the end of its context.
const farewell = time.Second

// Server answers the API server.
type Server struct {
	log     *slog.Logger
	limited *loglimit.Logger
	metrics *Metrics
}

// NewServer returns a server. It logs each refused object, without its content.
func NewServer(log *slog.Logger, metrics *Metrics) *Server {
	return &Server{log: log, limited: loglimit.New(log, 20), metrics: metrics}
}

// Serve answers on a listener, which has TLS, until ctx is done and for a second more, and
// then ends the requests that run. In that second each answer ends its connection: a request
// that the API server sends on a connection that is just being closed fails, and with it what
// a user applies.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	mux := http.NewServeMux()
	var ending atomic.Bool
	mux.HandleFunc("POST "+Path, func(w http.ResponseWriter, r *http.Request) {
		if ending.Load() {
			w.Header().Set("Connection", "close")
		}
		s.validate(w, r)
	})
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: drain, ReadTimeout: 2 * drain, WriteTimeout: 2 * drain, IdleTimeout: 2 * time.Minute,
		MaxHeaderBytes: 16 << 10, ErrorLog: slog.NewLogLogger(errorLog{s.log.Handler(), s.limited}, slog.LevelWarn),
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	ending.Store(true)
	timer := time.NewTimer(farewell)
	defer timer.Stop()
	select {
	case err := <-ended:
		return err
	case <-timer.C:
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), drain)
	defer cancel()
	return errors.Join(ctx.Err(), server.Shutdown(stopping))
}

func (s *Server) validate(w http.ResponseWriter, r *http.Request) {
	begin := time.Now()
	review, reason := read(w, r)
	if reason != "" {
		s.metrics.requests.WithLabelValues(outcomeMalformed).Inc()
		http.Error(w, reason, http.StatusBadRequest)
		return
	}
	response := Review(review.Request)
	s.note(review.Request, response)
	answer := admissionv1.AdmissionReview{TypeMeta: metav1.TypeMeta{APIVersion: "admission.k8s.io/v1", Kind: "AdmissionReview"}, Response: response}
	b, err := json.Marshal(answer)
	if err != nil {
		http.Error(w, "the answer cannot be encoded", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if _, err := w.Write(b); err == nil {
		s.metrics.seconds.Observe(time.Since(begin).Seconds())
	}
}

// read reads a request, or says what is wrong with it.
func read(w http.ResponseWriter, r *http.Request) (admissionv1.AdmissionReview, string) {
	var review admissionv1.AdmissionReview
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRequest))
	switch {
	case err != nil:
		return review, "the request is too large or ended early"
	case json.Unmarshal(body, &review) != nil: // the error could repeat a part of the object
		return review, "the request is no AdmissionReview in JSON"
	case review.APIVersion != "admission.k8s.io/v1" || review.Request == nil:
		return review, "want an AdmissionReview of admission.k8s.io/v1 with a request"
	}
	return review, ""
}

func (s *Server) note(r *admissionv1.AdmissionRequest, response *admissionv1.AdmissionResponse) {
	if response.Allowed {
		s.metrics.requests.WithLabelValues(outcomeAllowed).Inc()
		return
	}
	if r.Kind.Group == "" { // the probe
		s.metrics.requests.WithLabelValues(outcomeProbe).Inc()
		return
	}
	s.metrics.requests.WithLabelValues(outcomeRefused).Inc()
	var field, reason string
	if causes := response.Result.Details.Causes; len(causes) > 0 {
		field, reason = causes[0].Field, causes[0].Message
	}
	s.limited.Info("refused an object", "kind", r.Kind.Kind, "namespace", r.Namespace, "name", r.Name, "user", r.UserInfo.Username, "field", field, "reason", reason)
}

// errorLog takes the lines of the HTTP server, which clients cause. All of them count as
// one message.
type errorLog struct {
	slog.Handler
	log *loglimit.Logger
}

// Handle implements slog.Handler.
func (l errorLog) Handle(_ context.Context, r slog.Record) error {
	l.log.Line(r.Level, "webhook server", r.Message)
	return nil
}

package frontend

import (
	"context"
	"errors"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

// Server is a frontend.
type Server struct {
	cfg Config
}

// New makes a frontend; Run starts it.
func New(cfg Config) (*Server, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	cfg.Limits = cfg.Limits.withDefaults()
	if cfg.Metrics == nil {
		cfg.Metrics = NewMetrics()
	}
	return &Server{cfg: cfg}, nil
}

// Run serves until ctx is done and every stream has ended.
func (s *Server) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Ready is nil when the first version is served, else it says what is missing.
func (s *Server) Ready() error {
	return errors.New("no version yet")
}

// Report says everything that the frontend has to say.
func (s *Server) Report() *reportv1.FrontendReport {
	return &reportv1.FrontendReport{Frontend: s.cfg.ID, Build: s.cfg.Build}
}

package rig

import (
	"context"
	"fmt"
	"slices"
	"time"
)

// The xDS types.
const (
	Cluster               = "type.googleapis.com/envoy.config.cluster.v3.Cluster"
	ClusterLoadAssignment = "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment"
	Listener              = "type.googleapis.com/envoy.config.listener.v3.Listener"
	RouteConfiguration    = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration"
	Filter                = "type.googleapis.com/envoy.config.core.v3.TypedExtensionConfig"
	Secret                = "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret"
)

// Version names a published world, in its JSON form.
type Version struct {
	Epoch uint64 `json:"epoch,string"`
	Seq   uint64 `json:"seq,string"`
}

// After reports whether v is newer than w.
func (v Version) After(w Version) bool {
	return v.Epoch > w.Epoch || v.Epoch == w.Epoch && v.Seq > w.Seq
}

// String returns EPOCH.SEQ.
func (v Version) String() string { return fmt.Sprintf("%d.%d", v.Epoch, v.Seq) }

// FrontendReport is a frontend's report of itself (/debug/frontend).
type FrontendReport struct {
	Frontend string
	Serving  Version
	Root     string // of the version that it serves
	Proxies  []struct {
		ID    string
		Types []TypeReport
	}
}

// TypeReport is the state of one type on the stream of one proxy.
type TypeReport struct {
	TypeURL             string
	Sent, Acked         Version
	SentTime, AckedTime time.Time
	Nack                *struct {
		Version, Message string
		Resources        []string
	}
}

// BuilderReport is a builder's report of itself (/debug/builder).
type BuilderReport struct {
	Builder  string
	Leader   bool
	Head     Version
	Compared uint64 `json:",string"`
	Error    string
	Timings  []StageTiming
}

// StageTiming holds when the builder did each stage of one version.
type StageTiming struct {
	Version                                       Version
	Observed, Logged, Read, Due, Built, Published time.Time
}

// find returns the state of a type on a proxy's stream.
func (r *FrontendReport) find(proxy, typeURL string) (TypeReport, error) {
	for _, p := range r.Proxies {
		if p.ID != proxy {
			continue
		}
		i := slices.IndexFunc(p.Types, func(t TypeReport) bool { return t.TypeURL == typeURL })
		if i < 0 {
			return TypeReport{}, fmt.Errorf("%s has not asked for %s", proxy, typeURL)
		}
		return p.Types[i], nil
	}
	return TypeReport{}, fmt.Errorf("%s is not connected to %s", proxy, r.Frontend)
}

// acked returns the state of a type on a proxy's stream. It is an error unless
// the proxy has acknowledged the last response, in a version newer than before.
func (s *Server) acked(ctx context.Context, proxy, typeURL string, before Version) (TypeReport, error) {
	if err := s.Running(); err != nil {
		return TypeReport{}, err
	}
	var r FrontendReport
	if err := s.Debug(ctx, "frontend", &r); err != nil {
		return TypeReport{}, err
	}
	t, err := r.find(proxy, typeURL)
	switch {
	case err != nil:
	case t.Nack != nil:
		err = fmt.Errorf("rejected: %s", t.Nack.Message)
	case !t.Acked.After(before) || t.AckedTime.Before(t.SentTime):
		err = fmt.Errorf("sent version %s, acknowledged %s", t.Sent, t.Acked)
	}
	return t, err
}

// ProxyStatus is a frontend's report of a proxy (meshlog proxy-status).
type ProxyStatus struct {
	ID, Frontend, Stream string
	Types                []TypeStatus
}

// TypeStatus is one type of a proxy.
type TypeStatus struct {
	Type, Status string
	Nack         *struct {
		Message   string
		Resources []string
	}
	HeldBack    []string
	Quarantined []string
	// Unanswered is the time since which a response has no answer; nil: all
	// responses are answered.
	Unanswered *time.Time
}

// Diagnostic is a problem in the configuration (meshlog diagnostics).
type Diagnostic struct {
	Severity, Code, Object, Origin, Field, Reason, Advice, Effect string
}

// Published is a version (meshlog versions) and the changes that caused it
// (meshlog versions VERSION).
type Published struct {
	Version, Previous string
	Root              string
	Publisher, Build  string
	Changes           []Change
}

// Change is an object that differs in a version, and the record that changed it.
type Change struct {
	Object  string
	Removed bool
	Seq     uint64
	Cause   string
}

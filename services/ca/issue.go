package ca

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	authv1 "istio.io/api/security/v1alpha1"

	"meshlog.dev/services/ca/authn"
	"meshlog.dev/services/ca/signer"
	"meshlog.dev/services/internal/address"
)

// impersonation is the metadata by which ztunnel asks for the identity of another
// workload.
const impersonation = "ImpersonatedIdentity"

// Errors of signing, as istiod names them in its metric.
const (
	errorTTL      = "TTL_ERROR"
	errorNotReady = "CA_NOT_READY"
	errorSign     = "CERT_GEN_ERROR"
)

// service is the gRPC service.
type service struct {
	authv1.UnimplementedIstioCertificateServiceServer
	server *Server
}

// CreateCertificate implements IstioCertificateService.
func (v service) CreateCertificate(ctx context.Context, req *authv1.IstioCertificateRequest) (*authv1.IstioCertificateResponse, error) {
	s, began := v.server, time.Now()
	s.cfg.Metrics.requests.Inc()
	from, ok := peer.FromContext(ctx)
	if !ok {
		return nil, status.Error(codes.Internal, "the transport does not know the client's address")
	}
	addr := address.Of(from.Addr)
	if !s.callers.enter(addr) {
		s.cfg.Metrics.refused.WithLabelValues(codes.ResourceExhausted.String()).Inc()
		s.log.Warn("refusing a request: its address asks too often, or too much is asked at once", "address", from.Addr.String())
		return nil, status.Error(codes.ResourceExhausted, "too many requests: try again in a few seconds")
	}
	defer s.callers.leave(addr)
	ctx, cancel := context.WithTimeout(ctx, requestTime)
	defer cancel()

	record := Record{Time: began, Address: from.Addr.String()}
	issued, err := s.issue(ctx, from.AuthInfo, req, &record)
	if err != nil {
		return nil, s.refused(ctx, record, err)
	}
	s.cfg.Metrics.issued.Inc()
	s.cfg.Metrics.seconds.Observe(time.Since(began).Seconds())
	s.log.Info("issued a certificate", "identity", record.For(), "serial", record.Serial, "ends", record.Ends,
		"authenticator", record.Authenticator, "address", record.Address)
	return &authv1.IstioCertificateResponse{CertChain: issued.Chain}, nil
}

// issue authenticates the caller, checks the request, and signs, in this order: a
// stranger learns nothing and costs little, and an invalid request spends no token.
func (s *Server) issue(ctx context.Context, info credentials.AuthInfo, req *authv1.IstioCertificateRequest, record *Record) (*signer.Issued, error) {
	shown, err := credentialsOf(ctx, info)
	if err != nil {
		return nil, err
	}
	proof, err := s.cfg.Authenticators.Authenticate(ctx, shown)
	if err != nil {
		return nil, err
	}
	record.Identity, record.Serving, record.Authenticator, record.Facts = proof.ID, proof.Serving, proof.Authenticator, proof.Facts
	if len(proof.Serving) == 0 && proof.ID.TrustDomain != s.cfg.TrustDomain {
		return nil, &authn.Refusal{Code: codes.PermissionDenied, Reason: "the caller is of trust domain " + proof.ID.TrustDomain + ", and this CA issues for " + s.cfg.TrustDomain + " only"}
	}
	if _, asked := req.GetMetadata().GetFields()[impersonation]; asked {
		return nil, &authn.Refusal{Code: codes.Unauthenticated, Reason: "this CA issues no certificates for others: leave the metadata " + impersonation + " out"}
	}
	request, err := signer.ParseRequest([]byte(req.GetCsr()))
	if err != nil {
		s.cfg.Metrics.invalid.Inc()
		return nil, &authn.Refusal{Code: codes.InvalidArgument, Reason: err.Error()}
	}
	key := request.KeyHash()
	record.KeyHash = hex.EncodeToString(key[:])
	ttl, authority := lifetime(req.GetValidityDuration(), s.cfg.MaxTTL), s.cfg.Authority()
	if err := authority.Check(ttl, record.Time); err != nil {
		return nil, s.unsigned(err)
	}
	if ttl > s.cfg.MaxTTL {
		s.cfg.Metrics.unsigned.WithLabelValues(errorTTL).Inc()
		return nil, &authn.Refusal{Code: codes.InvalidArgument, Reason: fmt.Sprintf("a certificate for longer than %s is not issued", s.cfg.MaxTTL)}
	}
	if err := proof.Spend(ctx); err != nil {
		return nil, err
	}
	var issued *signer.Issued
	if len(proof.Serving) > 0 {
		issued, err = authority.IssueServing(request.PublicKey(), proof.Serving, ttl, record.Time)
	} else {
		issued, err = authority.Issue(request, proof.ID, ttl, record.Time)
	}
	if err != nil {
		s.cfg.Metrics.unsigned.WithLabelValues(errorSign).Inc()
		return nil, &authn.Refusal{Code: codes.Internal, Reason: "the CA cannot sign: see its log", Detail: err}
	}
	recorded := *record
	recorded.Serial, recorded.Ends = issued.Leaf.SerialNumber.Text(16), issued.Leaf.NotAfter
	if err := s.cfg.Audit(ctx, recorded); err != nil {
		s.cfg.Metrics.audit.Inc()
		return nil, &authn.Refusal{Code: codes.Unavailable, Reason: "the certificate cannot be recorded now", Detail: err}
	}
	*record = recorded
	return issued, nil
}

// lifetime returns how long a certificate shall last that a client asks for in
// seconds. Istio's agents take 0 for the default, and istiod what is below too.
func lifetime(seconds int64, most time.Duration) time.Duration {
	switch {
	case seconds <= 0:
		return min(signer.DefaultTTL, most)
	case seconds > int64(most/time.Second):
		return most + time.Second // is refused; the product could overflow
	}
	return time.Duration(seconds) * time.Second
}

func (s *Server) unsigned(err error) error {
	if errors.Is(err, signer.ErrEnded) {
		s.cfg.Metrics.unsigned.WithLabelValues(errorNotReady).Inc()
		return &authn.Refusal{Code: codes.Unavailable, Reason: "the certificate of the CA has ended", Detail: err}
	}
	s.cfg.Metrics.unsigned.WithLabelValues(errorTTL).Inc()
	return &authn.Refusal{Code: codes.InvalidArgument, Reason: err.Error()}
}

// refused records a refusal and returns its gRPC status. The client gets the reason
// alone.
func (s *Server) refused(ctx context.Context, record Record, err error) error {
	record.Code, record.Reason = codes.Internal, err.Error()
	reason := "internal error: see the CA's log"
	var r *authn.Refusal
	if errors.As(err, &r) {
		record.Code, reason = r.Code, r.Reason
	}
	s.cfg.Metrics.refused.WithLabelValues(record.Code.String()).Inc()
	if record.Code == codes.Unauthenticated || record.Code == codes.PermissionDenied {
		s.cfg.Metrics.unauthenticated.Inc()
	}
	attributes := []any{"code", record.Code.String(), "reason", record.Reason, "address", record.Address}
	if record.Authenticator != "" {
		attributes = append(attributes, "identity", record.For())
	}
	s.log.Warn("refused a certificate", attributes...)
	// A client that goes away is recorded all the same.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), requestTime)
	defer cancel()
	if err := s.cfg.Audit(ctx, record); err != nil {
		s.cfg.Metrics.audit.Inc()
		s.log.Warn("the audit does not take the record of a refused certificate", "error", err)
	}
	return status.Error(record.Code, reason)
}

// credentialsOf returns what a caller shows. Two tokens could be two callers.
func credentialsOf(ctx context.Context, info credentials.AuthInfo) (authn.Credentials, error) {
	var c authn.Credentials
	connection, ok := info.(credentials.TLSInfo)
	if !ok {
		return c, &authn.Refusal{Code: codes.Unauthenticated, Reason: "the connection has no TLS"}
	}
	c.Certificates = connection.State.PeerCertificates
	values := metadata.ValueFromIncomingContext(ctx, "authorization")
	if len(values) == 0 {
		return c, nil
	}
	scheme, token, _ := strings.Cut(values[0], " ")
	if len(values) > 1 || !strings.EqualFold(scheme, "Bearer") || token == "" {
		return c, &authn.Refusal{Code: codes.Unauthenticated, Reason: "send one header authorization: Bearer TOKEN"}
	}
	c.Token = token
	return c, nil
}

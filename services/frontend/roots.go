package frontend

import (
	"bytes"
	"crypto/sha256"
	"encoding/pem"
	"maps"
	"slices"
	"strings"
	"sync"

	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/services/mesh/xds/secret"
)

// rootSums are the SHA-256 of root certificates, sorted and in a row: comparable.
type rootSums string

func (r rootSums) list() (all [][]byte) {
	for b := range slices.Chunk([]byte(r), sha256.Size) {
		all = append(all, b)
	}
	return all
}

// sumsOf returns the sums of the certificates in PEM texts.
func sumsOf(texts ...string) rootSums {
	var all []string
	for _, t := range texts {
		rest := []byte(t)
		for {
			var block *pem.Block
			if block, rest = pem.Decode(rest); block == nil {
				break
			}
			if block.Type != "CERTIFICATE" { // a CRL
				continue
			}
			sum := sha256.Sum256(block.Bytes)
			all = append(all, string(sum[:]))
		}
	}
	slices.Sort(all)
	return rootSums(strings.Join(slices.Compact(all), ""))
}

// and returns the sums that are in both.
func (r rootSums) and(o rootSums) rootSums {
	var both strings.Builder
	for _, sum := range r.list() {
		if slices.ContainsFunc(o.list(), func(other []byte) bool { return bytes.Equal(sum, other) }) {
			both.Write(sum)
		}
	}
	return rootSums(both.String())
}

// roots knows the mesh's own roots in the secrets that streams have applied: the authority
// waits for them (CA-10). All streams share few of these secrets.
type roots struct {
	mu    sync.Mutex
	known map[ofDomain]rootSums
}

// ofDomain is the roots of a trust domain in a secret.
type ofDomain struct {
	secret xds.Sum
	domain string
}

// maxRoots is how many secrets are remembered; then all are read again.
const maxRoots = 64

// of returns the roots of a trust domain in a secret.
func (r *roots) of(s *xds.Resource, domain string) rootSums {
	if s == nil {
		return ""
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	in := ofDomain{s.Sum, domain}
	if sums, ok := r.known[in]; ok {
		return sums
	}
	var message tlsv3.Secret
	if proto.Unmarshal(s.Value(), &message) != nil {
		return ""
	}
	sums := sumsOf(secret.OwnRoots(&message, domain))
	if r.known == nil || len(r.known) >= maxRoots {
		r.known = map[ofDomain]rootSums{}
	}
	r.known[in] = sums
	return sums
}

// applied returns the roots of the mesh that the client has applied: in all secrets that have
// them, if it asks for several (CA-13). gets is false if it asks for none here, or may not
// have them.
func (c *conn) applied(s *stream.Stream) (roots rootSums, gets bool) {
	st := c.server.serving.Load()
	if st == nil {
		return "", false
	}
	domain := st.PushContext.TrustDomain()
	for has := range s.HoldsAny(ident.SDS, func(name string) bool { return secret.HasOwnRoots(name, domain) }) {
		next := c.server.roots.of(has, domain)
		if gets {
			next = next.and(roots)
		}
		roots, gets = next, true
	}
	return roots, gets
}

// MeshRoots returns the roots of the mesh in the served version, in PEM.
func (s *Server) MeshRoots() (all []string) {
	if st := s.serving.Load(); st != nil {
		for _, root := range st.PushContext.TrustBundle().GetRoots() {
			all = append(all, root.GetCertificate())
		}
	}
	return all
}

// rootsReport reports which roots are served, and how many streams have applied which.
func (s *Server) rootsReport(conns []*conn, r *reportv1.FrontendReport) {
	if s.serving.Load() != nil {
		r.Roots = sumsOf(s.MeshRoots()...).list()
	}
	count := map[rootSums]uint32{}
	for _, c := range conns {
		c.withState(func(state *stream.Stream) {
			if roots, gets := c.applied(state); gets {
				count[roots]++
			}
		})
	}
	for _, roots := range slices.Sorted(maps.Keys(count)) {
		r.RootsApplied = append(r.RootsApplied, &reportv1.RootsApplied{Roots: roots.list(), Streams: count[roots]})
	}
	slices.SortFunc(r.RootsApplied, func(a, b *reportv1.RootsApplied) int {
		return bytes.Compare(bytes.Join(a.GetRoots(), nil), bytes.Join(b.GetRoots(), nil))
	})
}

package stream

import (
	"bytes"
	"strings"

	"meshlog.dev/services/mesh/xds"
)

// A version tells whether the client had CDS on the stream that sent it: if it had
// none, the version is in capitals. So every frontend, also one that has just
// started, knows what a client that comes back without CDS has: clusters that it
// cannot ask for (E9, E16), or none from here.

// mark returns the version of a response to a client that has no CDS.
func mark(version string) string { return strings.ToUpper(version) }

// MarkedHead returns r.DeltaHead with the version of a marked Response.
func MarkedHead(r *xds.Resource) []byte {
	version := r.Sum.String()
	head := bytes.Clone(r.DeltaHead)
	// The name comes before the version, and nothing like it after.
	if i := bytes.LastIndex(head, []byte(version)); i >= 0 {
		copy(head[i:], mark(version))
	}
	return head
}

// proves reports whether a version that a client names was sent on a stream with
// CDS. A version without a letter proves nothing: one of three million.
func proves(version string) bool {
	if rest, tainted := strings.CutPrefix(version, taint); tainted {
		_, version, _ = strings.Cut(rest, "-")
	}
	version, _, _ = strings.Cut(version, repetition)
	return len(version) == 2*len(xds.Sum{}) && strings.ContainsAny(version, "abcdef") &&
		strings.Trim(version, "0123456789abcdef") == ""
}

// marks reports whether versions of this stream are marked. A gRPC client is never
// sent CDS unasked, nor is a client whose CDS is on another stream.
func (s *Stream) marks() bool {
	return s.clusters == noClusters && !s.cfg.GRPC && s.cfg.Only == nil
}

// noteClusters learns from the first request of a type whether the client had CDS
// on the stream that sent what it has.
func (s *Stream) noteClusters(r Request) {
	if s.clusters != noClusters {
		return
	}
	had := proves(r.Version)
	for _, version := range r.Initial.All() {
		if had = had || proves(string(version)); had {
			break
		}
	}
	if had {
		s.clusters = formerClusters
	}
}

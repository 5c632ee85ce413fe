package frontend

import (
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
)

// labelled returns the head of a Resource of a delta response with the label before its
// version: xds.Resource.DeltaHead has the resource's name, its version and what begins its
// content.
func labelled(head []byte, label string) []byte {
	field, wire, n := protowire.ConsumeTag(head)
	size, m := protowire.ConsumeVarint(head[max(n, 0):])
	if n < 0 || m < 0 {
		return head
	}
	rest := head[n+m:]
	_, _, named := protowire.ConsumeField(rest)
	if named < 0 {
		return head
	}
	number, _, t := protowire.ConsumeTag(rest[named:])
	if t < 0 {
		return head
	}
	version, v := protowire.ConsumeString(rest[named+t:])
	if v < 0 {
		return head
	}
	version = label + version
	added := protowire.SizeBytes(len(version)) - v
	b := make([]byte, 0, len(head)+added+1)
	b = protowire.AppendTag(b, field, wire)
	b = protowire.AppendVarint(b, size+uint64(added))
	b = append(b, rest[:named]...)
	b = appendText(b, number, version)
	return append(b, rest[named+t+v:]...)
}

// unlabelled returns a version that a client names without the label of this frontend.
func (s *Server) unlabelled(version string) string { return strings.TrimPrefix(version, s.cfg.Label) }

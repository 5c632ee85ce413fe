package frontend

import (
	"google.golang.org/protobuf/proto"

	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/frontend/stream"
	"meshlog.dev/services/mesh/xds"
	"meshlog.dev/store"
)

// Proxy is what the streams of a proxy were sent, each with its report; nil:
// the proxy is not connected here. It is the caller's.
func (s *Server) Proxy(id string) []*reportv1.ProxyReply {
	var replies []*reportv1.ProxyReply
	for _, c := range s.streamsNow() {
		if c.proxy.ID == id {
			replies = append(replies, c.reply())
		}
	}
	return replies
}

func (c *conn) reply() *reportv1.ProxyReply {
	r := &reportv1.ProxyReply{Frontend: c.server.cfg.ID, Report: c.report()}
	if node, err := proto.Marshal(c.proxy.Node()); err == nil { // it came from the wire
		r.Node = node
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == nil {
		return r
	}
	r.Version = store.VersionProto(c.client.Version())
	for _, t := range c.state.Contents() {
		r.Types = append(r.Types, typeContent(t))
	}
	return r
}

func typeContent(t stream.TypeContents) *reportv1.TypeContent {
	c := &reportv1.TypeContent{TypeUrl: t.Type.URL(), Wildcard: t.Wildcard}
	for _, r := range t.Resources {
		of := &reportv1.ResourceContent{
			Name: r.Name, Sent: r.Sent, Applied: r.Applied, HeldBack: r.HeldBack,
			Quarantined: r.Quarantined, Lingering: r.Lingering,
		}
		if r.Sum != (xds.Sum{}) {
			of.Sum = r.Sum[:]
		}
		c.Resources = append(c.Resources, of)
	}
	return c
}

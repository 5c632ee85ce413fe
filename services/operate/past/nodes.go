package past

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"meshlog.dev/events"
	"meshlog.dev/events/archive"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
)

// ErrNoNodes says that an archive holds no proxies, not even that there were none.
var ErrNoNodes = errors.New("holds no nodes of proxies: the mesh had ended when it was written, or an older build wrote it")

// encodeNodes returns the file with the nodes of proxies: of each its id, its node, and what else
// decides about its resources. A proxy with several streams has one entry.
func encodeNodes(replies []*reportv1.ProxyReply) ([]byte, int, error) {
	replies = slices.Clone(replies)
	id := func(r *reportv1.ProxyReply) string { return r.GetReport().GetId() }
	slices.SortStableFunc(replies, func(a, b *reportv1.ProxyReply) int { return strings.Compare(id(a), id(b)) })
	replies = slices.CompactFunc(replies, func(a, b *reportv1.ProxyReply) bool { return id(a) == id(b) })
	var file []byte
	for _, r := range replies {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(&reportv1.ProxyReply{
			Report: &reportv1.ProxyReport{Id: id(r), Delta: r.GetReport().GetDelta(), Identity: r.GetReport().GetIdentity()},
			Node:   r.GetNode(),
		})
		if err != nil {
			return nil, 0, fmt.Errorf("node of %s: %w", id(r), err)
		}
		file = protowire.AppendBytes(file, b)
	}
	return file, len(replies), nil
}

// readNodes reads the nodes in an archive.
func readNodes(ctx context.Context, name string, a *archive.Archive) (all []*reportv1.ProxyReply, err error) {
	b, err := a.File(ctx, nodesFile)
	if errors.Is(err, events.ErrNotFound) {
		return nil, fmt.Errorf("%s: %w", name, ErrNoNodes)
	}
	if err != nil {
		return nil, err
	}
	for len(b) > 0 {
		one, n := protowire.ConsumeBytes(b)
		if err := protowire.ParseError(n); err != nil {
			return nil, fmt.Errorf("%s: nodes: %w", name, err)
		}
		r := new(reportv1.ProxyReply)
		if err := proto.Unmarshal(one, r); err != nil {
			return nil, fmt.Errorf("%s: nodes: %w", name, err)
		}
		all, b = append(all, r), b[n:]
	}
	return all, nil
}

package watcher

import (
	"context"

	"google.golang.org/protobuf/types/known/timestamppb"

	"meshlog.dev/proto/ident"
	reportv1 "meshlog.dev/proto/meshlog/report/v1"
	"meshlog.dev/services/internal/bus"
	"meshlog.dev/services/internal/process"
)

// ReportNotConfigured reports until ctx is done that the process at p does not watch a shard any
// more, because its settings do not name it (AGG-7).
func ReportNotConfigured(ctx context.Context, p Place, shard ident.Shard) error {
	nc, err := p.Connect(ctx)
	if err != nil {
		return err
	}
	defer nc.Close()
	fleet := bus.NewFleet(nc, p.Domain, p.Process.Log.With(process.Component, "watcher"))
	return fleet.WatcherReporter(p.Holder, shard, func() *reportv1.WatcherReport {
		return &reportv1.WatcherReport{
			Source: shard.Source, Instance: shard.Instance, Holder: p.Holder, Build: p.Process.Build, Time: timestamppb.Now(), State: "not configured",
		}
	}).Run(ctx)
}

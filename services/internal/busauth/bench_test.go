package busauth

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	"meshlog.dev/events"
	"meshlog.dev/events/natslog"
	"meshlog.dev/proto/ident"
	"meshlog.dev/services/internal/bus"
)

// The cost of the import between a watcher's account and the streams: the same appends
// by the administrator, in the account of the streams, and by the watcher. The
// client and one server are in this process; the server syncs when it likes.
func BenchmarkAppend(b *testing.B) {
	for _, batch := range []int{1, 100} {
		for _, role := range []bus.Role{bus.Admin(), bus.Watcher(files)} {
			b.Run(fmt.Sprintf("%d,%s", batch, role), func(b *testing.B) {
				t := underAttack(b, one, nil)
				log, err := natslog.Open(b.Context(), t.connect(role, 0), natslog.Options{Shard: &files})
				must(b, err)
				defer log.Close()
				payload := ident.Value{Type: "x", Bytes: make([]byte, 1<<10)}
				n := 0
				records := func() []events.Event {
					all := make([]events.Event, batch)
					for i := range all {
						n++
						all[i] = events.Event{ID: fmt.Sprintf("file/default/s/%d", n), Body: &events.Object{
							Key: ident.Key{Source: "file", Instance: "default", Kind: "Gateway", Namespace: "demo", Name: fmt.Sprint(n)}, Op: events.Put, Value: payload, Session: "1", Pseq: uint64(n),
						}}
					}
					return all
				}
				before := cpu()
				for b.Loop() {
					must(b, log.AppendEach(b.Context(), records()))
				}
				b.ReportMetric(float64(cpu()-before)/float64(n)/1e3, "cpu-us/record")
				b.ReportMetric(float64(b.Elapsed())/float64(n)/1e3, "us/record")
			})
		}
	}
}

// cpu returns the processor time of this process.
func cpu() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

package console

import (
	"github.com/prometheus/client_golang/prometheus"

	"meshlog.dev/services/console/watch"
)

// metrics are those of the console itself.
func metrics(w *watch.Watch) []prometheus.Collector {
	all := []prometheus.Collector{prometheus.NewCounterFunc(prometheus.CounterOpts{
		Name: "meshlog_console_report_questions_total",
		Help: "Questions for the reports of all processes. The console asks every 5 s while somebody looks, and not otherwise.",
	}, func() float64 { return float64(w.Asked()) })}
	m := w.Mirror
	if m == nil {
		return all
	}
	return append(all,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "meshlog_console_copy_bytes",
			Help: "Bytes of records and checkpoints in the console's copy of the log, which --console-copy-mib bounds.",
		}, func() float64 { return float64(m.Size()) }),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "meshlog_console_copy_last_record",
			Help: "The newest record in the console's copy of the log.",
		}, func() float64 { return float64(m.Bounds().Last) }),
	)
}

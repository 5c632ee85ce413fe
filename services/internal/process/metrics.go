package process

import (
	"os"

	"github.com/prometheus/client_golang/prometheus"
)

// buildMetric says which build runs.
func buildMetric(build string) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "meshlog_build_info", ConstLabels: prometheus.Labels{"build": build},
		Help: "1; the label is the build of this process. Builders of two builds lead in turns at most: finish the update.",
	})
	g.Set(1)
	return g
}

// FileMetric says how large a role's file is.
func FileMetric(role, path string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "meshlog_store_file_bytes", ConstLabels: prometheus.Labels{"role": role},
		Help: "Bytes of a role's own file. It is a cache: where the disk is full, it may be deleted while the process is stopped.",
	}, func() float64 {
		info, err := os.Stat(path)
		if err != nil {
			return 0
		}
		return float64(info.Size())
	})
}

package process

import (
	"os"

	"github.com/prometheus/client_golang/prometheus"
)

func buildMetric(build string) prometheus.Collector {
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "meshlog_build_info", ConstLabels: prometheus.Labels{"build": build},
		Help: "Always 1; the label is the build of this process. Builders of different builds can only take turns at leading: finish the update.",
	})
	g.Set(1)
	return g
}

// FileMetric reports the size of a role's file.
func FileMetric(role, path string) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "meshlog_store_file_bytes", ConstLabels: prometheus.Labels{"role": role},
		Help: "Bytes of a role's own file. The file is a cache: if the disk is full, delete the file while the process is stopped.",
	}, func() float64 {
		info, err := os.Stat(path)
		if err != nil {
			return 0
		}
		return float64(info.Size())
	})
}

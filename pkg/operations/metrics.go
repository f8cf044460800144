package operations

import "github.com/prometheus/client_golang/prometheus"

// metrics are those of a Store. The values of the gauges are read when they are asked for.
type metrics struct {
	unprotected *prometheus.CounterVec
	gauges      []prometheus.Collector
}

func newMetrics(s *Store) *metrics {
	gauge := func(name, help string, value func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Subsystem: "controller", Name: name, Help: help}, func() float64 {
			s.mu.Lock()
			defer s.mu.Unlock()
			return float64(value())
		})
	}
	m := &metrics{
		unprotected: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "controller", Name: "operations_unprotected_total",
			Help: "CreateVolume operations that were begun without a Lease, by why.",
		}, []string{"reason"}),
		gauges: []prometheus.Collector{
			gauge("operation_leases_enabled", "1 when operations in flight are recorded in Leases, 0 when that is off or the right is missing.", func() int {
				if s.denied != nil || s.cfg.ReadOnly {
					return 0
				}
				return 1
			}),
			gauge("operations_in_flight", "CreateVolume operations that have a Lease.", func() int { return s.inSlots }),
			gauge("operations_waiting", "CreateVolume operations that wait for a Lease.", func() int { return len(s.queue) }),
			gauge("operations_reported", "Leases whose operation nobody drives and that cannot be replayed.", func() int { return len(s.reported) }),
		},
	}
	for _, reason := range []string{"denied", "too_large"} {
		m.unprotected.WithLabelValues(reason) // served from the start
	}
	return m
}

// Register adds the metrics to a registry. The error names the one that is there already.
func (s *Store) Register(to prometheus.Registerer) error {
	for _, collector := range append(s.metrics.gauges, s.metrics.unprotected) {
		if err := to.Register(collector); err != nil {
			return err
		}
	}
	return nil
}

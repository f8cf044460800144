package capacity

import (
	"fmt"

	"k8s.io/component-base/metrics"
)

// Metrics are the three gauges of the controller. They exist apart from it, so that a replica that only
// stands by shows them too, as zero.
type Metrics struct {
	goal, current, obsolete *metrics.Gauge
}

// NewMetrics makes the gauges and registers them, normally with legacyregistry.Register.
func NewMetrics(register func(metrics.Registerable) error) (*Metrics, error) {
	gauge := func(name, help string) *metrics.Gauge {
		return metrics.NewGauge(&metrics.GaugeOpts{Name: name, Help: help, StabilityLevel: metrics.ALPHA})
	}
	m := &Metrics{
		goal:     gauge("csistoragecapacities_desired_goal", "Number of CSIStorageCapacity objects that are supposed to be managed automatically."),
		current:  gauge("csistoragecapacities_desired_current", "Number of CSIStorageCapacity objects that exist and are supposed to be managed automatically."),
		obsolete: gauge("csistoragecapacities_obsolete", "Number of CSIStorageCapacity objects that exist and will be deleted automatically. Objects that exist and may need an update are not considered obsolete and therefore not included in this value."),
	}
	for _, g := range []*metrics.Gauge{m.goal, m.current, m.obsolete} {
		if err := register(g); err != nil {
			return nil, fmt.Errorf("register metric %s: %w", g.Name, err)
		}
	}
	return m, nil
}

func (m *Metrics) show(c counts) {
	if m == nil {
		return
	}
	m.goal.Set(float64(c.goal))
	m.current.Set(float64(c.current))
	m.obsolete.Set(float64(c.obsolete))
}

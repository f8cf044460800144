package driver

import (
	"context"
	"strconv"
	"sync"
	"time"

	csimetrics "github.com/kubernetes-csi/csi-lib-utils/metrics"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"k8s.io/component-base/metrics"
)

// maxHeld bounds the samples that wait for the driver's name: some 15 minutes of a driver that is not ready.
const maxHeld = 1000

// unknownDriver is the label driver_name before the driver has told its name, as in csi-lib-utils.
const unknownDriver = "unknown-driver"

// Metrics counts the calls to one driver in the histogram csi_sidecar_operations_seconds. Samples that are
// taken before the driver's name is known are held back until it is, the first thousand of them; for a
// driver with migrated volumes, whose samples have one label more, they are dropped. The gauge driver_connected tells
// whether the driver is there: 1 while Driver.Gate is open, else 0.
// Make it with NewMetrics and give it to one Connect. It may be used concurrently; nil counts nothing.
type Metrics struct {
	registry metrics.KubeRegistry
	// connected is the gauge driver_connected; it has one series.
	connected *prometheus.GaugeVec

	// mu guards what follows.
	mu sync.Mutex
	// name is that of the driver; unknownDriver before it is known.
	name string
	// plain and migrated take the samples once the driver's name is known; nil before.
	plain, migrated csimetrics.CSIMetricsManager
	held            []sample
}

type sample struct {
	method   string
	err      error
	duration time.Duration
}

// NewMetrics returns metrics with a registry of their own.
func NewMetrics() *Metrics {
	m := &Metrics{
		registry: metrics.NewKubeRegistry(), name: unknownDriver,
		connected: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "driver_connected", Help: "1 while the CSI driver is connected and ready, else 0.",
		}, []string{"driver_name"}),
	}
	m.registry.Registerer().MustRegister(m.connected)
	m.setConnected(false)
	return m
}

// setConnected tells whether the driver is there.
func (m *Metrics) setConnected(is bool) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	value := 0.0
	if is {
		value = 1
	}
	m.connected.Reset()
	m.connected.WithLabelValues(m.name).Set(value)
}

// Gatherer returns the registry, for the HTTP handler. It may be used before the driver is there.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

// migratedKey is the context key of WithMigrated.
type migratedKey struct{}

// WithMigrated returns a context for a call that concerns a volume of an in-tree plugin, or not: the
// value of the metrics' label "migrated" for drivers that have it. Without it the label is "false".
func WithMigrated(ctx context.Context, migrated bool) context.Context {
	return context.WithValue(ctx, migratedKey{}, migrated)
}

// setDriver sets the label driver_name of all samples and adds the label migrated if there is to be one.
// Only the first call counts: the driver's name does not change.
func (m *Metrics) setDriver(name string, migrated bool) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.plain != nil {
		return
	}
	held := m.held
	m.held, m.name = nil, name
	options := []csimetrics.MetricsManagerOption{
		csimetrics.WithProcessStartTime(false), csimetrics.WithCustomRegistry(m.registry),
	}
	if !migrated {
		m.plain = csimetrics.NewCSIMetricsManagerWithOptions(name, options...)
		m.migrated = m.plain
		for _, s := range held {
			m.plain.RecordMetrics(s.method, s.err, s.duration)
		}
		return
	}
	manager := csimetrics.NewCSIMetricsManagerWithOptions(name, append(options, csimetrics.WithMigration())...)
	m.plain, m.migrated = withMigratedLabel(manager, false), withMigratedLabel(manager, true)
}

func withMigratedLabel(manager csimetrics.CSIMetricsManager, migrated bool) csimetrics.CSIMetricsManager {
	labelled, err := manager.WithLabelValues(map[string]string{csimetrics.LabelMigrated: strconv.FormatBool(migrated)})
	if err != nil {
		return manager // cannot be: the label was declared just before
	}
	return labelled
}

// intercept takes the sample of one call, unless nobody was called.
func (m *Metrics) intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	begin := time.Now()
	err := invoker(ctx, method, req, reply, cc, opts...)
	if e := exchangeOf(ctx); e != nil && e.refused.Load() {
		return err
	}
	migrated, _ := ctx.Value(migratedKey{}).(bool)
	m.observe(sample{method, err, time.Since(begin)}, migrated)
	return err
}

func (m *Metrics) observe(s sample, migrated bool) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case m.plain == nil && len(m.held) < maxHeld:
		m.held = append(m.held, s)
	case m.plain == nil:
	case migrated:
		m.migrated.RecordMetrics(s.method, s.err, s.duration)
	default:
		m.plain.RecordMetrics(s.method, s.err, s.duration)
	}
}

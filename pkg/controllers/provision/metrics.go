package provision

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	libmetrics "sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller/metrics"
)

// metrics are the library's families, and our own for what the library never told.
type metrics struct {
	libmetrics.Metrics
	saveFailed     prometheus.Counter
	markersRefused *prometheus.CounterVec
}

func newMetrics(registerer prometheus.Registerer, unanswered func() float64) (*metrics, error) {
	m := &metrics{
		Metrics: libmetrics.New("controller"),
		saveFailed: prometheus.NewCounter(prometheus.CounterOpts{
			Subsystem: "controller", Name: "persistentvolume_save_failed_total",
			Help: "Tries to save the PersistentVolume of a volume that was made, which the API server refused or did not answer.",
		}),
		markersRefused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "controller", Name: "provisioning_markers_refused_total",
			Help: "Claims that could not be marked while a volume was being made for them, by the API server's reason.",
		}, []string{"reason"}),
	}
	if registerer == nil {
		return m, nil
	}
	outstanding := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Subsystem: "controller", Name: "unanswered_creates",
		Help: "Volumes that may exist in the storage system while no answer of the driver has told of them.",
	}, unanswered)
	for _, collector := range []prometheus.Collector{
		m.PersistentVolumeClaimProvisionTotal, m.PersistentVolumeClaimProvisionFailedTotal, m.PersistentVolumeClaimProvisionDurationSeconds,
		m.PersistentVolumeDeleteTotal, m.PersistentVolumeDeleteFailedTotal, m.PersistentVolumeDeleteDurationSeconds,
		m.saveFailed, m.markersRefused, outstanding,
	} {
		if err := registerer.Register(collector); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// labels returns the values of class and source: the fields as they are, annotations do not count.
func labels(claim *corev1.PersistentVolumeClaim) (class, source string) {
	if claim.Spec.StorageClassName != nil {
		class = *claim.Spec.StorageClassName
	}
	if claim.Spec.DataSource != nil {
		source = claim.Spec.DataSource.Kind
	}
	return class, source
}

func (m *metrics) provisioned(claim *corev1.PersistentVolumeClaim, took time.Duration) {
	class, source := labels(claim)
	m.PersistentVolumeClaimProvisionTotal.WithLabelValues(class, source).Inc()
	m.PersistentVolumeClaimProvisionDurationSeconds.WithLabelValues(class, source).Observe(took.Seconds())
}

func (m *metrics) notProvisioned(claim *corev1.PersistentVolumeClaim) {
	class, source := labels(claim)
	m.PersistentVolumeClaimProvisionFailedTotal.WithLabelValues(class, source).Inc()
}

func (m *metrics) deleted(pv *corev1.PersistentVolume, took time.Duration) {
	m.PersistentVolumeDeleteTotal.WithLabelValues(pv.Spec.StorageClassName).Inc()
	m.PersistentVolumeDeleteDurationSeconds.WithLabelValues(pv.Spec.StorageClassName).Observe(took.Seconds())
}

func (m *metrics) notDeleted(pv *corev1.PersistentVolume) {
	m.PersistentVolumeDeleteFailedTotal.WithLabelValues(pv.Spec.StorageClassName).Inc()
}

package provision

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	libmetrics "sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller/metrics"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

// metrics are the library's families, and our own for what the library never told.
type metrics struct {
	libmetrics.Metrics
	// known says whether there is a class of that name: the label class of our own families has no other values, for a
	// claim may name anything.
	known          func(class string) bool
	saveFailed     prometheus.Counter
	markersRefused *prometheus.CounterVec
	endToEnd       *prometheus.HistogramVec
	attemptsFailed *prometheus.CounterVec
	claimsIgnored  *prometheus.CounterVec
}

// endToEndBuckets go from a driver that is fast to one that copies for hours. The times that they hold are made of whole
// seconds.
var endToEndBuckets = []float64{1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400}

func newMetrics(registerer prometheus.Registerer, unanswered func() float64, known func(class string) bool) (*metrics, error) {
	m := &metrics{
		known:   known,
		Metrics: libmetrics.New("controller"),
		saveFailed: prometheus.NewCounter(prometheus.CounterOpts{
			Subsystem: "controller", Name: "persistentvolume_save_failed_total",
			Help: "Tries to save the PersistentVolume of a volume that was made, which the API server refused or did not answer.",
		}),
		markersRefused: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "controller", Name: "provisioning_markers_refused_total",
			Help: "Claims that could not be marked while a volume was being made for them, by the API server's reason.",
		}, []string{"reason"}),
		endToEnd: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Subsystem: "controller", Name: "persistentvolumeclaim_end_to_end_seconds", Buckets: endToEndBuckets,
			Help: "Time from the creation of a claim, or from the selection of its node when its class waits for that, until its PersistentVolume was saved, all attempts and waits together. " +
				"Both moments are the API server's, in whole seconds, so up to a second is too much; the selection's is that of the managed field of the annotation, and where there is none the creation counts. " +
				"Counted once by the process that saved the PersistentVolume, also when an earlier one had begun.",
		}, []string{"class", "source"}),
		attemptsFailed: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "controller", Name: "persistentvolumeclaim_attempts_failed_total",
			Help: "Attempts that left a claim of ours without a saved PersistentVolume, by why.",
		}, []string{"class", "reason"}),
		claimsIgnored: prometheus.NewCounterVec(prometheus.CounterOpts{
			Subsystem: "controller", Name: "persistentvolumeclaim_ignored_total",
			Help: "Looks at a claim that names us and for which nothing is to be done here, by why. No failures.",
		}, []string{"class", "reason"}),
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
		m.saveFailed, m.markersRefused, outstanding, m.endToEnd, m.attemptsFailed, m.claimsIgnored,
	} {
		if err := registerer.Register(collector); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// labels returns the values of class and source of the library's families: the fields as they are, annotations do not
// count.
func labels(claim *corev1.PersistentVolumeClaim) (class, kind string) {
	if claim.Spec.StorageClassName != nil {
		class = *claim.Spec.StorageClassName
	}
	if claim.Spec.DataSource != nil {
		kind = claim.Spec.DataSource.Kind
	}
	return class, kind
}

func (m *metrics) provisioned(claim *corev1.PersistentVolumeClaim, took time.Duration) {
	class, kind := labels(claim)
	m.PersistentVolumeClaimProvisionTotal.WithLabelValues(class, kind).Inc()
	m.PersistentVolumeClaimProvisionDurationSeconds.WithLabelValues(class, kind).Observe(took.Seconds())
}

func (m *metrics) notProvisioned(claim *corev1.PersistentVolumeClaim) {
	class, kind := labels(claim)
	m.PersistentVolumeClaimProvisionFailedTotal.WithLabelValues(class, kind).Inc()
}

// failed counts an attempt that failed. notProvisioned counts by the original's rule, which is another.
func (m *metrics) failed(claim *corev1.PersistentVolumeClaim, why reason) {
	m.attemptsFailed.WithLabelValues(m.class(claim), string(why)).Inc()
}

// ignored counts a claim that was looked at and left alone.
func (m *metrics) ignored(claim *corev1.PersistentVolumeClaim, why unserved) {
	m.claimsIgnored.WithLabelValues(m.class(claim), string(why)).Inc()
}

// class returns the name of the claim's class, "" when there is none of that name.
func (m *metrics) class(claim *corev1.PersistentVolumeClaim) string {
	if name := volume.ClassName(claim); m.known(name) {
		return name
	}
	return ""
}

// served counts a claim whose PersistentVolume has just been saved.
func (m *metrics) served(claim *corev1.PersistentVolumeClaim, plan *Plan) {
	// The clock of the API server may be ahead of ours.
	took := max(0, time.Since(waitingSince(claim, plan.Class)))
	m.endToEnd.WithLabelValues(plan.Class.Name, sourceLabels[plan.Source.Kind]).Observe(took.Seconds())
}

var sourceLabels = map[source.Kind]string{source.None: "none", source.Snapshot: "snapshot", source.Claim: "clone"}

// waitingSince returns since when the claim of that class could have had its volume: since its creation or, when
// the class waits for a node, since that was selected.
func waitingSince(claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) time.Time {
	if waits(class) {
		if selected := cluster.NodeSelected(claim); !selected.IsZero() {
			return selected
		}
	}
	return claim.CreationTimestamp.Time
}

func (m *metrics) deleted(pv *corev1.PersistentVolume, took time.Duration) {
	m.PersistentVolumeDeleteTotal.WithLabelValues(pv.Spec.StorageClassName).Inc()
	m.PersistentVolumeDeleteDurationSeconds.WithLabelValues(pv.Spec.StorageClassName).Observe(took.Seconds())
}

func (m *metrics) notDeleted(pv *corev1.PersistentVolume) {
	m.PersistentVolumeDeleteFailedTotal.WithLabelValues(pv.Spec.StorageClassName).Inc()
}

package provision

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	libmetrics "sigs.k8s.io/sig-storage-lib-external-provisioner/v13/controller/metrics"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

// metrics are the library's families, and our own for what the library never told.
type metrics struct {
	libmetrics.Metrics
	// claims bounds the labels of the families of claims, volumes those of the families of deletions.
	claims, volumes *series

	saveFailed     prometheus.Counter
	extraVolumes   prometheus.Counter
	endToEnd       *prometheus.HistogramVec
	attemptsFailed *prometheus.CounterVec
	claimsIgnored  *prometheus.CounterVec
}

// endToEndBuckets go from a driver that is fast to one that copies for hours. The times that they hold are made of whole
// seconds.
var endToEndBuckets = []float64{1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400}

func newMetrics(registerer prometheus.Registerer, unanswered func() float64, objects Cache) (*metrics, error) {
	m := &metrics{
		Metrics: libmetrics.New("controller"),
		saveFailed: prometheus.NewCounter(prometheus.CounterOpts{
			Subsystem: "controller", Name: "persistentvolume_save_failed_total",
			Help: "Tries to save the PersistentVolume of a volume that was made, which the API server refused or did not answer.",
		}),
		extraVolumes: prometheus.NewCounter(prometheus.CounterOpts{
			Subsystem: "controller", Name: "extra_volumes_deleted_total",
			Help: "Volumes that were deleted because another process had made the claim's volume meanwhile.",
		}),
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
	m.boundLabels(objects)
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
		m.saveFailed, m.extraVolumes, outstanding, m.endToEnd, m.attemptsFailed, m.claimsIgnored,
	} {
		if err := registerer.Register(collector); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// family is a metric with labels.
type family interface {
	DeleteLabelValues(values ...string) bool
	DeletePartialMatch(labels prometheus.Labels) int
}

// boundLabels makes what bounds the labels that users choose.
func (m *metrics) boundLabels(objects Cache) {
	exists := func(class string) bool { return objects.Class(class) != nil }
	dropClass := func(families ...family) func(string) {
		return func(class string) {
			for _, f := range families {
				f.DeletePartialMatch(prometheus.Labels{"class": class})
			}
		}
	}
	pairs := []family{
		m.PersistentVolumeClaimProvisionTotal, m.PersistentVolumeClaimProvisionFailedTotal, m.PersistentVolumeClaimProvisionDurationSeconds,
	}
	m.claims = &series{
		exists: exists, alive: func(uid types.UID) bool { return objects.ClaimByUID(uid) != nil },
		drop: func(pair labelPair) {
			for _, f := range pairs {
				f.DeleteLabelValues(pair.class, pair.source)
			}
		},
		dropClass: dropClass(append(pairs, m.endToEnd, m.attemptsFailed, m.claimsIgnored)...),
		pairs:     map[labelPair]map[types.UID]struct{}{},
	}
	// A PersistentVolume is gone when its deletion is counted, and its class may have been for long: such a class is kept
	// until the process ends. Only an administrator makes classes.
	m.volumes = &series{
		exists: exists, alive: func(types.UID) bool { return true }, drop: func(labelPair) {},
		dropClass: dropClass(m.PersistentVolumeDeleteTotal, m.PersistentVolumeDeleteFailedTotal, m.PersistentVolumeDeleteDurationSeconds),
		pairs:     map[labelPair]map[types.UID]struct{}{},
	}
}

// forgetClass drops what was counted of a class that is gone.
func (m *metrics) forgetClass(class string) {
	m.claims.forgetClass(class)
	m.volumes.forgetClass(class)
}

// labelsOf returns class and source of the library's families: the fields as they are, annotations do not count.
func labelsOf(claim *corev1.PersistentVolumeClaim) labelPair {
	var pair labelPair
	if claim.Spec.StorageClassName != nil {
		pair.class = *claim.Spec.StorageClassName
	}
	if claim.Spec.DataSource != nil {
		pair.source = claim.Spec.DataSource.Kind
	}
	return pair
}

func (m *metrics) provisioned(claim *corev1.PersistentVolumeClaim, took time.Duration) {
	m.claims.count(claim.UID, labelsOf(claim), func(pair labelPair) {
		m.PersistentVolumeClaimProvisionTotal.WithLabelValues(pair.class, pair.source).Inc()
		m.PersistentVolumeClaimProvisionDurationSeconds.WithLabelValues(pair.class, pair.source).Observe(took.Seconds())
	})
}

func (m *metrics) notProvisioned(claim *corev1.PersistentVolumeClaim) {
	m.claims.count(claim.UID, labelsOf(claim), func(pair labelPair) {
		m.PersistentVolumeClaimProvisionFailedTotal.WithLabelValues(pair.class, pair.source).Inc()
	})
}

// failed counts an attempt that failed. notProvisioned counts by the original's rule, which is another.
func (m *metrics) failed(claim *corev1.PersistentVolumeClaim, why reason) {
	m.claims.countClass(volume.ClassName(claim), func(class string) { m.attemptsFailed.WithLabelValues(class, string(why)).Inc() })
}

// ignored counts a claim that was looked at and left alone.
func (m *metrics) ignored(claim *corev1.PersistentVolumeClaim, why unserved) {
	m.claims.countClass(volume.ClassName(claim), func(class string) { m.claimsIgnored.WithLabelValues(class, string(why)).Inc() })
}

// served counts a claim whose PersistentVolume has just been saved.
func (m *metrics) served(claim *corev1.PersistentVolumeClaim, plan *Plan) {
	if claim.CreationTimestamp.IsZero() {
		return // an earlier process has begun, and the claim is gone
	}
	// The clock of the API server may be ahead of ours.
	took := max(0, time.Since(waitingSince(claim, plan.Class)))
	m.claims.countClass(plan.Class.Name, func(class string) {
		m.endToEnd.WithLabelValues(class, sourceLabels[plan.Source.Kind]).Observe(took.Seconds())
	})
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
	m.countVolume(pv, func(class string) {
		m.PersistentVolumeDeleteTotal.WithLabelValues(class).Inc()
		m.PersistentVolumeDeleteDurationSeconds.WithLabelValues(class).Observe(took.Seconds())
	})
}

func (m *metrics) notDeleted(pv *corev1.PersistentVolume) {
	m.countVolume(pv, func(class string) { m.PersistentVolumeDeleteFailedTotal.WithLabelValues(class).Inc() })
}

func (m *metrics) countVolume(pv *corev1.PersistentVolume, inc func(class string)) {
	const all = "" // no pair is forgotten with one PersistentVolume, so none needs to be told from the others
	m.volumes.count(all, labelPair{class: pv.Spec.StorageClassName}, func(pair labelPair) { inc(pair.class) })
}

package capacity

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// eligible reports whether objects are published for a class: it is the driver's, under exactly that name,
// and binds late, unless those that bind at once are wanted too. A class without a mode counts as late.
func eligible(class *storagev1.StorageClass, driver string, immediate bool) bool {
	if class.Provisioner != driver {
		return false
	}
	mode := class.VolumeBindingMode
	return immediate || mode == nil || *mode != storagev1.VolumeBindingImmediate
}

// allowed reports whether a class with these allowedTopologies may have volumes in the segment. A key that
// the segment does not have forbids nothing: its nodes may well carry the label.
func allowed(terms []corev1.TopologySelectorTerm, segment topology.Segment) bool {
	if len(terms) == 0 {
		return true
	}
	return slices.ContainsFunc(terms, func(term corev1.TopologySelectorTerm) bool {
		return !slices.ContainsFunc(term.MatchLabelExpressions, func(e corev1.TopologySelectorLabelRequirement) bool {
			value, has := segment.Get(e.Key)
			return has && !slices.Contains(e.Values, value)
		})
	})
}

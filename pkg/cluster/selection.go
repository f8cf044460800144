package cluster

import (
	"bytes"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

var selectedNodeField = []byte(`"f:` + wellknown.AnnSelectedNode + `"`)

// selection returns what is kept of the managed fields of a claim that waits for our driver: when its node was
// selected. Nothing else on a claim tells that. It returns nil when there is no node, and its own result unchanged.
func selection(claim *corev1.PersistentVolumeClaim) []metav1.ManagedFieldsEntry {
	if claim.Annotations[wellknown.AnnSelectedNode] == "" {
		return nil
	}
	var first *metav1.Time
	for _, entry := range claim.ManagedFields {
		// An entry without fields is one that was kept before.
		if entry.FieldsV1 != nil && !bytes.Contains(entry.FieldsV1.GetRawBytes(), selectedNodeField) {
			continue
		}
		if entry.Time != nil && (first == nil || entry.Time.Before(first)) {
			first = entry.Time
		}
	}
	if first == nil {
		return nil
	}
	return []metav1.ManagedFieldsEntry{{Time: first}}
}

// NodeSelected returns when the node of a claim from the cache was selected, as the API server has recorded it; zero
// when no node was, or when nothing is recorded.
func NodeSelected(claim *corev1.PersistentVolumeClaim) time.Time {
	if kept := selection(claim); len(kept) > 0 {
		return kept[0].Time.Time
	}
	return time.Time{}
}

package cluster

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

func managed(seconds int64, raw string) metav1.ManagedFieldsEntry {
	at := metav1.NewTime(time.Unix(seconds, 0))
	return metav1.ManagedFieldsEntry{Manager: "m", Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", FieldsType: "FieldsV1", Time: &at, FieldsV1: metav1.NewFieldsV1(raw)}
}

// Of all managed fields only the moment of the node's selection stays, and only while it matters.
func TestTheSelectionOfTheNodeIsKept(t *testing.T) {
	t.Parallel()
	node := `{"f:metadata":{"f:annotations":{".":{},"f:` + wellknown.AnnSelectedNode + `":{}}}}`
	other := `{"f:metadata":{"f:annotations":{".":{},"f:` + wellknown.AnnSelectedNode + `-not":{}}}}`
	timeless := managed(3, node)
	timeless.Time = nil
	waiting := func(claim *corev1.PersistentVolumeClaim) {
		claim.Spec.VolumeName, claim.Status.Phase = "", corev1.ClaimPending
	}
	for name, tc := range map[string]struct {
		entries []metav1.ManagedFieldsEntry
		edit    func(*corev1.PersistentVolumeClaim)
		want    int64 // zero: nothing
	}{
		"the manager of the annotation": {[]metav1.ManagedFieldsEntry{managed(1, other), managed(3, node), managed(5, "{}")}, waiting, 3},
		"the first of several":          {[]metav1.ManagedFieldsEntry{managed(7, node), managed(3, node)}, waiting, 3},
		"nobody manages it":             {[]metav1.ManagedFieldsEntry{managed(1, other)}, waiting, 0},
		"nothing is recorded":           {nil, waiting, 0},
		"the time is not recorded":      {[]metav1.ManagedFieldsEntry{timeless}, waiting, 0},
		"the annotation is gone": {[]metav1.ManagedFieldsEntry{managed(3, node)}, func(claim *corev1.PersistentVolumeClaim) {
			waiting(claim)
			claim.Annotations[wellknown.AnnSelectedNode] = ""
		}, 0},
		"the claim is served":                    {[]metav1.ManagedFieldsEntry{managed(3, node)}, func(*corev1.PersistentVolumeClaim) {}, 0},
		"the claim is of another driver's class": {[]metav1.ManagedFieldsEntry{managed(3, node)}, func(claim *corev1.PersistentVolumeClaim) { *claim = *fullClaim("other"); waiting(claim) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claim := fullClaim(testDriver)
			claim.ManagedFields = tc.entries
			tc.edit(claim)
			kept := asClaim(trimmedClaim(t, claim))
			var want time.Time
			var fields []metav1.ManagedFieldsEntry
			if tc.want != 0 {
				want = time.Unix(tc.want, 0)
				fields = []metav1.ManagedFieldsEntry{{Time: &metav1.Time{Time: want}}}
			}
			if got := NodeSelected(kept); !got.Equal(want) {
				t.Errorf("selected at %s, want %s", got, want)
			}
			if diff := cmp.Diff(fields, kept.ManagedFields); diff != "" {
				t.Errorf("managed fields (-want +got):\n%s", diff)
			}
		})
	}
}

package source_test

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/source"
)

// A claim that is cloned from another, which is still waiting for its own volume.
func Example() {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "copy", Namespace: "team-a"},
		Spec: corev1.PersistentVolumeClaimSpec{
			DataSource: &corev1.TypedLocalObjectReference{Kind: "PersistentVolumeClaim", Name: "data"},
		},
	}
	ref, err := source.Of(claim, false)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(ref.Kind, source.Key(claim), ref.NeedsGrant(claim.Namespace))

	_, err = source.CheckClone(source.CloneFacts{
		Claim:     claim,
		Reference: ref,
		Source: &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "team-a"},
			Status:     corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
		},
		DriverName: "csi.example.com",
	})
	fmt.Println(err)
	// Output:
	// Claim PersistentVolumeClaim/team-a/data false
	// PersistentVolumeClaim team-a/data as data source: the PVC DataSource data must have a status of Bound, got "Pending"
}

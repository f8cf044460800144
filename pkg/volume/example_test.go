package volume_test

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

// From a claim to the request, and from the driver's answer to the PersistentVolume.
func Example() {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "team-a", UID: "9c1a3f4e-21d7-4b6a-8f5e-0a1b2c3d4e5f"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")},
			},
		},
	}
	class := map[string]string{"type": "ssd", "csi.storage.k8s.io/fstype": "xfs"}

	name, err := volume.Name("pvc", volume.WholeUID, claim.UID)
	if err != nil {
		fmt.Println(err)
		return
	}
	fsType, _, _ := volume.FSType(class, "ext4")
	capabilities, _ := volume.Capabilities(volume.CapabilityInput{Claim: claim, FSType: fsType})
	parameters, _ := volume.Parameters(class)
	request := &csi.CreateVolumeRequest{
		Name:               name,
		CapacityRange:      &csi.CapacityRange{RequiredBytes: volume.RequestBytes(claim)},
		VolumeCapabilities: capabilities,
		Parameters:         parameters,
	}
	fmt.Println(request.GetName(), request.GetCapacityRange().GetRequiredBytes(), request.GetParameters())

	answer := &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "vol-7", CapacityBytes: 2 << 30}}
	if err := volume.CheckResponse(request, answer); err != nil {
		fmt.Println(err)
		return
	}
	pv := volume.BuildPV(volume.PVInput{
		Name: name, Driver: "csi.example.com", ProvisionedBy: "csi.example.com",
		Claim: claim, ClassName: "fast", FSType: fsType, Request: request, Volume: answer.GetVolume(),
	})
	fmt.Println(pv.Spec.CSI.VolumeHandle, pv.Spec.Capacity.Storage(), pv.Spec.CSI.FSType, pv.Spec.ClaimRef.Name)
	// Output:
	// pvc-9c1a3f4e-21d7-4b6a-8f5e-0a1b2c3d4e5f 1073741824 map[type:ssd]
	// vol-7 2Gi xfs data
}

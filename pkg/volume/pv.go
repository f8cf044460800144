package volume

import (
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// PVInput is what a PersistentVolume is made from. Everything is only read.
type PVInput struct {
	// Name is the name in the request.
	Name string
	// Driver is the name of the CSI driver.
	Driver string
	// ProvisionedBy is the provisioner of the class, which is the in-tree name for a migrated one.
	ProvisionedBy string
	// Identity tells which process made the volume.
	Identity string
	// Claim is the claim that the volume is for. Required.
	Claim *corev1.PersistentVolumeClaim
	// ClassName is the name of the claim's class, as returned by the function ClassName.
	ClassName string
	// ReclaimPolicy is the class's; nil leaves it to the API server.
	ReclaimPolicy *corev1.PersistentVolumeReclaimPolicy
	// MountOptions are the class's, before any translation.
	MountOptions []string
	// FSType is the resolved file system type; a raw device gets none.
	FSType string
	// Secrets are the resolved references.
	Secrets SecretRefs
	// Labels and Annotations are what is copied from the claim, nil for nothing. An annotation that the
	// PersistentVolume gets anyway is not changed by them.
	Labels, Annotations map[string]string
	// VACName is the VolumeAttributesClass that the volume was made with, "" for none.
	VACName string
	// PublishReadonly is --controller-publish-readonly.
	PublishReadonly bool
	// Request is the request that the driver answered; its secrets are not looked at. Required.
	Request *csi.CreateVolumeRequest
	// Volume is the driver's answer, which CheckResponse found good. Required.
	Volume *csi.Volume
	// NodeAffinity is where the volume can be used, nil for everywhere.
	NodeAffinity *corev1.VolumeNodeAffinity
}

// BuildPV returns the PersistentVolume for a volume that was made. It is complete but for the in-tree form of
// migrated classes, and shares nothing with the input.
func BuildPV(in PVInput) *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name:        in.Name,
			Labels:      maps.Clone(in.Labels),
			Annotations: annotations(in),
			Finalizers:  []string{wellknown.FinalizerPV},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:               corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(sizeBytes(in), resource.BinarySI)},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: csiSource(in)},
			AccessModes:            slices.Clone(in.Claim.Spec.AccessModes),
			ClaimRef: &corev1.ObjectReference{
				Kind:            wellknown.KindClaim,
				APIVersion:      corev1.SchemeGroupVersion.String(),
				Namespace:       in.Claim.Namespace,
				Name:            in.Claim.Name,
				UID:             in.Claim.UID,
				ResourceVersion: in.Claim.ResourceVersion,
			},
			StorageClassName: in.ClassName,
			MountOptions:     slices.Clone(in.MountOptions),
			VolumeMode:       clone(in.Claim.Spec.VolumeMode),
			NodeAffinity:     in.NodeAffinity.DeepCopy(),
		},
	}
	if in.ReclaimPolicy != nil {
		pv.Spec.PersistentVolumeReclaimPolicy = *in.ReclaimPolicy
	}
	if in.VACName != "" {
		pv.Spec.VolumeAttributesClassName = new(in.VACName)
	}
	return pv
}

func annotations(in PVInput) map[string]string {
	provisioner := orNone(in.Secrets.Provisioner)
	a := make(map[string]string, len(in.Annotations)+5)
	maps.Copy(a, in.Annotations)
	a[wellknown.AnnProvisionedBy] = in.ProvisionedBy
	a[wellknown.AnnDeletionSecretName] = provisioner.Name
	a[wellknown.AnnDeletionSecretNamespace] = provisioner.Namespace
	if modify := in.Secrets.ControllerModify; modify != nil {
		a[wellknown.AnnModifySecretName] = modify.Name
		a[wellknown.AnnModifySecretNamespace] = modify.Namespace
	}
	return a
}

func csiSource(in PVInput) *corev1.CSIPersistentVolumeSource {
	attributes := map[string]string{wellknown.AttributeIdentity: in.Identity}
	maps.Copy(attributes, in.Volume.GetVolumeContext())
	source := &corev1.CSIPersistentVolumeSource{
		Driver:                     in.Driver,
		VolumeHandle:               in.Volume.GetVolumeId(),
		ReadOnly:                   in.PublishReadonly && readOnlyMany(in.Request.GetVolumeCapabilities()),
		VolumeAttributes:           attributes,
		ControllerPublishSecretRef: clone(in.Secrets.ControllerPublish),
		NodeStageSecretRef:         clone(in.Secrets.NodeStage),
		NodePublishSecretRef:       clone(in.Secrets.NodePublish),
		ControllerExpandSecretRef:  clone(in.Secrets.ControllerExpand),
		NodeExpandSecretRef:        clone(in.Secrets.NodeExpand),
	}
	if !isBlock(in.Claim) {
		source.FSType = in.FSType
	}
	return source
}

// sizeBytes returns what the driver says, or what was asked for when it does not say.
func sizeBytes(in PVInput) int64 {
	if size := in.Volume.GetCapacityBytes(); size != 0 {
		return size
	}
	return in.Request.GetCapacityRange().GetRequiredBytes()
}

// readOnlyMany reports whether the volume can be used in one way only: read by many nodes.
func readOnlyMany(capabilities []*csi.VolumeCapability) bool {
	return len(capabilities) == 1 &&
		capabilities[0].GetAccessMode().GetMode() == csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
}

// orNone returns what ref points to, and empty names for none.
func orNone(ref *corev1.SecretReference) corev1.SecretReference {
	if ref == nil {
		return corev1.SecretReference{}
	}
	return *ref
}

func clone[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return new(*p)
}

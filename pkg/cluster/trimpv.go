package cluster

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// pv is the transform of the PersistentVolume cache.
func (t *trimmer) pv(obj any) (any, error) {
	pv, ok := obj.(*corev1.PersistentVolume)
	if !ok {
		return obj, nil
	}
	if t.ownPV(pv) {
		t.trimMeta(&pv.ObjectMeta)
		if pv.Spec.CSI != nil {
			t.shrinkPV(pv)
		} else {
			delete(pv.Annotations, wellknown.AnnLastApplied) // of a map that is not shared
		}
		return pv, nil
	}
	f := &foreignPV{
		name: pv.Name, uid: string(pv.UID), resourceVersion: pv.ResourceVersion,
		phase: t.shared(string(pv.Status.Phase)), handle: t.handle(pv),
	}
	if pv.Spec.CSI != nil {
		f.driver = t.shared(pv.Spec.CSI.Driver)
	}
	if ref := pv.Spec.ClaimRef; ref != nil {
		f.claimNamespace, f.claimName, f.claimUID = t.shared(ref.Namespace), ref.Name, string(ref.UID)
		if strings.HasSuffix(f.name, f.claimUID) {
			f.claimUID = f.name[len(f.name)-len(f.claimUID):]
		}
	}
	return f, nil
}

// shrinkPV leaves of a PersistentVolume of ours what its deletion needs, and whose it is; what a clone needs of it
// is read live. One with another source than CSI is not touched: the translation may look at all of it.
func (t *trimmer) shrinkPV(pv *corev1.PersistentVolume) {
	pv.Labels, pv.OwnerReferences = nil, nil
	pv.Annotations = t.sharedMap(pv.Annotations, wellknown.AnnProvisionedBy, wellknown.AnnMigratedTo,
		wellknown.AnnBetaStorageClass, wellknown.AnnDeletionSecretName, wellknown.AnnDeletionSecretNamespace)
	for i, finalizer := range pv.Finalizers {
		pv.Finalizers[i] = t.shared(finalizer)
	}
	spec := &pv.Spec
	spec.Capacity, spec.AccessModes, spec.MountOptions, spec.VolumeMode, spec.VolumeAttributesClassName = nil, nil, nil, nil, nil
	spec.StorageClassName = t.shared(spec.StorageClassName)
	spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimPolicy(t.shared(string(spec.PersistentVolumeReclaimPolicy)))
	spec.CSI = &corev1.CSIPersistentVolumeSource{
		Driver: t.shared(spec.CSI.Driver), VolumeHandle: spec.CSI.VolumeHandle,
		VolumeAttributes: t.sharedMap(spec.CSI.VolumeAttributes, wellknown.AttributeIdentity),
	}
	if ref := spec.ClaimRef; ref != nil {
		spec.ClaimRef = &corev1.ObjectReference{
			Kind: wellknown.KindClaim, APIVersion: "v1", Namespace: t.shared(ref.Namespace), Name: ref.Name, UID: ref.UID,
		}
		if strings.HasSuffix(pv.Name, string(ref.UID)) {
			spec.ClaimRef.UID = types.UID(pv.Name[len(pv.Name)-len(ref.UID):])
		}
	}
	pv.Status = corev1.PersistentVolumeStatus{Phase: corev1.PersistentVolumePhase(t.shared(string(pv.Status.Phase)))}
}

// sharedMap returns the entries of m with these keys, in a map that all objects with the same ones share; nil for none.
func (t *trimmer) sharedMap(m map[string]string, keys ...string) map[string]string {
	kept := make(map[string]string, len(keys))
	var id strings.Builder
	for _, key := range keys {
		if value, ok := m[key]; ok {
			kept[key] = value
			id.WriteString(key + "\x00" + value + "\x00")
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return t.maps.get(id.String(), func() map[string]string { return kept })
}

// ownPV is true for every PersistentVolume that this driver may have to delete, and for those that only name it: a
// volume whose annotation names another provisioner is not ours to delete, but can be the source of a clone.
func (t *trimmer) ownPV(pv *corev1.PersistentVolume) bool {
	return (pv.Spec.CSI != nil && t.ours(pv.Spec.CSI.Driver)) ||
		t.ours(pv.Annotations[wellknown.AnnProvisionedBy]) || t.ours(pv.Annotations[wellknown.AnnMigratedTo])
}

// pvHandles is the index function of the handles that the driver knows volumes by.
func (t *trimmer) pvHandles(obj any) ([]string, error) {
	var handle string
	switch obj := obj.(type) {
	case *corev1.PersistentVolume:
		handle = t.handle(obj)
	case *foreignPV:
		handle = obj.handle
	}
	if handle == "" {
		return nil, nil
	}
	return []string{handle}, nil
}

// foreignPV is what is kept of a PersistentVolume of another driver: enough to see that its name is taken. One that an
// administrator made for a volume of the in-tree plugin has a handle, too.
type foreignPV struct {
	name, uid, resourceVersion, phase, driver, handle string

	claimNamespace, claimName, claimUID string
}

// GetObjectMeta makes a foreign PersistentVolume an object to the informer.
func (f *foreignPV) GetObjectMeta() metav1.Object {
	return &metav1.ObjectMeta{Name: f.name, UID: types.UID(f.uid), ResourceVersion: f.resourceVersion}
}

func (f *foreignPV) pv() *corev1.PersistentVolume {
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: f.name, UID: types.UID(f.uid), ResourceVersion: f.resourceVersion},
		Status:     corev1.PersistentVolumeStatus{Phase: corev1.PersistentVolumePhase(f.phase)},
	}
	if f.driver != "" {
		pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: f.driver}
	}
	if f.claimName != "" {
		pv.Spec.ClaimRef = &corev1.ObjectReference{
			Kind: wellknown.KindClaim, APIVersion: "v1",
			Namespace: f.claimNamespace, Name: f.claimName, UID: types.UID(f.claimUID),
		}
	}
	return pv
}

// asPV returns what the cache holds as a PersistentVolume; nil for anything else.
func asPV(obj any) *corev1.PersistentVolume {
	switch obj := obj.(type) {
	case *corev1.PersistentVolume:
		return obj
	case *foreignPV:
		return obj.pv()
	}
	return nil
}

// attachment keeps of a VolumeAttachment which volume it is about, and where.
func (t *trimmer) attachment(obj any) (any, error) {
	attachment, ok := obj.(*storagev1.VolumeAttachment)
	if !ok {
		return obj, nil
	}
	return &storagev1.VolumeAttachment{
		ObjectMeta: metav1.ObjectMeta{
			Name: attachment.Name, UID: attachment.UID, ResourceVersion: attachment.ResourceVersion,
			DeletionTimestamp: attachment.DeletionTimestamp,
		},
		Spec: storagev1.VolumeAttachmentSpec{
			Attacher: t.shared(attachment.Spec.Attacher), NodeName: t.shared(attachment.Spec.NodeName),
			Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: attachment.Spec.Source.PersistentVolumeName},
		},
	}, nil
}

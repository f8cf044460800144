package provision

import (
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/operations"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
)

// operationOf returns what a later process needs to send the request of the plan again and to save what comes of it. It
// shares memory with the plan, which is never changed.
func operationOf(p *Plan) operations.Operation {
	op := operations.Operation{
		Claim:         operations.Object{Namespace: p.Claim.Namespace, Name: p.Claim.Name, UID: p.Claim.UID},
		Class:         operations.Object{Name: p.Class.Name, UID: p.Class.UID},
		VolumeName:    p.Request.GetName(),
		Request:       p.Request,
		Secrets:       p.Secrets,
		SelectedNode:  p.SelectedNode,
		Reschedulable: p.Reschedulable,
		PersistentVolume: operations.PersistentVolume{
			Provisioner: p.Class.Provisioner, Identity: p.Identity, Translated: p.Translated, PublishReadonly: p.PublishReadonly,
			AccessModes: p.Claim.Spec.AccessModes, VolumeMode: p.Claim.Spec.VolumeMode, FSType: p.FSType,
			ReclaimPolicy: p.Class.ReclaimPolicy, MountOptions: p.Class.MountOptions, VACName: p.VACName,
			Labels: p.Labels, Annotations: p.Annotations,
		},
	}
	if ref := p.Source; ref.Kind != source.None {
		op.Source = operations.Source{Group: ref.Group, Kind: ref.KindName, Namespace: ref.Namespace, Name: ref.Name, UID: p.SourceUID}
	}
	return op
}

// planOf is the reverse of operationOf. Claim and class have the fields that an operation keeps; all others are empty.
func planOf(op operations.Operation) *Plan {
	pv := op.PersistentVolume
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: op.Claim.Namespace, Name: op.Claim.Name, UID: op.Claim.UID},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &op.Class.Name, AccessModes: pv.AccessModes, VolumeMode: pv.VolumeMode, DataSourceRef: dataSourceOf(op.Source),
		},
	}
	if ref := claim.Spec.DataSourceRef; ref != nil && *ref.Namespace == op.Claim.Namespace {
		claim.Spec.DataSource = &corev1.TypedLocalObjectReference{APIGroup: ref.APIGroup, Kind: ref.Kind, Name: ref.Name}
	}
	p := &Plan{
		Claim: claim,
		Class: &storagev1.StorageClass{
			ObjectMeta:  metav1.ObjectMeta{Name: op.Class.Name, UID: op.Class.UID},
			Provisioner: pv.Provisioner, ReclaimPolicy: pv.ReclaimPolicy, MountOptions: pv.MountOptions,
		},
		Request: op.Request, Secrets: op.Secrets, SourceUID: op.Source.UID, SelectedNode: op.SelectedNode, Reschedulable: op.Reschedulable,
		FSType: pv.FSType, VACName: pv.VACName, Labels: pv.Labels, Annotations: pv.Annotations,
		Translated: pv.Translated, Identity: pv.Identity, PublishReadonly: pv.PublishReadonly,
	}
	p.Source, _ = source.Of(claim, true) // it was allowed when the operation began
	return p
}

func dataSourceOf(s operations.Source) *corev1.TypedObjectReference {
	if s.Kind == "" {
		return nil
	}
	ref := &corev1.TypedObjectReference{Kind: s.Kind, Name: s.Name, Namespace: &s.Namespace}
	if s.Group != "" {
		ref.APIGroup = &s.Group
	}
	return ref
}

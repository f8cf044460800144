package source

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// Kind is the kind of thing that a claim is filled from.
type Kind int

const (
	// None is the zero value: an empty volume.
	None Kind = iota
	// Snapshot is a VolumeSnapshot, restored by the driver.
	Snapshot
	// Claim is another claim, cloned by the driver.
	Claim
	// Populator is any other object. Somebody else provisions the claim.
	Populator
)

// String returns the name as it appears in logs.
func (k Kind) String() string {
	switch k {
	case None:
		return "None"
	case Snapshot:
		return "Snapshot"
	case Claim:
		return "Claim"
	case Populator:
		return "Populator"
	}
	return "invalid"
}

// Reference names the object that a claim is filled from. The zero value is for a claim without one.
type Reference struct {
	// Kind is what the object means to us.
	Kind Kind
	// Group and KindName are the object's type; the group "" is the core group.
	Group, KindName string
	// Namespace is always filled in, unless the reference is zero.
	Namespace string
	// Name is never empty, unless the reference is zero.
	Name string
}

// Of returns what the claim is filled from: dataSource, else dataSourceRef. crossNamespace says that a namespace
// in the latter is allowed; whether it is also granted is for NeedsGrant and Granted to say, which must be asked
// before the reference is used, also for a Populator. Errors are Failed.
func Of(claim *corev1.PersistentVolumeClaim, crossNamespace bool) (Reference, error) {
	r := of(claim)
	if r == (Reference{}) {
		return r, nil
	}
	if named(claim) && !crossNamespace {
		return Reference{}, failed("dataSourceRef namespace %q specified but the CrossNamespaceVolumeDataSource feature is disabled", r.Namespace)
	}
	if r.Name == "" {
		return Reference{}, failed("the data source of claim %s/%s has no name", claim.Namespace, claim.Name)
	}
	if r.KindName == wellknown.KindSnapshot && r.Group != wellknown.GroupSnapshot {
		return Reference{}, failed("the claim's source does not belong to the right APIGroup: a VolumeSnapshot is expected in %q, got %q",
			wellknown.GroupSnapshot, r.Group)
	}
	return r, nil
}

// NeedsGrant reports whether the owner of the source's namespace must allow a claim in claimNamespace to use it.
func (r Reference) NeedsGrant(claimNamespace string) bool {
	return r != (Reference{}) && r.Namespace != claimNamespace
}

// Key returns the source of the claim as a key for indexes, "" when it is no VolumeSnapshot and no claim. It is
// the same as SnapshotKey or ClaimKey of the source, and does not depend on gates, grants or the claim's state:
// whoever protects sources must see every claim that may be using one.
func Key(claim *corev1.PersistentVolumeClaim) string {
	r := of(claim)
	switch {
	case r.Name == "":
	case r.Kind == Claim:
		return ClaimKey(r.Namespace, r.Name)
	case r.Kind == Snapshot, r.KindName == wellknown.KindSnapshot && r.Group == "":
		return SnapshotKey(r.Namespace, r.Name)
	}
	return ""
}

// SnapshotKey is what Key returns for claims that are filled from this VolumeSnapshot.
func SnapshotKey(namespace, name string) string {
	return wellknown.KindSnapshot + "/" + namespace + "/" + name
}

// ClaimKey is what Key returns for clones of this claim.
func ClaimKey(namespace, name string) string {
	return wellknown.KindClaim + "/" + namespace + "/" + name
}

// of returns the claim's source as it stands there, its name possibly empty.
func of(claim *corev1.PersistentVolumeClaim) Reference {
	r := Reference{Namespace: claim.Namespace}
	var group *string
	switch source, ref := claim.Spec.DataSource, claim.Spec.DataSourceRef; {
	case source != nil:
		group, r.KindName, r.Name = source.APIGroup, source.Kind, source.Name
	case ref != nil:
		group, r.KindName, r.Name = ref.APIGroup, ref.Kind, ref.Name
		if named(claim) {
			r.Namespace = *ref.Namespace
		}
	default:
		return Reference{}
	}
	if group != nil {
		r.Group = *group
	}
	switch {
	case r.KindName == wellknown.KindSnapshot && r.Group == wellknown.GroupSnapshot:
		r.Kind = Snapshot
	case r.KindName == wellknown.KindClaim && r.Group == "":
		r.Kind = Claim
	default:
		r.Kind = Populator
	}
	return r
}

// named reports whether the claim's effective source names a namespace; an empty one is like none.
func named(claim *corev1.PersistentVolumeClaim) bool {
	ref := claim.Spec.DataSourceRef
	return claim.Spec.DataSource == nil && ref != nil && ref.Namespace != nil && *ref.Namespace != ""
}

func failed(format string, args ...any) error {
	return outcome.With(outcome.Failed, fmt.Errorf(format, args...))
}

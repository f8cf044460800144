package source

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"
)

// Grants returns the ReferenceGrants of a namespace, or an error when they cannot be read. A nil Grants means that
// claims cannot use sources in other namespaces: the feature gate CrossNamespaceVolumeDataSource is off.
type Grants func(namespace string) ([]*gatewayv1beta1.ReferenceGrant, error)

// Pending reports whether a claim has no volume yet and may still be filled from its source. A phase that was never
// written means the same as Pending. A claim that is being deleted counts until it is gone.
func Pending(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Status.Phase == corev1.ClaimPending || claim.Status.Phase == ""
}

// InUse returns the first of the claims that keeps its source from being deleted, nil when none does. The claims are
// those that name the source; the caller finds them by Key. A claim keeps its source while it is Pending and may use
// it: a source in another namespace only with a ReferenceGrant. Nothing that the author of a claim can write on the
// claim replaces the grant. A claim that names itself keeps nothing.
//
// An error means that no claim is known to keep the source, but the grants that decide about one of them cannot be
// read. The source must then be treated as in use.
func InUse(claims []*corev1.PersistentVolumeClaim, grants Grants) (*corev1.PersistentVolumeClaim, error) {
	var unknown error
	for _, claim := range claims {
		used, err := keeps(claim, grants)
		if used {
			return claim, nil
		}
		if err != nil && unknown == nil {
			unknown = err
		}
	}
	return nil, unknown
}

// keeps reports whether one claim keeps its source.
func keeps(claim *corev1.PersistentVolumeClaim, grants Grants) (bool, error) {
	r := of(claim)
	itself := r.Kind == Claim && r.Namespace == claim.Namespace && r.Name == claim.Name
	if r == (Reference{}) || itself || !Pending(claim) {
		return false, nil
	}
	if !r.NeedsGrant(claim.Namespace) {
		return true, nil
	}
	if grants == nil {
		return false, nil
	}
	known, err := grants(r.Namespace)
	if err != nil {
		return false, fmt.Errorf("claim %s/%s may be using %s %s/%s: %w", claim.Namespace, claim.Name, r.KindName, r.Namespace, r.Name, err)
	}
	return Granted(r, claim.Namespace, known), nil
}

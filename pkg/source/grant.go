package source

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// CheckGrant returns nil when the claim may use the source: it is in the claim's own namespace, or one of grants
// allows it. Anything else is an error, Failed; that grants could not be read must never be passed as "none".
func CheckGrant(r Reference, claim *corev1.PersistentVolumeClaim, grants []*gatewayv1beta1.ReferenceGrant) error {
	if !r.NeedsGrant(claim.Namespace) || Granted(r, claim.Namespace, grants) {
		return nil
	}
	return failed("accessing %s/%s of %s dataSource from %s/%s isn't allowed: no ReferenceGrant in namespace %q permits it",
		r.Namespace, r.Name, r.KindName, claim.Namespace, claim.Name, r.Namespace)
}

// Granted reports whether one of grants lets claims in claimNamespace refer to the source. One grant must be in
// the source's namespace and hold both an entry for the claims and one for the source; the two lists of
// a grant are independent of each other.
func Granted(r Reference, claimNamespace string, grants []*gatewayv1beta1.ReferenceGrant) bool {
	return slices.ContainsFunc(grants, func(grant *gatewayv1beta1.ReferenceGrant) bool {
		return grant.Namespace == r.Namespace &&
			slices.ContainsFunc(grant.Spec.From, func(from gatewayv1beta1.ReferenceGrantFrom) bool {
				return from.Group == "" && from.Kind == wellknown.KindClaim && string(from.Namespace) == claimNamespace
			}) &&
			slices.ContainsFunc(grant.Spec.To, func(to gatewayv1beta1.ReferenceGrantTo) bool {
				return string(to.Group) == r.Group && string(to.Kind) == r.KindName &&
					(to.Name == nil || *to.Name == "" || string(*to.Name) == r.Name)
			})
	})
}

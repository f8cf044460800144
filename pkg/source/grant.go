package source

import (
	"slices"

	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// Granted reports whether one of grants lets claims in claimNamespace refer to the source. One grant must be in
// the source's namespace and hold both an entry for the claims and one for the source; the two lists of
// a grant are independent of each other. It is for references that need a grant, and for grants that could be read:
// an error must never be passed as "none" or taken for "no source".
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

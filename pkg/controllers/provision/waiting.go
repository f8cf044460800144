package provision

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/volume"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// Waiting returns the claims for which a volume could be created if the driver were connected, the oldest first. In node
// deployment these are the claims of this node; one for which no node is selected yet is nobody's. Safe for concurrent
// use.
func (c *Controller) Waiting() []*corev1.PersistentVolumeClaim {
	var waiting []*corev1.PersistentVolumeClaim
	for _, claim := range c.cfg.Cache.UnboundClaims() {
		selected, _ := c.cfg.Settings.selects(candidate{claim: claim, class: c.cfg.Cache.Class(volume.ClassName(claim)), existingPV: c.existingPV(claim)})
		if selected == attempt && (c.cfg.Node == nil || claim.Annotations[wellknown.AnnSelectedNode] == c.cfg.Node.Local.Name()) {
			waiting = append(waiting, claim)
		}
	}
	slices.SortFunc(waiting, func(a, b *corev1.PersistentVolumeClaim) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return waiting
}

package provision

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

// newSlow remembers what a request was made from that the driver called invalid: it is not repeated for
// --retry-interval-max, unless something of that changes. It returns nil when the class is gone: then the
// ordinary back-off has to do.
func (c *Controller) newSlow(claim *corev1.PersistentVolumeClaim, plan *Plan, secretVersion string) *slow {
	class := c.cfg.Cache.Class(volume.ClassName(claim))
	if class == nil {
		return nil
	}
	s := &slow{
		until:    time.Now().Add(c.cfg.RetryMax),
		claim:    claim,
		classUID: class.UID,
		class:    class.ResourceVersion,
	}
	if plan != nil && plan.VAC != nil {
		s.vacName, s.vac = plan.VAC.Name, plan.VAC.ResourceVersion
	}
	if plan != nil && plan.Secrets.Provisioner != nil {
		s.secretRef, s.secret = plan.Secrets.Provisioner, secretVersion
	}
	return s
}

// stillSlow reports whether the window is open and nothing has changed. What is not watched is read, once a
// step of the back-off; when it cannot be read, nothing is known to have changed.
func (c *Controller) stillSlow(ctx context.Context, s *slow, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) bool {
	if class == nil || !time.Now().Before(s.until) {
		return false
	}
	if class.UID != s.classUID || class.ResourceVersion != s.class || !sameRequest(claim, s.claim) {
		return false
	}
	if s.vacName != "" {
		vac, err := c.cfg.Client.StorageV1().VolumeAttributesClasses().Get(ctx, s.vacName, metav1.GetOptions{})
		if err == nil && vac.ResourceVersion != s.vac {
			return false
		}
	}
	if s.secretRef != nil {
		if version := c.secretVersion(ctx, s); version != "" && version != s.secret {
			return false
		}
	}
	return true
}

// secretVersion returns the resource version of the secret, empty when it cannot be read.
func (c *Controller) secretVersion(ctx context.Context, s *slow) string {
	secret, err := cluster.GetSecret(ctx, c.cfg.Client, s.secretRef.Namespace, s.secretRef.Name)
	if err != nil {
		return ""
	}
	return secret.ResourceVersion
}

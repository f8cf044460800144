package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

// inUse says that a volume is still attached: no error, just too early.
type inUse struct{ pv, node string }

func (e *inUse) Error() string {
	return fmt.Sprintf("persistentvolume %s is still attached to node %s", e.pv, e.node)
}

func asInUse(err error) (*inUse, bool) { return errors.AsType[*inUse](err) }

// callDelete checks that the volume may go and asks the driver to delete it. The driver's error is returned as
// it is; only OK is success.
func (c *Controller) callDelete(ctx context.Context, pv *corev1.PersistentVolume) error {
	asCSI := pv
	if c.cfg.Translator != nil && c.cfg.Translator.IsMigratable(pv) {
		var err error
		if asCSI, err = c.cfg.Translator.TranslateToCSI(pv); err != nil {
			return fmt.Errorf("translate PersistentVolume %s to CSI: %w", pv.Name, err)
		}
	}
	if asCSI.Spec.CSI == nil {
		return fmt.Errorf("PersistentVolume %s has no CSI source", pv.Name)
	}
	if ok, err := c.reaches(asCSI); err != nil {
		return err
	} else if !ok {
		return outcome.With(outcome.NotOurs, fmt.Errorf("the volume is not accessible from node %s", c.cfg.Node.name()))
	}
	switch has := c.cfg.Settings.Capabilities; {
	case !has.ControllerService:
		return fmt.Errorf("driver %s lacks the capability CONTROLLER_SERVICE", c.cfg.Settings.Driver)
	case !has.CreateDeleteVolume:
		return fmt.Errorf("driver %s lacks the capability CREATE_DELETE_VOLUME", c.cfg.Settings.Driver)
	}
	secrets, err := c.deletionSecret(ctx, pv, asCSI != pv)
	if err != nil {
		return err
	}
	for _, attachment := range c.cfg.Cache.AttachmentsOf(pv.Name) {
		return &inUse{pv: pv.Name, node: attachment.Spec.NodeName}
	}
	return c.cfg.Driver.DeleteVolume(c.cfg.WithMigrated(ctx, asCSI != pv), &csi.DeleteVolumeRequest{VolumeId: asCSI.Spec.CSI.VolumeHandle, Secrets: secrets})
}

// deletionSecret reads the values for DeleteVolume, nil when there are none. A secret that is gone, or that we
// may not read, does not keep the volume: only an error that may pass does.
func (c *Controller) deletionSecret(ctx context.Context, pv *corev1.PersistentVolume, migrated bool) (map[string]string, error) {
	logger := klog.FromContext(ctx)
	var class *storagev1.StorageClass
	if name := volume.DeletionClass(pv); name != "" {
		class = c.cfg.Cache.Class(name)
		if class != nil && migrated && class.Provisioner == c.cfg.Settings.InTree {
			var err error
			if class, err = c.cfg.Translator.TranslateClass(class.Provisioner, class); err != nil {
				return nil, fmt.Errorf("storage class translation of %q: %w", name, err)
			}
		}
	}
	ref, note, err := volume.DeletionSecret(volume.DeletionSecretInput{PV: pv, Class: class})
	if err != nil {
		return nil, fmt.Errorf("secret for deleting PersistentVolume %s: %w", pv.Name, err)
	}
	if note != "" {
		logger.Info("Deleting without a secret", "reason", note)
	}
	if ref == nil {
		return nil, nil //nolint:nilnil // no secret, no values
	}
	if allowed := c.cfg.DeletionSecretNamespaces; len(allowed) > 0 && !slices.Contains(allowed, ref.Namespace) {
		c.tell(pv, eventDeleteFailed(fmt.Errorf("secret %s/%s is not read: its namespace is not among --deletion-secret-namespaces; deleting without a secret", ref.Namespace, ref.Name)))
		return nil, nil //nolint:nilnil // no secret, no values
	}
	secret, err := cluster.GetSecret(ctx, c.cfg.Client, ref.Namespace, ref.Name)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		logger.Info("Deleting without the secret, which cannot be read", "secret", klog.KRef(ref.Namespace, ref.Name), "err", err)
		return nil, nil //nolint:nilnil // no secret, no values
	case err != nil:
		return nil, fmt.Errorf("read secret %s in namespace %s for deleting PersistentVolume %s: %w", ref.Name, ref.Namespace, pv.Name, err)
	}
	return values(secret), nil
}

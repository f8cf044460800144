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
	"github.com/csi-sidecars/external-provisioner/pkg/secret"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

// inUse says that a volume is still attached: no error, just too early.
type inUse struct{ pv, node string }

func (e *inUse) Error() string {
	return fmt.Sprintf("persistentvolume %s is still attached to node %s", e.pv, e.node)
}

func asInUse(err error) (*inUse, bool) { return errors.AsType[*inUse](err) }

// deletionPlan is what deleting one volume will do. It holds no secret value.
type deletionPlan struct {
	// pv is what stands for the volume, asCSI the same in its CSI form. Read-only.
	pv, asCSI *corev1.PersistentVolume
	// secret is read before the call, nil for none; refused is the one that --deletion-secret-namespaces keeps
	// from being read; note, if not empty, is why there is none where one should be; untold, if not nil, is the same
	// and worth an event.
	secret, refused *corev1.SecretReference
	note            string
	untold          error
}

func (p deletionPlan) migrated() bool { return p.asCSI != p.pv }

// request is the call, with these secret values.
func (p deletionPlan) request(secrets map[string]string) *csi.DeleteVolumeRequest {
	return &csi.DeleteVolumeRequest{VolumeId: p.asCSI.Spec.CSI.VolumeHandle, Secrets: secrets}
}

// deletionStep is one check, and what the plan gains by it. The name is for people.
type deletionStep struct {
	name string
	do   func(c *Controller, p deletionPlan) (deletionPlan, error)
}

// deletionSteps are in the order in which they count; each relies on those before it.
var deletionSteps = []deletionStep{
	{"the volume can be read as a CSI volume", (*Controller).deletionTranslated},
	{"the volume can be reached from here", (*Controller).deletionReaches},
	{"the driver deletes volumes", (*Controller).deletionCapable},
	{"the secret for the deletion can be told", (*Controller).deletionSecret},
	{"no other PersistentVolume has the volume", (*Controller).deletionUnshared},
}

// planDeletion decides how to delete the volume, and also tells how many of the deletionSteps passed. Nothing is
// called.
func (c *Controller) planDeletion(pv *corev1.PersistentVolume) (p deletionPlan, passed int, err error) {
	p = deletionPlan{pv: pv, asCSI: pv}
	for i := range deletionSteps {
		if p, err = deletionSteps[i].do(c, p); err != nil {
			return p, i, err
		}
	}
	return p, len(deletionSteps), nil
}

func (c *Controller) deletionTranslated(p deletionPlan) (deletionPlan, error) {
	if c.cfg.Translator != nil && c.cfg.Translator.IsMigratable(p.pv) {
		asCSI, err := c.cfg.Translator.TranslateToCSI(p.pv)
		if err != nil {
			return p, fmt.Errorf("translate PersistentVolume %s to CSI: %w", p.pv.Name, err)
		}
		p.asCSI = asCSI
	}
	switch csi := p.asCSI.Spec.CSI; {
	case csi == nil:
		return p, fmt.Errorf("PersistentVolume %s has no CSI source", p.pv.Name)
	case !c.cfg.Settings.known(csi.Driver):
		return p, fmt.Errorf("PersistentVolume %s is translated to a volume of driver %q, and this is driver %q", p.pv.Name, csi.Driver, c.cfg.Settings.Driver)
	}
	return p, nil
}

func (c *Controller) deletionReaches(p deletionPlan) (deletionPlan, error) {
	if ok, err := c.reaches(p.asCSI); err != nil {
		return p, err
	} else if !ok {
		return p, outcome.With(outcome.NotOurs, fmt.Errorf("the volume is not accessible from node %s", c.cfg.Node.name()))
	}
	return p, nil
}

func (c *Controller) deletionCapable(p deletionPlan) (deletionPlan, error) {
	switch has := c.cfg.Settings.Capabilities; {
	case !has.ControllerService:
		return p, fmt.Errorf("driver %s lacks the capability CONTROLLER_SERVICE", c.cfg.Settings.Driver)
	case !has.CreateDeleteVolume:
		return p, fmt.Errorf("driver %s lacks the capability CREATE_DELETE_VOLUME", c.cfg.Settings.Driver)
	}
	return p, nil
}

func (c *Controller) deletionSecret(p deletionPlan) (deletionPlan, error) {
	var class *storagev1.StorageClass
	if name := volume.DeletionClass(p.pv); name != "" {
		class = c.cfg.Cache.Class(name)
		if class != nil && p.migrated() {
			var err error
			if class, err = c.translated(class); err != nil {
				return p, fmt.Errorf("storage class translation of %q: %w", name, err)
			}
		}
	}
	input := volume.DeletionSecretInput{PV: p.pv, Class: class}
	if claim := p.pv.Spec.ClaimRef; claim != nil {
		input.Claim = c.cfg.Cache.Claim(claim.Namespace, claim.Name)
	}
	ref, note, err := volume.DeletionSecret(input)
	if errors.Is(err, secret.ErrNoAnnotation) {
		p.untold = fmt.Errorf("deleting PersistentVolume %s without a secret: %w", p.pv.Name, err)
		p.note = err.Error()
		return p, nil
	}
	if err != nil {
		return p, fmt.Errorf("secret for deleting PersistentVolume %s: %w", p.pv.Name, err)
	}
	p.secret, p.note = ref, note
	if allowed := c.cfg.DeletionSecretNamespaces; ref != nil && len(allowed) > 0 && !slices.Contains(allowed, ref.Namespace) {
		p.secret, p.refused = nil, ref
	}
	return p, nil
}

// detached returns why the volume cannot be deleted yet: it is attached; nil if it is not.
func (c *Controller) detached(pv *corev1.PersistentVolume) error {
	for _, attachment := range c.cfg.Cache.AttachmentsOf(pv.Name) {
		return attachedTo(pv, attachment)
	}
	return nil
}

// callDelete checks that the volume may go and asks the driver to delete it. The driver's error is returned as
// it is; only OK is success.
func (c *Controller) callDelete(ctx context.Context, pv *corev1.PersistentVolume) error {
	p, _, err := c.planDeletion(pv)
	if err != nil {
		return err
	}
	secrets, err := c.readDeletionSecret(ctx, p)
	if err != nil {
		return err
	}
	if err := c.detached(pv); err != nil {
		return err
	}
	if err := c.confirmDeletion(ctx, p); err != nil {
		return err
	}
	return c.cfg.Driver.DeleteVolume(c.cfg.WithMigrated(ctx, p.migrated()), p.request(secrets))
}

// readDeletionSecret reads the values for DeleteVolume, nil when there are none. A secret that is gone, or that we
// may not read, does not keep the volume: only an error that may pass does.
func (c *Controller) readDeletionSecret(ctx context.Context, p deletionPlan) (map[string]string, error) {
	logger := klog.FromContext(ctx)
	if p.note != "" {
		logger.Info("Deleting without a secret", "reason", p.note)
	}
	if p.untold != nil {
		c.tell(p.pv, eventSecretRefused(p.untold))
	}
	if p.refused != nil {
		c.tell(p.pv, eventSecretRefused(refusedSecret(p.refused)))
	}
	if p.secret == nil {
		return nil, nil //nolint:nilnil // no secret, no values
	}
	read, err := cluster.GetSecret(ctx, c.cfg.Client, p.secret.Namespace, p.secret.Name)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err):
		logger.Info("Deleting without the secret, which cannot be read", "secret", klog.KRef(p.secret.Namespace, p.secret.Name), "err", err)
		return nil, nil //nolint:nilnil // no secret, no values
	case err != nil:
		return nil, fmt.Errorf("read secret %s in namespace %s for deleting PersistentVolume %s: %w", p.secret.Name, p.secret.Namespace, p.pv.Name, err)
	}
	return values(read), nil
}

// refusedSecret says that --deletion-secret-namespaces keeps the secret from being read.
func refusedSecret(ref *corev1.SecretReference) error {
	return fmt.Errorf("secret %s/%s is not read: its namespace is not among --deletion-secret-namespaces; deleting without a secret", ref.Namespace, ref.Name)
}

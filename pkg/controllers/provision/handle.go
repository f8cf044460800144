package provision

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

// handlePage is how many PersistentVolumes are read at a time to look for a handle.
const handlePage = 500

// errVolumeInUse says that a volume belongs to another PersistentVolume: the driver has returned it a second time, because
// two claims have one volume name, or it is about to be deleted. It must not get a second one, and must not be deleted.
var errVolumeInUse = errors.New("the driver answered with a volume that is in use")

// HandleOf returns a function that returns the handle by which the driver knows the volume of a PersistentVolume, also of
// one of an in-tree plugin; translator may be nil. The handle is "" for the volume of another driver, and for one that
// cannot be translated. The function may be called concurrently if the translator may.
func HandleOf(driver string, translator Translator) func(pv *corev1.PersistentVolume) string {
	return func(pv *corev1.PersistentVolume) string {
		if pv.Spec.CSI == nil && translator != nil && translator.IsMigratable(pv) {
			asCSI, err := translator.TranslateToCSI(pv)
			if err != nil {
				return ""
			}
			pv = asCSI
		}
		if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != driver {
			return ""
		}
		return pv.Spec.CSI.VolumeHandle
	}
}

// checkUnused returns an error unless no PersistentVolume has the handle, so that the volume may be deleted for the claim
// that it was created for. The error is errVolumeInUse when one has it. The API server is asked as well: the cache may
// be behind, and a volume that is deleted by mistake is lost.
func (c *Controller) checkUnused(ctx context.Context, handle string, claimUID types.UID) error {
	for _, pv := range c.cfg.Cache.PVsByHandle(handle) {
		return usedBy(pv.Name, handle)
	}
	if name := c.creates.unsavedWith(handle, claimUID); name != "" {
		return usedBy(name, handle)
	}
	options := metav1.ListOptions{Limit: handlePage}
	for {
		page, err := c.cfg.Client.CoreV1().PersistentVolumes().List(ctx, options)
		if err != nil {
			return fmt.Errorf("look whether a PersistentVolume has volume %q: %w", handle, err)
		}
		for i := range page.Items {
			if c.handle(&page.Items[i]) == handle {
				return usedBy(page.Items[i].Name, handle)
			}
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return nil
		}
	}
}

func usedBy(pvName, handle string) error {
	return fmt.Errorf("%w: %q is the volume of PersistentVolume %s", errVolumeInUse, handle, pvName)
}

// deletionUnshared fails while the volume is also that of a PersistentVolume that is not about to be deleted with it.
func (c *Controller) deletionUnshared(p deletionPlan) (deletionPlan, error) {
	handle := p.asCSI.Spec.CSI.VolumeHandle
	var claimUID types.UID
	if ref := p.pv.Spec.ClaimRef; ref != nil {
		claimUID = ref.UID
	}
	other := c.creates.unsavedWith(handle, claimUID)
	for _, pv := range c.cfg.Cache.PVsByHandle(handle) {
		if pv.UID != p.pv.UID && !volume.WantsDelete(pv) {
			other = pv.Name
		}
	}
	if other != "" {
		return p, fmt.Errorf("volume %q is also the volume of PersistentVolume %s and is not deleted before that one is", handle, other)
	}
	return p, nil
}

// confirmDeletion is the last look before DeleteVolume: what was planned must still be so. The cache is enough right
// after the plan. When a secret was read in between, which may have waited long for the rate limit of the client, the
// API server is asked.
func (c *Controller) confirmDeletion(ctx context.Context, p deletionPlan) error {
	live, err := c.cachedPV(p.pv), error(nil)
	if p.secret != nil {
		live, err = c.livePV(ctx, p.pv)
	}
	switch {
	case err != nil:
		return err
	case live == nil:
		return outcome.With(outcome.NotOurs, errors.New("the PersistentVolume is gone"))
	case !volume.Owned(live, c.cfg.Settings.Driver, c.cfg.Settings.InTree) || !volume.WantsDelete(live):
		return outcome.With(outcome.NotOurs, errors.New("the PersistentVolume has changed, and its volume is not to be deleted any more"))
	}
	if err := c.detached(p.pv); err != nil {
		return err
	}
	_, err = c.deletionUnshared(p)
	return err
}

// cachedPV returns the PersistentVolume as the cache shows it now, nil when it shows it no more or another one of its name.
func (c *Controller) cachedPV(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	if cached := c.cfg.Cache.PV(pv.Name); cached != nil && cached.UID == pv.UID {
		return cached
	}
	return nil
}

// livePV reads the PersistentVolume from the API server. It returns nil when the object is gone, also when another one
// has its name. Roles without the verb get have list, which the caches need.
func (c *Controller) livePV(ctx context.Context, pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	pvs := c.cfg.Client.CoreV1().PersistentVolumes()
	live, err := pvs.Get(ctx, pv.Name, metav1.GetOptions{})
	if apierrors.IsForbidden(err) {
		var list *corev1.PersistentVolumeList
		list, err = pvs.List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, pv.Name).String()})
		if err == nil {
			if len(list.Items) == 0 {
				return nil, nil //nolint:nilnil // nil is how it says that the object is gone
			}
			live = &list.Items[0]
		}
	}
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil //nolint:nilnil // as above
	case err != nil:
		return nil, fmt.Errorf("read PersistentVolume %s: %w", pv.Name, err)
	case live.UID != pv.UID:
		return nil, nil //nolint:nilnil // as above
	}
	return live, nil
}

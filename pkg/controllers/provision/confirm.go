package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

// This file has the last looks before what cannot be undone: DeleteVolume, also to clean up, and a CreateVolume that may be the
// second for a claim. They come after everything that may have to wait, and they do not rely on a cache that may still show
// what was so before this process began its work.

// livePage is how many objects are read at a time.
const livePage = 500

// checkUnused returns an error unless no PersistentVolume has the handle, so that the volume may be deleted for the claim
// that it was created for. The error is errVolumeInUse when one has it. The API server is asked as well: the cache may
// be behind, and a volume that is deleted by mistake is lost.
func (c *Controller) checkUnused(ctx context.Context, handle string, claimUID types.UID) error {
	for _, pv := range c.pvsByHandle(handle) {
		return usedBy(pv.Name, handle)
	}
	if name := c.creates.unsavedWith(handle, claimUID); name != "" {
		return usedBy(name, handle)
	}
	pvs, err := c.livePVsByHandle(ctx, handle)
	if err != nil {
		return err
	}
	for _, pv := range pvs {
		return usedBy(pv.Name, handle)
	}
	return nil
}

// deletionUnshared fails while the volume is also that of a PersistentVolume that is not about to be deleted with it.
func (c *Controller) deletionUnshared(p deletionPlan) (deletionPlan, error) {
	handle := p.asCSI.Spec.CSI.VolumeHandle
	var claimUID types.UID
	if ref := p.pv.Spec.ClaimRef; ref != nil {
		claimUID = ref.UID
	}
	if name := c.creates.unsavedWith(handle, claimUID); name != "" {
		return p, sharedWith(name, handle)
	}
	return p, unshared(p, c.pvsByHandle(handle))
}

// unshared is deletionUnshared for PersistentVolumes that have the handle.
func unshared(p deletionPlan, pvs []*corev1.PersistentVolume) error {
	for _, pv := range pvs {
		if pv.UID != p.pv.UID && !volume.WantsDelete(pv) {
			return sharedWith(pv.Name, p.asCSI.Spec.CSI.VolumeHandle)
		}
	}
	return nil
}

func sharedWith(pvName, handle string) error {
	return fmt.Errorf("volume %q is also the volume of PersistentVolume %s and is not deleted before that one is", handle, pvName)
}

// confirmDeletion is the last look before DeleteVolume: what was planned must still be so. The caches are enough right after
// the plan if they have caught up. When a secret was read in between, which may have waited long for the rate limit of the
// client, the API server is asked for the PersistentVolume. What takes longest to read is read first.
func (c *Controller) confirmDeletion(ctx context.Context, p deletionPlan) error {
	handle, live := p.asCSI.Spec.CSI.VolumeHandle, p.secret != nil
	if !c.cfg.Cache.CaughtUp(cluster.PVs) {
		live = true
		pvs, err := c.livePVsByHandle(ctx, handle)
		if err == nil {
			err = unshared(p, pvs)
		}
		if err != nil {
			return err
		}
	}
	if err := c.detachedLive(ctx, p.pv); err != nil {
		return err
	}
	pv, err := c.cachedPV(p.pv), error(nil)
	if live {
		pv, err = c.livePV(ctx, p.pv)
	}
	switch {
	case err != nil:
		return err
	case pv == nil:
		return outcome.With(outcome.NotOurs, errors.New("the PersistentVolume is gone"))
	case !volume.Owned(pv, c.cfg.Settings.Driver, c.cfg.Settings.InTree), !volume.WantsDelete(pv), c.handle(pv) != handle:
		return outcome.With(outcome.NotOurs, errors.New("the PersistentVolume has changed, and its volume is not to be deleted any more"))
	}
	if err := c.detached(p.pv); err != nil {
		return err
	}
	_, err = c.deletionUnshared(p)
	return err
}

// detachedLive is detached by the API server, unless the cache is enough. Without the capability for attachments there are none.
func (c *Controller) detachedLive(ctx context.Context, pv *corev1.PersistentVolume) error {
	if !c.cfg.Settings.Capabilities.PublishUnpublish || c.cfg.Cache.CaughtUp(cluster.Attachments) {
		return nil
	}
	err := eachPage(func(options metav1.ListOptions) (string, error) {
		page, err := c.cfg.Client.StorageV1().VolumeAttachments().List(ctx, options)
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			if name := page.Items[i].Spec.Source.PersistentVolumeName; name != nil && *name == pv.Name {
				return "", attachedTo(pv, &page.Items[i])
			}
		}
		return page.Continue, nil
	})
	if _, ok := asInUse(err); ok || err == nil {
		return err
	}
	return fmt.Errorf("look whether PersistentVolume %s is attached: %w", pv.Name, err)
}

func attachedTo(pv *corev1.PersistentVolume, attachment *storagev1.VolumeAttachment) error {
	return &inUse{pv: pv.Name, node: attachment.Spec.NodeName}
}

// asItIs returns the claim, and the PersistentVolume that has the name of its own to be, as they were after this process began
// its work: from the caches when those have caught up, else from the API server. Both are nil when there is none; a claim that
// was made anew is another one.
func (c *Controller) asItIs(ctx context.Context, claim *corev1.PersistentVolumeClaim) (*corev1.PersistentVolumeClaim, *corev1.PersistentVolume, error) {
	if c.cfg.Cache.CaughtUp(cluster.Claims) && c.cfg.Cache.CaughtUp(cluster.PVs) {
		return claim, c.existingPV(claim), nil
	}
	now, err := c.cfg.Client.CoreV1().PersistentVolumeClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err), err == nil && now.UID != claim.UID:
		return nil, nil, nil
	case err != nil:
		return nil, nil, fmt.Errorf("read the claim: %w", err)
	}
	name, err := c.cfg.Settings.volumeName(claim.UID)
	if err != nil {
		return now, nil, nil //nolint:nilerr // there can be no such PersistentVolume; the plan tells the error
	}
	pv, err := c.readPV(ctx, name)
	return now, pv, err
}

// cachedPV returns the PersistentVolume as the cache shows it now, nil when it shows it no more or another one of its name.
func (c *Controller) cachedPV(pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	if cached := c.cfg.Cache.PV(pv.Name); cached != nil && cached.UID == pv.UID {
		return cached
	}
	return nil
}

// livePV reads the PersistentVolume from the API server. It returns nil when the object is gone, also when another one
// has its name.
func (c *Controller) livePV(ctx context.Context, pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error) {
	live, err := c.readPV(ctx, pv.Name)
	if err != nil || live == nil || live.UID != pv.UID {
		return nil, err
	}
	return live, nil
}

// readPV reads the PersistentVolume of that name from the API server, nil if there is none. Roles without the verb get have
// list, which the caches need.
func (c *Controller) readPV(ctx context.Context, name string) (*corev1.PersistentVolume, error) {
	pvs := c.cfg.Client.CoreV1().PersistentVolumes()
	live, err := pvs.Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsForbidden(err) {
		var list *corev1.PersistentVolumeList
		list, err = pvs.List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, name).String()})
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
		return nil, fmt.Errorf("read PersistentVolume %s: %w", name, err)
	}
	return live, nil
}

// pvsByHandle returns the PersistentVolumes in the cache for which HandleOf returns this handle, except those elsewhere.
func (c *Controller) pvsByHandle(handle string) []*corev1.PersistentVolume {
	return slices.DeleteFunc(c.cfg.Cache.PVsByHandle(handle), c.elsewhere)
}

// elsewhere reports, in node deployment, that the volume is certainly not one of this node's driver: its node cannot access
// it. Drivers that keep volumes on nodes may use a handle on each of them.
func (c *Controller) elsewhere(pv *corev1.PersistentVolume) bool {
	reaches, err := c.reaches(pv)
	return err == nil && !reaches
}

// livePVsByHandle reads from the API server the PersistentVolumes for which HandleOf returns this handle, except those
// elsewhere.
func (c *Controller) livePVsByHandle(ctx context.Context, handle string) ([]*corev1.PersistentVolume, error) {
	var found []*corev1.PersistentVolume
	err := eachPage(func(options metav1.ListOptions) (string, error) {
		page, err := c.cfg.Client.CoreV1().PersistentVolumes().List(ctx, options)
		if err != nil {
			return "", err
		}
		for i := range page.Items {
			if c.handle(&page.Items[i]) == handle && !c.elsewhere(&page.Items[i]) {
				found = append(found, page.Items[i].DeepCopy()) // it keeps no page
			}
		}
		return page.Continue, nil
	})
	if err != nil {
		return nil, fmt.Errorf("look whether a PersistentVolume has volume %q: %w", handle, err)
	}
	return found, nil
}

// eachPage calls read until there is no further page, or with an error.
func eachPage(read func(metav1.ListOptions) (next string, err error)) error {
	options := metav1.ListOptions{Limit: livePage}
	for {
		next, err := read(options)
		if err != nil || next == "" {
			return err
		}
		options.Continue = next
	}
}

package cluster

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// Claim returns a claim; nil means that the cache does not have it. Of a claim that another driver serves, or that is
// bound, it has the names, UIDs, provisioner and class annotations, our finalizers, size, mode, sources, volume and phase, and no more.
func (i *Informers) Claim(namespace, name string) *corev1.PersistentVolumeClaim {
	return asClaim(get(i.claims, namespace+"/"+name))
}

// ClaimByUID returns the claim with this UID; nil means that there is none of this driver. A claim of another driver is
// found only if it goes away, has a source or carries one of our finalizers.
func (i *Informers) ClaimByUID(uid types.UID) *corev1.PersistentVolumeClaim {
	for _, obj := range byIndex(i.claims, indexUID, string(uid)) {
		return asClaim(obj)
	}
	return nil
}

// ClaimsBySource returns the claims of all namespaces and drivers whose effective source has this key (source.Key),
// sorted by namespace and name.
func (i *Informers) ClaimsBySource(key string) []*corev1.PersistentVolumeClaim {
	objects := byIndex(i.claims, indexSource, key)
	claims := make([]*corev1.PersistentVolumeClaim, 0, len(objects))
	for _, obj := range objects {
		claims = append(claims, asClaim(obj))
	}
	slices.SortFunc(claims, func(a, b *corev1.PersistentVolumeClaim) int {
		if c := strings.Compare(a.Namespace, b.Namespace); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return claims
}

// UnboundClaims returns the claims of this driver that are not bound, in no order. It looks at all claims.
func (i *Informers) UnboundClaims() []*corev1.PersistentVolumeClaim {
	var claims []*corev1.PersistentVolumeClaim
	for _, obj := range i.claims.GetIndexer().List() {
		// Claims that are bound or another driver's are kept in another type.
		if claim, ok := obj.(*corev1.PersistentVolumeClaim); ok && claim.Spec.VolumeName == "" {
			claims = append(claims, claim)
		}
	}
	return claims
}

// PV returns a PersistentVolume; nil means that the cache does not have it. Of this driver's it has what its deletion
// needs, of another driver's name, UID, phase, driver and claimRef, and no more.
func (i *Informers) PV(name string) *corev1.PersistentVolume { return asPV(get(i.pvs, name)) }

// PVsByHandle returns the PersistentVolumes whose volume the driver knows by this handle (InformersConfig.Handle), sorted
// by name, with what PV returns of them.
func (i *Informers) PVsByHandle(handle string) []*corev1.PersistentVolume {
	var pvs []*corev1.PersistentVolume
	for _, obj := range byIndex(i.pvs, indexHandle, handle) {
		pvs = append(pvs, asPV(obj))
	}
	slices.SortFunc(pvs, func(a, b *corev1.PersistentVolume) int { return strings.Compare(a.Name, b.Name) })
	return pvs
}

// Class returns a StorageClass; nil means that the cache does not have it.
func (i *Informers) Class(name string) *storagev1.StorageClass {
	class, _ := get(i.classes, name).(*storagev1.StorageClass)
	return class
}

// Classes returns all StorageClasses, sorted by name.
func (i *Informers) Classes() []*storagev1.StorageClass {
	objects := i.classes.GetIndexer().List()
	classes := make([]*storagev1.StorageClass, 0, len(objects))
	for _, obj := range objects {
		if class, ok := obj.(*storagev1.StorageClass); ok {
			classes = append(classes, class)
		}
	}
	slices.SortFunc(classes, func(a, b *storagev1.StorageClass) int { return strings.Compare(a.Name, b.Name) })
	return classes
}

// AttachmentsOf returns the VolumeAttachments of a PersistentVolume, with name, UID, attacher, node and volume. Without
// the watch for them there are none.
func (i *Informers) AttachmentsOf(pvName string) []*storagev1.VolumeAttachment {
	if i.attachments == nil {
		return nil
	}
	var attachments []*storagev1.VolumeAttachment
	for _, obj := range byIndex(i.attachments, indexVolume, pvName) {
		if attachment, ok := obj.(*storagev1.VolumeAttachment); ok {
			attachments = append(attachments, attachment)
		}
	}
	return attachments
}

func get(c *Cache, key string) any {
	// The store of an informer never returns an error.
	obj, _, _ := c.GetIndexer().GetByKey(key)
	return obj
}

func byIndex(c *Cache, index, key string) []any {
	// The only error is an index that does not exist, and these are constants.
	objects, err := c.GetIndexer().ByIndex(index, key)
	if err != nil {
		panic(err)
	}
	return objects
}

// Handler gets changes: old is nil when the object appeared, new is nil when it is gone, neither is nil when it changed or
// at a resync. It must not block; objects are read-only. Calls of one handler do not overlap.
type Handler[T any] func(old, new T) //nolint:predeclared // old and new are what everybody calls them

// OnClaim calls handler for every claim there is, for every change, and for all of them again at each resync. Claims of
// other drivers that have no source, carry none of our finalizers and are not being deleted are left out, unless they
// become or cease to be so. It returns whether the handler has seen what was there at first.
func (i *Informers) OnClaim(handler Handler[*corev1.PersistentVolumeClaim]) (synced func() bool, err error) {
	return register(i.claims, asClaim, plain, handler)
}

// OnPV is OnClaim for the PersistentVolumes of this driver; others are left out unless they become or cease to be so.
func (i *Informers) OnPV(handler Handler[*corev1.PersistentVolume]) (synced func() bool, err error) {
	return register(i.pvs, asPV, func(obj any) bool { _, foreign := obj.(*foreignPV); return foreign }, handler)
}

// OnClass is OnClaim for StorageClasses.
func (i *Informers) OnClass(handler Handler[*storagev1.StorageClass]) (synced func() bool, err error) {
	return register(i.classes, as[*storagev1.StorageClass], nil, handler)
}

// OnAttachment is OnClaim for VolumeAttachments. Without the watch for them the handler is never called.
func (i *Informers) OnAttachment(handler Handler[*storagev1.VolumeAttachment]) (synced func() bool, err error) {
	if i.attachments == nil {
		return func() bool { return true }, nil
	}
	return register(i.attachments, as[*storagev1.VolumeAttachment], nil, handler)
}

func as[T any](obj any) T {
	t, _ := obj.(T)
	return t
}

// register connects handler to c. Objects for which dull is true on both sides of a change are not worth a call. The
// zero value of T stands for "no object"; convert must not return it for what the cache holds.
func register[T comparable](c *Cache, convert func(any) T, dull func(any) bool, handler Handler[T]) (func() bool, error) {
	if dull == nil {
		dull = func(any) bool { return false }
	}
	var none T
	registration, err := c.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if added := convert(obj); !dull(obj) && added != none {
				handler(none, added)
			}
		},
		UpdateFunc: func(before, after any) {
			if !dull(before) || !dull(after) {
				handler(convert(before), convert(after))
			}
		},
		DeleteFunc: func(obj any) {
			// When the watch missed the deletion, the last known state comes in an envelope.
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			if gone := convert(obj); !dull(obj) && gone != none {
				handler(gone, none)
			}
		},
	})
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", c.name, err)
	}
	return registration.HasSynced, nil
}

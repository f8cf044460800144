package capacity

import (
	"context"
	"errors"
	"fmt"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
)

// apply makes the changes and enters what became of them in the book. One that fails does not keep the
// others from being tried.
func (c *Controller) apply(ctx context.Context, v view, changes Changes) error {
	var errs []error
	for _, object := range changes.Delete {
		errs = append(errs, c.delete(ctx, object))
	}
	if changes.Create != nil {
		errs = append(errs, c.create(ctx, v.key, changes.Create))
	}
	if changes.Update != nil {
		errs = append(errs, c.update(ctx, v.object, changes.Update))
	}
	return errors.Join(errs...)
}

func (c *Controller) create(ctx context.Context, key Key, object *storagev1.CSIStorageCapacity) error {
	created, err := c.cfg.Objects.writer.create(ctx, object)
	if err != nil {
		return fmt.Errorf("create the capacity object of class %q in segment %q: %w", key.Class, key.Segment, err)
	}
	c.change(func(b *book) { b.created(key, created, time.Now()) })
	klog.FromContext(ctx).V(2).Info("Created capacity object", "CSIStorageCapacity", klog.KObj(created), "capacity", created.Capacity)
	return nil
}

func (c *Controller) update(ctx context.Context, base, object *storagev1.CSIStorageCapacity) error {
	if c.id.owner != nil && len(base.OwnerReferences) > 0 && !owned(base, c.id.owner) && !c.warned.owner.Swap(true) {
		klog.FromContext(ctx).Info("Capacity objects have another controlling owner, which is replaced",
			"CSIStorageCapacity", klog.KObj(base), "owner", c.id.owner.Kind+"/"+c.id.owner.Name)
	}
	updated, err := c.cfg.Objects.writer.update(ctx, object)
	if err != nil {
		if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
			c.change(func(b *book) { b.refused(object.UID) })
		}
		return fmt.Errorf("update capacity object %q: %w", object.Name, err)
	}
	c.change(func(b *book) { b.updated(base, updated, time.Now()) })
	klog.FromContext(ctx).V(2).Info("Updated capacity object", "CSIStorageCapacity", klog.KObj(updated), "capacity", updated.Capacity)
	return nil
}

// delete removes just this object, not one that was made under its name since.
func (c *Controller) delete(ctx context.Context, object *storagev1.CSIStorageCapacity) error {
	err := loop.Guard(ctx, queueName, func() error { return c.cfg.Objects.writer.delete(ctx, object.Name, object.UID) })
	// Conflict is the answer when the object of that name has another UID.
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		c.change(func(b *book) { b.kept(object.UID) })
		return fmt.Errorf("delete capacity object %q: %w", object.Name, err)
	}
	klog.FromContext(ctx).V(2).Info("Deleted capacity object", "CSIStorageCapacity", klog.KObj(object), "StorageClass", klog.KRef("", object.StorageClassName))
	return nil
}

package capacity

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/csi-sidecars/external-provisioner/pkg/volume"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// classChanged takes in a class that appeared (was is nil), changed, or is gone (class is nil).
func (c *Controller) classChanged(was, class *storagev1.StorageClass) {
	switch {
	case class == nil:
		c.change(func(b *book) { b.removeClass(was.Name) })
	case was != nil && was.ResourceVersion == class.ResourceVersion:
		// A resync changes nothing, and the poll refreshes.
	case !eligible(class, c.id.driver, c.cfg.ForImmediateBinding):
		c.change(func(b *book) { b.removeClass(class.Name) })
	default:
		var terms []corev1.TopologySelectorTerm
		if c.cfg.RespectAllowedTopologies {
			terms = class.AllowedTopologies
		}
		c.change(func(b *book) { b.setClass(class.Name, terms) })
	}
}

// objectHandler takes in capacity objects. The watch is filtered by our labels, so one that loses them
// comes as a deletion.
func (c *Controller) objectHandler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if object, ok := obj.(*storagev1.CSIStorageCapacity); ok {
				c.objectChanged(object)
			}
		},
		UpdateFunc: func(before, after any) {
			was, ok := before.(*storagev1.CSIStorageCapacity)
			object, ok2 := after.(*storagev1.CSIStorageCapacity)
			if !ok || !ok2 {
				return
			}
			// Deleted and made again under the same name, seen as one update.
			if was.UID != object.UID {
				c.change(func(b *book) { b.forget(was.UID) })
			}
			c.objectChanged(object)
		},
		DeleteFunc: func(obj any) {
			// When the watch missed the deletion, the last known state comes in an envelope.
			if unknown, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = unknown.Obj
			}
			if object, ok := obj.(*storagev1.CSIStorageCapacity); ok {
				c.change(func(b *book) { b.forget(object.UID) })
			}
		},
	}
}

func (c *Controller) objectChanged(object *storagev1.CSIStorageCapacity) {
	managed := object.Labels[wellknown.LabelDriverName] == c.id.driver &&
		object.Labels[wellknown.LabelManagedBy] == c.id.managedBy
	c.change(func(b *book) {
		if managed {
			b.observe(object)
		} else {
			b.forget(object.UID)
		}
	})
}

// request returns the question for a pair, or nil when its class is gone or not eligible any more.
func (c *Controller) request(key Key) (*csi.GetCapacityRequest, error) {
	class := c.cfg.Classes.Class(key.Class)
	if class == nil || !eligible(class, c.id.driver, c.cfg.ForImmediateBinding) {
		return nil, nil //nolint:nilnil // no class, no question
	}
	parameters, err := volume.Parameters(class.Parameters)
	if err != nil {
		return nil, fmt.Errorf("parameters of class %q: %w", key.Class, err)
	}
	return &csi.GetCapacityRequest{Parameters: parameters, AccessibleTopology: key.Segment.CSI()}, nil
}

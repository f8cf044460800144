package capacity

import (
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/tools/cache"

	"github.com/csi-sidecars/external-provisioner/pkg/volume"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// classHandler takes in classes. A resync changes nothing and is left out: the poll refreshes.
func (c *Controller) classHandler() cache.ResourceEventHandler {
	return cache.ResourceEventHandlerFuncs{
		AddFunc: func(obj any) {
			if class, ok := obj.(*storagev1.StorageClass); ok {
				c.classChanged(class)
			}
		},
		UpdateFunc: func(before, after any) {
			was, ok := before.(*storagev1.StorageClass)
			class, ok2 := after.(*storagev1.StorageClass)
			if ok && ok2 && (was.ResourceVersion != class.ResourceVersion || was.UID != class.UID) {
				c.classChanged(class)
			}
		},
		DeleteFunc: func(obj any) {
			if class, ok := unwrap[*storagev1.StorageClass](obj); ok {
				c.change(func(b *book) { b.removeClass(class.Name) })
			}
		},
	}
}

func (c *Controller) classChanged(class *storagev1.StorageClass) {
	if !eligible(class, c.id.driver, c.cfg.ForImmediateBinding) {
		c.change(func(b *book) { b.removeClass(class.Name) })
		return
	}
	var terms []corev1.TopologySelectorTerm
	if c.cfg.RespectAllowedTopologies {
		terms = class.AllowedTopologies
	}
	c.change(func(b *book) { b.setClass(class.Name, terms) })
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
			if object, ok := unwrap[*storagev1.CSIStorageCapacity](obj); ok {
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

// unwrap returns the object of a deletion, also when the cache only noticed later that it is gone.
func unwrap[T any](obj any) (T, bool) {
	if gone, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = gone.Obj
	}
	t, ok := obj.(T)
	return t, ok
}

// request returns the question for a pair, or nil when its class is gone or not eligible any more.
func (c *Controller) request(key Key) (*csi.GetCapacityRequest, error) {
	class, err := c.cfg.Classes.Lister().Get(key.Class)
	if apierrors.IsNotFound(err) {
		return nil, nil //nolint:nilnil // no class, no question
	}
	if err != nil {
		return nil, fmt.Errorf("read class %q: %w", key.Class, err)
	}
	if !eligible(class, c.id.driver, c.cfg.ForImmediateBinding) {
		return nil, nil //nolint:nilnil // as above
	}
	parameters, err := volume.Parameters(class.Parameters)
	if err != nil {
		return nil, fmt.Errorf("parameters of class %q: %w", key.Class, err)
	}
	return &csi.GetCapacityRequest{Parameters: parameters, AccessibleTopology: key.Segment.CSI()}, nil
}

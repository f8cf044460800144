package capacity

import (
	"errors"
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// generateName begins the name of each object; the server adds the rest.
const generateName = "csisc-"

// Changes are the writes that bring one pair to what it should be. Create and Update are complete objects of
// their own, nil when there is nothing to do; they never both are set. Delete lists objects that are not
// wanted. The order of the writes does not matter.
type Changes struct {
	Create, Update *storagev1.CSIStorageCapacity
	Delete         []*storagev1.CSIStorageCapacity
}

// identity is what all objects of an instance have in common.
type identity struct {
	driver, managedBy, namespace string
	owner                        *metav1.OwnerReference // nil: none
}

// room is a driver's answer.
type room struct {
	available int64
	maxSize   *int64 // nil: not reported
}

// roomIn checks an answer of the driver.
func roomIn(answer *csi.GetCapacityResponse) (room, error) {
	if answer == nil {
		return room{}, errors.New("the driver's answer to GetCapacity is empty")
	}
	r := room{available: answer.GetAvailableCapacity()}
	if r.available < 0 {
		return room{}, fmt.Errorf("the driver reports a negative available capacity: %d", r.available)
	}
	if m := answer.GetMaximumVolumeSize(); m != nil {
		size := m.GetValue()
		if size < 0 {
			return room{}, fmt.Errorf("the driver reports a negative maximum volume size: %d", size)
		}
		r.maxSize = &size
	}
	return r, nil
}

// plan returns what to do for a pair. With a nil room nothing is known of the capacity: then only surplus
// objects are deleted.
func plan(v view, id identity, r *room) Changes {
	changes := Changes{Delete: v.surplus}
	switch {
	case !v.desired || r == nil:
	case v.object == nil:
		changes.Create = newObject(v.key, id, *r)
	case !r.equals(v.object) || !owned(v.object, id.owner):
		changes.Update = v.object.DeepCopy()
		r.apply(changes.Update)
		if id.owner != nil && !owned(changes.Update, id.owner) {
			changes.Update.OwnerReferences = withOwner(changes.Update.OwnerReferences, *id.owner)
		}
	}
	return changes
}

func newObject(key Key, id identity, r room) *storagev1.CSIStorageCapacity {
	object := &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{
			GenerateName: generateName,
			Namespace:    id.namespace,
			Labels: map[string]string{
				wellknown.LabelDriverName: id.driver,
				wellknown.LabelManagedBy:  id.managedBy,
			},
		},
		// Never nil: an absent selector would mean that no node can reach the storage.
		NodeTopology:     key.Segment.Selector(),
		StorageClassName: key.Class,
	}
	if id.owner != nil {
		object.OwnerReferences = []metav1.OwnerReference{*id.owner}
	}
	r.apply(object)
	return object
}

// equals compares by value: 1Gi and 1024Mi are the same, and a missing capacity equals nothing.
func (r room) equals(object *storagev1.CSIStorageCapacity) bool {
	if object.Capacity == nil || object.Capacity.Value() != r.available {
		return false
	}
	if r.maxSize == nil || object.MaximumVolumeSize == nil {
		return r.maxSize == nil && object.MaximumVolumeSize == nil
	}
	return object.MaximumVolumeSize.Value() == *r.maxSize
}

func (r room) apply(object *storagev1.CSIStorageCapacity) {
	object.Capacity = resource.NewQuantity(r.available, resource.BinarySI)
	object.MaximumVolumeSize = nil
	if r.maxSize != nil {
		object.MaximumVolumeSize = resource.NewQuantity(*r.maxSize, resource.BinarySI)
	}
}

// owned reports whether the object needs no change for its owner's sake.
func owned(object *storagev1.CSIStorageCapacity, owner *metav1.OwnerReference) bool {
	return owner == nil || slices.ContainsFunc(object.OwnerReferences, func(ref metav1.OwnerReference) bool {
		return ref.UID == owner.UID && isController(ref)
	})
}

// withOwner returns the references with owner as the controlling one. Another controlling reference goes,
// since the API server accepts just one; so does one to the owner that does not control. The rest stays.
func withOwner(refs []metav1.OwnerReference, owner metav1.OwnerReference) []metav1.OwnerReference {
	kept := make([]metav1.OwnerReference, 0, len(refs)+1)
	for _, ref := range refs {
		if !isController(ref) && ref.UID != owner.UID {
			kept = append(kept, ref)
		}
	}
	return append(kept, owner)
}

func isController(ref metav1.OwnerReference) bool { return ref.Controller != nil && *ref.Controller }

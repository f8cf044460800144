package capacity

import (
	"cmp"
	"strings"

	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// Key names one pair of class and segment. Keys of equal pairs are equal, so work for them merges.
type Key struct {
	Class   string
	Segment topology.Segment
	// Object is set only for an object of ours whose selector stands for no segment: nothing can ever
	// want it, and it gets a key of its own to be deleted under.
	Object types.UID
}

// String returns the key as it appears in logs.
func (k Key) String() string {
	if k.Object != "" {
		return k.Class + "/object " + string(k.Object)
	}
	return k.Class + "/" + k.Segment.String()
}

func compareKeys(a, b Key) int {
	return cmp.Or(
		strings.Compare(a.Class, b.Class),
		topology.Compare(a.Segment, b.Segment),
		strings.Compare(string(a.Object), string(b.Object)),
	)
}

// keyOf returns the pair that object speaks of. Selectors are compared by meaning: an absent and an empty
// map of labels are the same, but an absent selector ("reachable from nowhere") is no segment, and neither
// is one with expressions.
func keyOf(object *storagev1.CSIStorageCapacity) Key {
	segment, ok := topology.SegmentOfSelector(object.NodeTopology)
	if !ok {
		return Key{Class: object.StorageClassName, Object: object.UID}
	}
	return Key{Class: object.StorageClassName, Segment: segment}
}

package segments

import (
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

// store is what a reflector fills: in place of keeping objects it takes what counts out of them.
type store struct {
	// apply takes in one object that was added or changed, and remove one that was deleted.
	apply, remove func(obj any)
	// replace takes in a whole list.
	replace func(list []any)
	// trim returns as much of an object as apply reads; it serves while a list is being streamed.
	trim cache.TransformFunc
}

var _ cache.TransformingStore = store{}

func (s store) Add(obj any) error    { s.apply(obj); return nil }
func (s store) Update(obj any) error { s.apply(obj); return nil }
func (s store) Delete(obj any) error { s.remove(obj); return nil }
func (s store) Resync() error        { return nil }

func (s store) Replace(list []any, _ string) error { s.replace(list); return nil }

func (s store) Transformer() cache.TransformFunc { return s.trim }

// nodeStore returns a store for Nodes, of whose labels only keys are read.
func (x *Index) nodeStore(keys map[string]bool) store {
	known := func(key string) bool { return keys[key] }
	apply := func(obj any) {
		if n, ok := obj.(*metav1.PartialObjectMetadata); ok {
			x.table.setNode(n.Name, true, topology.Restrict(n.Labels, known))
		}
	}
	return store{
		apply: func(obj any) { x.change(func() { apply(obj) }) },
		remove: func(obj any) {
			if n, ok := obj.(*metav1.PartialObjectMetadata); ok {
				x.change(func() { x.table.setNode(n.Name, false, topology.Segment{}) })
			}
		},
		replace: func(list []any) {
			x.change(func() {
				there := map[string]bool{}
				for _, obj := range list {
					if n, ok := obj.(*metav1.PartialObjectMetadata); ok {
						there[n.Name] = true
					}
					apply(obj)
				}
				for name, n := range x.table.nodes {
					if n.exists && !there[name] {
						x.table.setNode(name, false, topology.Segment{})
					}
				}
				x.nodesSynced, x.read = true, keys
			})
		},
		trim: func(obj any) (any, error) {
			n, ok := obj.(*metav1.PartialObjectMetadata)
			if !ok {
				return obj, nil
			}
			return &metav1.PartialObjectMetadata{TypeMeta: n.TypeMeta, ObjectMeta: metav1.ObjectMeta{
				Name: n.Name, ResourceVersion: n.ResourceVersion, Labels: topology.Restrict(n.Labels, known).Map(),
			}}, nil
		},
	}
}

// csiNodeStore returns a store for CSINodes, of which only the driver's entry is read.
func (x *Index) csiNodeStore() store {
	apply := func(obj any) {
		if n, ok := obj.(*storagev1.CSINode); ok {
			entry := x.entry(n)
			x.table.setCSINode(n.Name, true, entry != nil, topology.KeySet(keysOf(entry)))
		}
	}
	return store{
		apply: func(obj any) { x.change(func() { apply(obj) }) },
		remove: func(obj any) {
			if n, ok := obj.(*storagev1.CSINode); ok {
				x.change(func() { x.table.setCSINode(n.Name, false, false, nil) })
			}
		},
		replace: func(list []any) {
			x.change(func() {
				there := map[string]bool{}
				for _, obj := range list {
					if n, ok := obj.(*storagev1.CSINode); ok {
						there[n.Name] = true
					}
					apply(obj)
				}
				for name, n := range x.table.nodes {
					if n.csiNode && !there[name] {
						x.table.setCSINode(name, false, false, nil)
					}
				}
				x.csiNodesSynced = true
			})
		},
		trim: func(obj any) (any, error) {
			n, ok := obj.(*storagev1.CSINode)
			if !ok {
				return obj, nil
			}
			trimmed := &storagev1.CSINode{TypeMeta: n.TypeMeta, ObjectMeta: metav1.ObjectMeta{Name: n.Name, ResourceVersion: n.ResourceVersion}}
			if entry := x.entry(n); entry != nil {
				trimmed.Spec.Drivers = []storagev1.CSINodeDriver{{Name: entry.Name, TopologyKeys: entry.TopologyKeys}}
			}
			return trimmed, nil
		},
	}
}

// entry returns the driver's entry, nil when it is not registered.
func (x *Index) entry(n *storagev1.CSINode) *storagev1.CSINodeDriver {
	for i := range n.Spec.Drivers {
		if n.Spec.Drivers[i].Name == x.cfg.Driver {
			return &n.Spec.Drivers[i]
		}
	}
	return nil
}

func keysOf(entry *storagev1.CSINodeDriver) []string {
	if entry == nil {
		return nil
	}
	return entry.TopologyKeys
}

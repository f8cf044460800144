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

// kind is what a store does with the objects of one kind. All but trim are called with the index locked. One of them that
// panics for an object leaves it out; the others follow.
type kind[T metav1.Object] struct {
	// set takes an object over, unset its absence.
	set   func(T)
	unset func(name string)
	// there reports whether the table has an object of this kind for the node.
	there func(record) bool
	// listed is called after all objects were taken over.
	listed func()
	// trim returns what is kept of an object while lists and watches bring it.
	trim func(T) any
}

// storeOf returns the store of one kind. What is not of that kind is left out.
func storeOf[T metav1.Object](x *Index, k kind[T]) store {
	return store{
		apply: func(obj any) {
			if object, ok := obj.(T); ok {
				guard(func() { x.change(func() { k.set(object) }) })
			}
		},
		remove: func(obj any) {
			if object, ok := obj.(T); ok {
				guard(func() { x.change(func() { k.unset(object.GetName()) }) })
			}
		},
		replace: func(list []any) { x.change(func() { k.replace(x.table, list) }) },
		trim: func(obj any) (any, error) {
			if object, ok := obj.(T); ok {
				return k.trim(object), nil
			}
			return obj, nil
		},
	}
}

// replace takes a whole list over: what is not in it is gone.
func (k kind[T]) replace(t *table, list []any) {
	listed := map[string]bool{}
	for _, obj := range list {
		if object, ok := obj.(T); ok {
			guard(func() {
				listed[object.GetName()] = true
				k.set(object)
			})
		}
	}
	for name, n := range t.nodes {
		if k.there(n) && !listed[name] {
			guard(func() { k.unset(name) })
		}
	}
	k.listed()
}

// nodeStore returns a store for Nodes, of whose labels only keys are read.
func (x *Index) nodeStore(keys map[string]bool) store {
	known := func(key string) bool { return keys[key] }
	return storeOf(x, kind[*metav1.PartialObjectMetadata]{
		set: func(n *metav1.PartialObjectMetadata) {
			x.table.setNode(n.Name, true, topology.Restrict(n.Labels, known))
		},
		unset:  func(name string) { x.table.setNode(name, false, topology.Segment{}) },
		there:  func(n record) bool { return n.exists },
		listed: func() { x.nodesSynced, x.read = true, keys },
		trim: func(n *metav1.PartialObjectMetadata) any {
			return &metav1.PartialObjectMetadata{TypeMeta: n.TypeMeta, ObjectMeta: metav1.ObjectMeta{
				Name: n.Name, ResourceVersion: n.ResourceVersion, Labels: topology.Restrict(n.Labels, known).Map(),
			}}
		},
	})
}

// csiNodeStore returns a store for CSINodes, of which only the driver's entry is read.
func (x *Index) csiNodeStore() store {
	return storeOf(x, kind[*storagev1.CSINode]{
		set: func(n *storagev1.CSINode) {
			entry := x.entry(n)
			x.table.setCSINode(n.Name, true, entry != nil, topology.KeySet(keysOf(entry)))
		},
		unset:  func(name string) { x.table.setCSINode(name, false, false, nil) },
		there:  func(n record) bool { return n.csiNode },
		listed: func() { x.csiNodesSynced = true },
		trim: func(n *storagev1.CSINode) any {
			trimmed := &storagev1.CSINode{TypeMeta: n.TypeMeta, ObjectMeta: metav1.ObjectMeta{Name: n.Name, ResourceVersion: n.ResourceVersion}}
			if entry := x.entry(n); entry != nil {
				trimmed.Spec.Drivers = []storagev1.CSINodeDriver{{Name: entry.Name, TopologyKeys: entry.TopologyKeys}}
			}
			return trimmed
		},
	})
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

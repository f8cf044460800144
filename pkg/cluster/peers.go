package cluster

import (
	"context"
	"slices"
	"sync"
	"time"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
)

// DriverNodes knows which nodes have registered a driver, by their CSINodes. It reads nothing before it is first
// asked, since each node of a cluster may have one, and most never need it. Its methods may be called concurrently.
type DriverNodes struct {
	driver string
	cache  *Cache
	asked  chan struct{} // closed by the first question
	once   sync.Once
	until  time.Time // when waiting for an answer ends; set before asked is closed
}

const (
	indexDriver = "driver"
	// peersWithin is how long the first list of CSINodes may take.
	peersWithin = 5 * time.Second
)

// NewDriverNodes assembles the cache; Run lets it watch.
func NewDriverNodes(client kubernetes.Interface, driver string) (*DriverNodes, error) {
	nodes := client.StorageV1().CSINodes()
	has := func(node *storagev1.CSINode) bool {
		return slices.ContainsFunc(node.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == driver })
	}
	c, err := NewCache(CacheConfig{
		Name: "csinodes.storage.k8s.io", Example: &storagev1.CSINode{}, Client: client,
		List:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return nodes.List(ctx, o) },
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return nodes.Watch(ctx, o) },
		Trim: func(obj any) (any, error) {
			node, ok := obj.(*storagev1.CSINode)
			if !ok {
				return obj, nil
			}
			kept := &storagev1.CSINode{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion}}
			if has(node) {
				kept.Spec.Drivers = []storagev1.CSINodeDriver{{Name: driver}}
			}
			return kept, nil
		},
		Indexers: cache.Indexers{indexDriver: func(obj any) ([]string, error) {
			if node, ok := obj.(*storagev1.CSINode); ok && has(node) {
				return []string{driver}, nil
			}
			return nil, nil
		}},
	})
	if err != nil {
		return nil, err
	}
	return &DriverNodes{driver: driver, cache: c, asked: make(chan struct{})}, nil
}

// Run waits for the first question, and watches from then on, until ctx ends.
func (n *DriverNodes) Run(ctx context.Context) {
	select {
	case <-n.asked:
		n.cache.RunWithContext(ctx)
	case <-ctx.Done():
	}
}

// Ready reports whether Nodes has its answer: the nodes, or none because they cannot be read or not in time. It is
// a question, too, and becomes true within five seconds of the first.
func (n *DriverNodes) Ready() bool {
	n.once.Do(func() {
		n.until = time.Now().Add(peersWithin)
		close(n.asked)
	})
	return n.cache.HasSynced() || n.cache.LastError() != nil || !time.Now().Before(n.until)
}

// Nodes returns the names of the nodes that have the driver, in no order; none while they are not known.
func (n *DriverNodes) Nodes() []string {
	if !n.Ready() || !n.cache.HasSynced() {
		return nil
	}
	names, _ := n.cache.GetIndexer().IndexKeys(indexDriver, n.driver) // the one error is that there is no such index
	return names
}

package capacity

import (
	"context"

	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	storageclient "k8s.io/client-go/kubernetes/typed/storage/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// ObjectsConfig describes Objects. All fields are required.
type ObjectsConfig struct {
	// Client makes all calls. Its rate limit is the limit of the controller's writes.
	Client kubernetes.Interface
	// DriverName and ManagedBy are the values of the two labels that make an object ours.
	DriverName, ManagedBy string
	// Namespace is where the objects are.
	Namespace string
}

// Objects are the CSIStorageCapacity objects of one driver and instance: a cache of just these, and the
// writes. A replica that stands by may run the cache alone. The API server must serve them in storage.k8s.io/v1.
type Objects struct {
	cfg    ObjectsConfig
	cache  *cluster.Cache
	writer writer
}

// writer makes the writes in the one namespace. It returns the errors of the API server as they are.
type writer interface {
	create(ctx context.Context, object *storagev1.CSIStorageCapacity) (*storagev1.CSIStorageCapacity, error)
	update(ctx context.Context, object *storagev1.CSIStorageCapacity) (*storagev1.CSIStorageCapacity, error)
	// delete removes the object only while it has this UID.
	delete(ctx context.Context, name string, uid types.UID) error
}

// ResourceName names the objects in the words of an RBAC rule.
const ResourceName = "csistoragecapacities.storage.k8s.io"

// NewObjects assembles the cache and the client; nothing is read before Run.
func NewObjects(cfg ObjectsConfig) (*Objects, error) {
	ours := labels.Set{
		wellknown.LabelDriverName: cfg.DriverName,
		wellknown.LabelManagedBy:  cfg.ManagedBy,
	}.String()
	client := cfg.Client.StorageV1().CSIStorageCapacities(cfg.Namespace)
	o := &Objects{cfg: cfg, writer: writerFor(cfg.Client, cfg.Namespace)}
	// No resync: the poll refreshes, and nothing else is to be gained from it.
	reads := cluster.CacheConfig{
		Name: ResourceName, Client: cfg.Client, Trim: trimmed, Example: &storagev1.CSIStorageCapacity{},
		List: func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
			options.LabelSelector = ours
			return client.List(ctx, options)
		},
		Watch: func(ctx context.Context, options metav1.ListOptions) (watch.Interface, error) {
			options.LabelSelector = ours
			return client.Watch(ctx, options)
		},
	}
	var err error
	if o.cache, err = cluster.NewCache(reads); err != nil {
		return nil, err
	}
	return o, nil
}

// Run keeps the cache until ctx ends and returns soon after. It is called once.
func (o *Objects) Run(ctx context.Context) { o.cache.RunWithContext(ctx) }

// HasSynced reports whether the cache is complete. It may be called concurrently.
func (o *Objects) HasSynced() bool { return o.cache.HasSynced() }

// LastError returns what the watch failed with last, nil when it never did. It may be called concurrently.
func (o *Objects) LastError() error { return o.cache.LastError() }

// trimmed turns what the server sends into what the cache keeps: the object without its managed fields, which an
// update that lacks them leaves as they are.
func trimmed(obj any) (any, error) {
	object, ok := obj.(*storagev1.CSIStorageCapacity)
	if !ok {
		return obj, nil // a tombstone
	}
	object.ManagedFields = nil
	return object, nil
}

func writerFor(client kubernetes.Interface, namespace string) writer {
	return apiWriter{client.StorageV1().CSIStorageCapacities(namespace)}
}

type apiWriter struct {
	client storageclient.CSIStorageCapacityInterface
}

func (w apiWriter) create(ctx context.Context, object *storagev1.CSIStorageCapacity) (*storagev1.CSIStorageCapacity, error) {
	return trimAnswer(w.client.Create(ctx, object, metav1.CreateOptions{}))
}

func (w apiWriter) update(ctx context.Context, object *storagev1.CSIStorageCapacity) (*storagev1.CSIStorageCapacity, error) {
	return trimAnswer(w.client.Update(ctx, object, metav1.UpdateOptions{}))
}

func (w apiWriter) delete(ctx context.Context, name string, uid types.UID) error {
	return w.client.Delete(ctx, name, *metav1.NewPreconditionDeleteOptions(string(uid)))
}

func trimAnswer(object *storagev1.CSIStorageCapacity, err error) (*storagev1.CSIStorageCapacity, error) {
	if err != nil {
		return nil, err
	}
	object.ManagedFields = nil
	return object, nil
}

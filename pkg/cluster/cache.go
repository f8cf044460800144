package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
)

// Resync is how often handlers get every object again, besides what changes.
const Resync = 15 * time.Minute

// watchErrorEvery bounds how often one cache logs that its watch fails.
const watchErrorEvery = 30 * time.Second

// CacheConfig describes a Cache.
type CacheConfig struct {
	// Name is the resource in the words of an RBAC rule: "persistentvolumeclaims", "csinodes.storage.k8s.io". Required.
	Name string
	// Example is an empty object of the type that is watched. Required.
	Example runtime.Object
	// List and Watch read from the API server. Required.
	List  func(context.Context, metav1.ListOptions) (runtime.Object, error)
	Watch func(context.Context, metav1.ListOptions) (watch.Interface, error)
	// Client is what List and Watch read with; a fake one says here that it cannot stream a list.
	Client any
	// Trim takes from an object what nobody uses before it is kept. It owns the object and must bear its own result
	// as input. Default: drop managedFields.
	Trim cache.TransformFunc
	// Indexers are the indexes, by name. Default: none.
	Indexers cache.Indexers
	// Resync is how often handlers get everything again. Default: never.
	Resync time.Duration
}

// Cache is one watch of one kind with what it holds, and it remembers why it is not in sync. Its methods may be called concurrently.
type Cache struct {
	cache.SharedIndexInformer
	name    string
	list    func(context.Context, metav1.ListOptions) (runtime.Object, error)
	catchUp catchUp

	mu      sync.Mutex
	logger  klog.Logger
	lastErr error     // what the watch failed with last; nil when it never did
	logged  time.Time // when that was last logged
}

// NewCache assembles a cache; RunWithContext starts it.
func NewCache(cfg CacheConfig) (*Cache, error) {
	if cfg.Name == "" || cfg.Example == nil || cfg.List == nil || cfg.Watch == nil {
		return nil, errors.New("a cache needs Name, Example, List and Watch")
	}
	lw := &cache.ListWatch{ListWithContextFunc: cfg.List, WatchFuncWithContext: cfg.Watch}
	c := &Cache{name: cfg.Name, list: cfg.List}
	c.SharedIndexInformer = cache.NewSharedIndexInformerWithOptions(
		cache.ToListWatcherWithWatchListSemantics(lw, cfg.Client), cfg.Example,
		cache.SharedIndexInformerOptions{ResyncPeriod: cfg.Resync, Indexers: c.guardIndexers(cfg.Indexers), ObjectDescription: cfg.Name},
	)
	trim := cfg.Trim
	if trim == nil {
		trim = DropManagedFields
	}
	if err := c.SetTransform(c.guardTrim(trim)); err != nil {
		return nil, fmt.Errorf("cache of %s: %w", cfg.Name, err)
	}
	if err := c.SetWatchErrorHandlerWithContext(c.watchFailed); err != nil {
		return nil, fmt.Errorf("cache of %s: %w", cfg.Name, err)
	}
	return c, nil
}

// RunWithContext watches until ctx ends, and returns soon after. See loop.RunUntil for what may outlive it.
func (c *Cache) RunWithContext(ctx context.Context) {
	c.mu.Lock()
	c.logger = klog.FromContext(ctx)
	c.mu.Unlock()
	loop.RunUntil(ctx, c.SharedIndexInformer.RunWithContext)
}

// DropManagedFields is the least that every cache leaves out.
func DropManagedFields(obj any) (any, error) {
	if object, ok := obj.(metav1.Object); ok {
		object.SetManagedFields(nil)
	}
	return obj, nil
}

// watchFailed keeps the error for the report, and logs it now and then.
func (c *Cache) watchFailed(ctx context.Context, _ *cache.Reflector, err error) {
	switch {
	case errors.Is(err, io.EOF), apierrors.IsResourceExpired(err), apierrors.IsGone(err):
		return // a watch ends like this in normal life
	}
	c.mu.Lock()
	c.lastErr = err
	now := time.Now()
	quiet := now.Sub(c.logged) < watchErrorEvery
	if !quiet {
		c.logged = now
	}
	c.mu.Unlock()
	logger := klog.FromContext(ctx)
	if quiet {
		logger.V(4).Info("Watch fails", "resource", c.name, "reason", err.Error())
		return
	}
	logger.Info("Watch fails and is tried again", "resource", c.name, "reason", err.Error(), "advice", advice(c.name, err))
}

// LastError returns what the watch failed with last, nil when it never did. After a later success it stays.
func (c *Cache) LastError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lastErr
}

// advice says what an operator can do about the failure of a watch.
func advice(resource string, err error) string {
	switch {
	case err == nil:
		return "none: the API server has not answered yet"
	case apierrors.IsForbidden(err):
		return fmt.Sprintf("grant the service account the verbs list and watch on %s", resource)
	case apierrors.IsUnauthorized(err):
		return "check the credentials"
	case apierrors.IsNotFound(err):
		return fmt.Sprintf("the API server does not serve %s: install its CRD or upgrade the cluster", resource)
	}
	return "check that the API server can be reached"
}

package cluster

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
)

// AddEventHandler is that of the informer, with two differences. An object that was deleted and made anew under its name
// while the watch was interrupted, which the informer tells as one update, is told as the deletion of the one and the
// addition of the other. And a panic of the handler is recovered, so that the next object is told: see loop.Guard.
func (c *Cache) AddEventHandler(handler cache.ResourceEventHandler) (cache.ResourceEventHandlerRegistration, error) {
	return c.SharedIndexInformer.AddEventHandler(&eventHandler{c, handler})
}

// eventHandler stands between the informer and a handler.
type eventHandler struct {
	cache *Cache
	next  cache.ResourceEventHandler
}

var _ cache.ResourceEventHandler = (*eventHandler)(nil)

// OnAdd passes on an object that appeared.
func (h *eventHandler) OnAdd(obj any, isInInitialList bool) {
	h.cache.guard(func() { h.next.OnAdd(obj, isInInitialList) })
}

// OnUpdate passes on a change of one object, and tells two objects from each other.
func (h *eventHandler) OnUpdate(before, after any) {
	if before == after || identity(before) == identity(after) {
		h.cache.guard(func() { h.next.OnUpdate(before, after) })
		return
	}
	h.OnDelete(before)
	h.OnAdd(after, false)
}

// OnDelete passes on an object that is gone.
func (h *eventHandler) OnDelete(obj any) {
	h.cache.guard(func() { h.next.OnDelete(obj) })
}

// identity returns the UID of what a cache holds; "" when it has none.
func identity(obj any) types.UID {
	object, err := meta.Accessor(obj)
	if err != nil {
		return ""
	}
	return object.GetUID()
}

// guard calls f and recovers a panic.
func (c *Cache) guard(f func()) {
	c.mu.Lock()
	logger := c.logger
	c.mu.Unlock()
	// Informers call handlers, transforms and index functions without a context.
	ctx := klog.NewContext(context.Background(), logger) //nolint:forbidigo // there is none
	loop.GuardFunc(ctx, c.name, f)
}

// guardTrim returns trim; an object that it panics for is kept as it is then.
func (c *Cache) guardTrim(trim cache.TransformFunc) cache.TransformFunc {
	return func(obj any) (trimmed any, err error) {
		trimmed = obj
		c.guard(func() { trimmed, err = trim(obj) })
		return trimmed, err
	}
}

// guardIndexers returns indexers; an object that one panics for is not in that index.
func (c *Cache) guardIndexers(indexers cache.Indexers) cache.Indexers {
	guarded := cache.Indexers{}
	for name, index := range indexers {
		guarded[name] = func(obj any) (keys []string, err error) {
			c.guard(func() { keys, err = index(obj) })
			return keys, err
		}
	}
	return guarded
}

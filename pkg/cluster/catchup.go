package cluster

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/resourceversion"
	"k8s.io/klog/v2"
)

// Resource is one of the caches of Informers whose content irreversible steps depend on.
type Resource int

// The resources of Informers.CaughtUp.
const (
	Claims Resource = iota
	PVs
	Attachments
)

// catchUpRetry is the pause after a failed read of the current version.
const catchUpRetry = time.Second

// catchUp compares what is in the store of a cache with a version that the API server had after the work of this process
// began. What the store showed before may be old by any time: the watch of a standby may have been broken. The zero value has
// not caught up. Its methods may be called concurrently.
type catchUp struct {
	mu      sync.Mutex
	version string // what the API server had; "" until that is read
	done    bool
}

// aim takes the version that the API server has now.
func (u *catchUp) aim(version string) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.version, u.done = version, false
}

// reached reports whether the store has had at least that version, which stored returns the version of; "" if that is not
// known. What cannot be compared is not reached.
func (u *catchUp) reached(stored func() string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.done {
		order, err := resourceversion.CompareResourceVersion(stored(), u.version)
		u.done = err == nil && order >= 0
	}
	return u.done
}

// CatchUp reads from the API server which version each cache must have stored for CaughtUp, and tries again until it has
// them all or ctx ends. It is called when this process begins to do what only one may do at a time, so that whatever others
// did before is older than those versions.
func (i *Informers) CatchUp(ctx context.Context) {
	var reading sync.WaitGroup
	for _, c := range []*Cache{i.claims, i.pvs, i.attachments} {
		if c != nil {
			reading.Go(func() { c.readVersion(ctx) })
		}
	}
	reading.Wait()
}

// readVersion is CatchUp for one cache.
func (c *Cache) readVersion(ctx context.Context) {
	for {
		version, err := c.currentVersion(ctx)
		if err == nil {
			c.catchUp.aim(version)
			return
		}
		if ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).V(2).Info("Cannot read how new the cache must be, deciding by live reads until then", "resource", c.name, "reason", err.Error())
		select {
		case <-ctx.Done():
			return
		case <-time.After(catchUpRetry):
		}
	}
}

// currentVersion returns the resource version that the API server has now. Without a version in the request, the answer is
// not from before the request.
func (c *Cache) currentVersion(ctx context.Context) (string, error) {
	list, err := c.list(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		return "", err
	}
	accessor, err := meta.ListAccessor(list)
	if err != nil {
		return "", fmt.Errorf("list of %s: %w", c.name, err)
	}
	return accessor.GetResourceVersion(), nil
}

// CaughtUp reports whether the cache has stored everything that happened before CatchUp was called. While it has not, an
// irreversible step reads from the API server what it depends on. Nobody waits for it: a quiet resource may get its next
// version from a bookmark after a minute. A cache that is not kept has caught up.
func (i *Informers) CaughtUp(resource Resource) bool {
	c := map[Resource]*Cache{Claims: i.claims, PVs: i.pvs, Attachments: i.attachments}[resource]
	return c == nil || c.catchUp.reached(c.GetIndexer().LastStoreSyncResourceVersion)
}

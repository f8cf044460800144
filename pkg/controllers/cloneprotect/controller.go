package cloneprotect

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
)

// Claims is the cache of claims; *cluster.Informers is one.
type Claims interface {
	// Claim returns a claim, nil when the cache does not have it.
	Claim(namespace, name string) *corev1.PersistentVolumeClaim
	// ClaimsBySource returns the claims of all namespaces whose source has this key.
	ClaimsBySource(key string) []*corev1.PersistentVolumeClaim
	// OnClaim registers a handler for all changes.
	OnClaim(cluster.Handler[*corev1.PersistentVolumeClaim]) (synced func() bool, err error)
}

var _ Claims = (*cluster.Informers)(nil)

// Outstanding knows the creates of this process that may still be running in the driver.
type Outstanding interface {
	// ForSource says whether one of them reads the source with this key (source.ClaimKey).
	ForSource(key string) bool
}

// Config describes a Controller.
type Config struct {
	// Claims is the cache of claims. Required.
	Claims Claims
	// Client writes claims. Required.
	Client kubernetes.Interface
	// Outstanding protects sources of creates whose claim is gone. Default: there are none.
	Outstanding Outstanding
	// Grants reads the ReferenceGrants that let claims of other namespaces be clones of a source. Default: nil, no claim
	// of another namespace may be; for the gate CrossNamespaceVolumeDataSource.
	Grants source.Grants
	// Threads is how many sources are worked on at once; --cloning-protection-threads. Zero means never.
	Threads int
	// RetryStart and RetryMax bound the back-off; --retry-interval-start and -max. Required.
	RetryStart, RetryMax time.Duration
	// Spread delays each look at a source by a random time up to this, so that of the instances on many nodes
	// one writes and the others find it done; for node deployment. Default: none.
	Spread time.Duration
}

// Controller releases the sources of clones.
type Controller struct {
	cfg  Config
	loop *loop.Loop[types.NamespacedName]
}

// New checks cfg and assembles the controller.
func New(cfg Config) (*Controller, error) {
	if cfg.Claims == nil || cfg.Client == nil {
		return nil, errors.New("cloneprotect: Claims and Client are required")
	}
	c := &Controller{cfg: cfg}
	var err error
	// The queue of the claims has the name "claims"; its metrics are not to be mixed with these.
	c.loop, err = loop.New(loop.Config[types.NamespacedName]{
		Name: "cloneprotection", Workers: cfg.Threads, Process: c.process,
		RetryStart: cfg.RetryStart, RetryMax: cfg.RetryMax,
	})
	if err != nil {
		return nil, fmt.Errorf("cloneprotect: %w", err)
	}
	return c, nil
}

// Run works until stop has ended, finishes what is at hand with work, and returns.
func (c *Controller) Run(stop, work context.Context) error {
	if _, err := c.cfg.Claims.OnClaim(c.changed); err != nil {
		return fmt.Errorf("cloneprotect: %w", err)
	}
	c.loop.Run(stop, work)
	return nil
}

// changed brings a source to a worker: the claim itself when it waits to be released, and the source of a claim that
// may have been the last one to need it.
func (c *Controller) changed(before, after *corev1.PersistentVolumeClaim) {
	if after != nil && protected(after) {
		c.enqueue(types.NamespacedName{Namespace: after.Namespace, Name: after.Name})
	}
	if needed := before != nil && source.Pending(before); !needed || (after != nil && source.Pending(after)) {
		return
	}
	if ref, err := source.Of(before, true); err == nil && ref.Kind == source.Claim {
		name := types.NamespacedName{Namespace: ref.Namespace, Name: ref.Name}
		if origin := c.cfg.Claims.Claim(name.Namespace, name.Name); origin != nil && protected(origin) {
			c.enqueue(name)
		}
	}
}

func (c *Controller) enqueue(name types.NamespacedName) {
	if c.cfg.Spread > 0 {
		c.loop.AddAfter(name, rand.N(c.cfg.Spread)) //nolint:gosec // spreading writes needs no secrecy
		return
	}
	c.loop.Add(name)
}

// process releases one source, or leaves it to the event that frees it. The back-off is only a safety net.
func (c *Controller) process(ctx context.Context, name types.NamespacedName) loop.Verdict {
	logger := klog.FromContext(ctx)
	claim := c.cfg.Claims.Claim(name.Namespace, name.Name)
	if claim == nil || !protected(claim) {
		return loop.Done()
	}
	key := source.ClaimKey(name.Namespace, name.Name)
	clone, err := source.InUse(c.cfg.Claims.ClaimsBySource(key), c.cfg.Grants)
	switch {
	case err != nil:
		logger.Error(err, "Source is kept because it cannot be told whether a clone of it needs it", "PVC", klog.KObj(claim))
		return loop.Again()
	case clone != nil:
		logger.V(4).Info("Source is kept because a clone of it is not bound", "PVC", klog.KObj(claim), "clone", klog.KObj(clone))
		return loop.Again()
	}
	if c.cfg.Outstanding != nil && c.cfg.Outstanding.ForSource(key) {
		logger.V(4).Info("Source is kept because a volume is being copied from it", "PVC", klog.KObj(claim))
		// The claim of that create may be gone, so no event will tell of its end.
		return loop.Busy()
	}
	err = c.release(ctx, claim)
	switch {
	case err == nil:
		logger.V(2).Info("Source of clones released", "PVC", klog.KObj(claim))
		return loop.Done()
	case errors.Is(err, cluster.ErrGone):
		return loop.Done()
	}
	logger.Error(err, "Source of clones cannot be released", "PVC", klog.KObj(claim))
	return loop.Again()
}

package provision

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/topology"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

const (
	// savers is how many unsaved PersistentVolumes are retried at once, and saveRetry… how fast.
	savers         = 4
	saveRetryStart = 5 * time.Millisecond
	saveRetryMax   = 30 * time.Second
	// lockedRetry is when a volume that another worker holds is looked at again.
	lockedRetry = 100 * time.Millisecond
	// cacheLag is when to look again for what was written and is not in the cache yet.
	cacheLag = time.Second
)

// Controller provisions and deletes volumes. Make one with New.
type Controller struct {
	cfg     Config
	metrics *metrics
	quiet   *quiet // nil without --quiet-events
	creates *creates
	// operations records what is in flight; recovered is what an earlier process left and no worker has taken up yet.
	operations operationStore
	recovered  recoveredOperations
	deletions  deletions
	locks      volumeLocks
	slots      slots // to work on claims: CreateWorkers of them
	encoder    topology.Encoder
	handle     func(*corev1.PersistentVolume) string // HandleOf this driver

	pvAccess   *cluster.Access // to persistentvolumes
	finalizers *cluster.PVFinalizers
	upkeep     *upkeep

	claims        *loop.Loop[types.UID] // keyed by claim UID: a claim made anew under an old name is new work
	sourceLimiter *limiter              // calls for volumes from one source; nil for no bound
	// recoveryLimiter bounds how many operations of earlier processes are replayed at once.
	recoveryLimiter *limiter
	volumes         *loop.Loop[string]    // keyed by PersistentVolume name
	unsaved         *loop.Loop[types.UID] // keyed by claim UID: two PersistentVolumes to be may have one name

	releases  *releases
	snapshots *loop.Loop[types.NamespacedName] // those of releases
}

// New checks cfg and assembles the controller; nothing is called or watched before Run.
func New(cfg Config) (*Controller, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	c := &Controller{cfg: cfg, handle: HandleOf(cfg.Settings.Driver, cfg.Translator), creates: newCreates(), slots: newSlots(cfg.CreateWorkers), releases: &releases{due: map[types.NamespacedName]types.UID{}}}
	var err error
	if c.metrics, err = newMetrics(cfg.Registerer, c.countOutstanding, cfg.Cache); err != nil {
		return nil, fmt.Errorf("provision: register metrics: %w", err)
	}
	if c.operations, err = newOperationStore(cfg.Operations, c); err != nil {
		return nil, fmt.Errorf("provision: %w", err)
	}
	if cfg.QuietEvents {
		c.quiet = newQuiet(c.tellStill)
	}
	c.claims, err = loop.New(loop.Config[types.UID]{
		Name: "claims", Workers: cfg.CreateWorkers, Process: c.syncClaim, Gate: c.claimsGate, RetryStart: cfg.RetryStart, RetryMax: cfg.RetryMax,
	})
	if err != nil {
		return nil, fmt.Errorf("provision: %w", err)
	}
	c.recoveryLimiter = newLimiter(max(1, cfg.CreateWorkers/2), c.claims.Add)
	c.sourceLimiter = newLimiter(cfg.MaxCreatesPerSource, c.claims.Add)
	if err := c.sourceLimiter.register(cfg.Registerer); err != nil {
		return nil, fmt.Errorf("provision: register metrics: %w", err)
	}
	c.volumes, err = loop.New(loop.Config[string]{
		Name: "volumes", Workers: cfg.DeleteWorkers, Process: c.syncVolume, Gate: cfg.Gate, RetryStart: cfg.RetryStart, RetryMax: cfg.RetryMax,
	})
	if err != nil {
		return nil, fmt.Errorf("provision: %w", err)
	}
	c.unsaved, err = loop.New(loop.Config[types.UID]{
		Name: "unsavedpvs", Workers: savers, Process: c.syncUnsaved, RetryStart: saveRetryStart, RetryMax: saveRetryMax,
	})
	if err != nil {
		return nil, fmt.Errorf("provision: %w", err)
	}
	c.pvAccess = cluster.NewAccess(cfg.BackgroundClient, cluster.PVResource())
	c.finalizers = cluster.NewPVFinalizers(c.pvAccess)
	if c.upkeep, err = newUpkeep(cfg, c.syncFinalizer); err != nil {
		return nil, fmt.Errorf("provision: %w", err)
	}
	c.snapshots, err = loop.New(loop.Config[types.NamespacedName]{
		Name: "snapshotprotection", Workers: 1, Process: c.syncRelease, RetryStart: cfg.RetryStart, RetryMax: cfg.RetryMax,
	})
	if err != nil {
		return nil, fmt.Errorf("provision: %w", err)
	}
	return c, nil
}

func (c *Controller) countOutstanding() float64 {
	return float64(len(c.creates.where(func(cr create) bool { return cr.proto.unanswered })))
}

// Run provisions and deletes until stop ends. Then it takes no new work, and returns when what is in flight has
// come to an end, or is recorded for the next process, or work has ended too: work is the context of everything that must outlive
// stop. It is called once.
func (c *Controller) Run(stop, work context.Context) error {
	logger := klog.FromContext(stop)
	if err := c.listen(); err != nil {
		return fmt.Errorf("provision: %w", err)
	}
	c.finalizers.Ask(stop) // before the first PersistentVolume is created
	logger.Info("Provisioning", "driver", c.cfg.Settings.Driver, "createWorkers", c.cfg.CreateWorkers, "deleteWorkers", c.cfg.DeleteWorkers)

	recording, recorded := context.WithCancel(work)
	var records sync.WaitGroup
	records.Go(func() {
		for recording.Err() == nil { // again only after a panic
			loop.GuardFunc(work, "operations", func() { c.operations.Run(recording) })
		}
	})
	var working sync.WaitGroup
	working.Go(func() { c.claims.Run(stop, work) })
	working.Go(func() { c.volumes.Run(stop, work) })
	working.Go(func() { c.unsaved.Run(stop, work) })
	working.Go(func() { c.snapshots.Run(stop, work) })
	working.Go(func() { c.upkeep.queue.Run(stop, stop) }) // a stop waits for none of it
	working.Go(func() { c.finalizers.Run(stop, c.wakeRefused) })
	<-stop.Done()
	c.sourceLimiter.drain()
	c.recoveryLimiter.drain()
	worked := make(chan struct{})
	go func() { working.Wait(); close(worked) }()
	c.drain(work, worked)
	<-worked
	c.quiet.end()
	c.endBeginnings()
	c.flushOperations(work)
	recorded()
	records.Wait()
	c.report(work)
	return nil
}

// readyTimeout bounds how long claims wait until it is known what earlier processes left. After that, what waits to be
// recorded tells why.
const readyTimeout = 5 * time.Second

// claimsGate blocks while no claim may be worked on.
func (c *Controller) claimsGate(ctx context.Context) error {
	if c.cfg.Gate != nil {
		if err := c.cfg.Gate(ctx); err != nil {
			return err
		}
	}
	waiting, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	c.operations.Ready(waiting) // operations of earlier processes come before new ones from the same source
	return ctx.Err()
}

// flushTimeout bounds how long a stop waits for the Leases of operations that have ended. One that still says such an
// operation costs the next process a look at its PersistentVolume.
const flushTimeout = 2 * time.Second

func (c *Controller) flushOperations(work context.Context) {
	ctx, cancel := context.WithTimeout(work, flushTimeout)
	defer cancel()
	c.operations.Flush(ctx)
}

// listen registers the handlers, and from here on the queues fill.
func (c *Controller) listen() error {
	_, errClass := c.cfg.Events.OnClass(c.onClass)
	_, errAttachment := c.cfg.Events.OnAttachment(c.onAttachment)
	_, errPV := c.cfg.Events.OnPV(c.onPV)
	_, errClaim := c.cfg.Events.OnClaim(c.onClaim)
	return errors.Join(errClass, errAttachment, errPV, errClaim)
}

// onClaim brings claims to the queue that may be ours, or of which something is remembered.
func (c *Controller) onClaim(old, now *corev1.PersistentVolumeClaim) {
	c.wakeRelease(old, now)
	if now == nil {
		c.claims.Forget(old.UID)
		c.metrics.claims.forget(old.UID)
		if c.cfg.Node != nil {
			c.cfg.Node.Race.Forget(old.UID)
		}
		if cr, ok := c.creates.get(old.UID); ok && !cr.outstanding() {
			c.claims.Add(old.UID)
		}
		c.settleClaim(old.UID)
		return
	}
	if now.Spec.VolumeName != "" {
		c.settleClaim(now.UID)
	}
	_, remembered := c.creates.get(now.UID)
	_, marked := c.formerMarkerOf(now)
	if !remembered && !marked && (now.Spec.VolumeName != "" || !c.cfg.Settings.ours(now)) {
		return
	}
	c.claims.Add(now.UID)
}

// onPV brings PersistentVolumes to the queue that may be ours.
func (c *Controller) onPV(old, now *corev1.PersistentVolume) {
	if now != nil {
		if volume.Owned(now, c.cfg.Settings.Driver, c.cfg.Settings.InTree) {
			c.volumes.Add(now.Name)
			if volume.FinalizerUpkeep(now) != volume.KeepFinalizer {
				c.upkeep.queue.Add(now.Name)
			}
		}
		return
	}
	c.volumes.Forget(old.Name)
	c.upkeep.forget(old)
	c.quiet.forget(old.UID)
	c.deletions.forget(old.UID)
	// A claim that found its PersistentVolume there and was not bound to it has nobody else to wake it.
	if ref := old.Spec.ClaimRef; ref != nil {
		if claim := c.cfg.Cache.ClaimByUID(ref.UID); claim != nil && claim.Spec.VolumeName == "" && c.cfg.Settings.ours(claim) {
			c.claims.Add(ref.UID)
		}
	}
}

// onClass wakes the claims that wait for a change of their class.
func (c *Controller) onClass(old, now *storagev1.StorageClass) {
	if now == nil {
		c.metrics.forgetClass(old.Name)
		return
	}
	for _, uid := range c.creates.where(func(cr create) bool {
		return (cr.slow != nil || cr.recovered != nil || cr.classMissing) && volume.ClassName(cr.claim) == now.Name
	}) {
		c.claims.Add(uid)
	}
}

// onAttachment wakes a PersistentVolume whose attachment has gone.
func (c *Controller) onAttachment(old, now *storagev1.VolumeAttachment) {
	if now == nil && old != nil && old.Spec.Source.PersistentVolumeName != nil {
		c.volumes.Add(*old.Spec.Source.PersistentVolumeName)
	}
}

// ForSource reports whether a create from the source with that source.Key is outstanding in this process, also one that an
// earlier process left; the claim that it is for may be gone. It is true until it is known what was left. Safe for
// concurrent use.
func (c *Controller) ForSource(key string) bool {
	return !c.operations.IsReady() || c.recovered.fromSource(key) || len(c.creates.usedBy(key)) > 0
}

package provision

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/operations"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/trace"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

// operationStore records operations; see operations.Store, which is one.
type operationStore interface {
	Run(ctx context.Context)
	Begin(op operations.Operation) operations.Status
	End(claim types.UID)
	Withdraw(claim types.UID)
	Ended(claim types.UID) bool
	Check(ctx context.Context, claim types.UID) error
	Flush(ctx context.Context)
	Ready(ctx context.Context)
	IsReady() bool
}

// unrecorded is the operationStore that records nothing.
type unrecorded struct{}

func (unrecorded) Run(ctx context.Context)                { <-ctx.Done() }
func (unrecorded) End(types.UID)                          {}
func (unrecorded) Withdraw(types.UID)                     {}
func (unrecorded) Ended(types.UID) bool                   { return true }
func (unrecorded) Check(context.Context, types.UID) error { return nil }
func (unrecorded) Flush(context.Context)                  {}
func (unrecorded) Ready(context.Context)                  {}
func (unrecorded) IsReady() bool                          { return true }
func (unrecorded) Begin(operations.Operation) operations.Status {
	return operations.Status{State: operations.Unprotected}
}

// newOperationStore returns a store that tells c of changes, or one that records nothing if cfg is nil.
func newOperationStore(cfg *operations.Config, c *Controller) (operationStore, error) {
	if cfg == nil {
		return unrecorded{}, nil
	}
	with := *cfg
	with.Listener = operationListener{c}
	store, err := operations.New(with)
	if err != nil {
		return nil, err
	}
	if c.cfg.Registerer != nil {
		if err := store.Register(c.cfg.Registerer); err != nil {
			return nil, fmt.Errorf("register metrics of operations: %w", err)
		}
	}
	return store, nil
}

// operationListener brings claims to the queue whose operations have changed.
type operationListener struct{ c *Controller }

// Changed implements operations.Listener.
func (l operationListener) Changed(claim types.UID) {
	l.c.claims.Add(claim)
	for _, name := range l.c.deletions.where(func(d deletion) bool { return d.awaits == claim }) {
		l.c.volumes.Add(name)
	}
}

// Recovered implements operations.Listener.
func (l operationListener) Recovered(op operations.Operation) {
	l.c.recovered.put(op)
	l.c.sourceLimiter.expectBusy(op.Claim.UID, source.Key(planOf(op).Claim)) // the driver may be at work on it
	l.c.claims.Add(op.Claim.UID)
}

// Reported implements operations.Listener.
func (l operationListener) Reported(lease *coordinationv1.Lease, reason error) {
	l.c.cfg.Recorder.Eventf(lease, corev1.EventTypeWarning, "OperationNotReplayed",
		"The CreateVolume operation in this Lease is not finished by driver %s: %v. Look for its volume in the storage system, then delete the Lease", l.c.cfg.Settings.Driver, reason)
}

// beginning is a create whose operation is being recorded: no call was made for it yet.
type beginning struct {
	// secret is what the call will be made with, nil for none. It is kept for as long as the Lease is written, not longer.
	secret *corev1.Secret
	// start is when the attempt began.
	start time.Time
	// span is that of the attempt, nil without tracing. It goes on while the Lease is written.
	span *trace.Span
	// told is why the operation is not recorded yet, as the user was last told; empty for nothing.
	told string
}

// begin prepares the call of a plan and asks for its operation to be recorded. The claim's lock is held, as for all below.
func (c *Controller) begin(ctx context.Context, cr create, start time.Time) loop.Verdict {
	secret, res := c.prepare(ctx, &cr)
	switch {
	case res.stopped:
		return loop.Again()
	case res.err != nil:
		return c.conclude(ctx, cr, cr.plan, res)
	}
	cr.beginning = &beginning{secret: secret, start: start, span: trace.Current(ctx)}
	c.creates.put(cr)
	return c.proceed(ctx, cr, cr.claim)
}

// goOn is proceed for a create that was put off.
func (c *Controller) goOn(ctx context.Context, cr create, claim *corev1.PersistentVolumeClaim) loop.Verdict {
	span := cr.beginning.span
	defer span.End()
	return c.proceed(span.Within(ctx), cr, claim)
}

// proceed makes the first call of a create when its operation is recorded, and starts over when the claim is not any more
// what the plan was made for. claim is nil when it is gone.
func (c *Controller) proceed(ctx context.Context, cr create, claim *corev1.PersistentVolumeClaim) loop.Verdict {
	if !c.stillPlanned(cr.plan, claim) {
		c.giveUpBeginning(cr)
		return loop.After(0)
	}
	switch status := c.operations.Begin(operationOf(cr.plan)); status.State {
	case operations.Recorded:
		cr.recorded = true
	case operations.Unprotected:
		cr.recorded = false
		if status.Err != nil && !errors.Is(status.Err, cluster.ErrNotGranted) { // the store tells of a right that is missing
			c.tell(cr.claim, eventUnprotected(status.Err))
		}
	case operations.Waiting, operations.Recovered: // Changed or Recovered brings the claim back
		c.tellWaiting(ctx, cr, status.Err)
		cr.beginning.span.GoOn()
		return loop.Parked()
	case operations.Lost, operations.Forgotten: // no call was made
		c.giveUpBeginning(cr)
		return loop.Again()
	}
	began := *cr.beginning
	cr.beginning = nil
	return c.carryOut(ctx, cr, began.secret, began.start)
}

// stillPlanned reports whether a plan of which no call was made is still right. What takes long is the API server, which
// also shows changes late.
func (c *Controller) stillPlanned(p *Plan, claim *corev1.PersistentVolumeClaim) bool {
	if claim == nil || claim.DeletionTimestamp != nil || claim.Spec.VolumeName != "" || !sameRequest(claim, p.Claim) {
		return false
	}
	class := c.cfg.Cache.Class(volume.ClassName(claim))
	return class != nil && class.UID == p.Class.UID
}

// giveUpBeginning forgets a create of which no call was made.
func (c *Controller) giveUpBeginning(cr create) {
	c.operations.Withdraw(cr.claim.UID)
	c.creates.drop(cr.claim.UID)
}

// tellWaiting tells why an operation is not recorded yet, each reason once. A nil err needs no words.
func (c *Controller) tellWaiting(ctx context.Context, cr create, err error) {
	if err == nil || cr.beginning.told == err.Error() {
		return
	}
	klog.FromContext(ctx).V(2).Info("The operation is not recorded yet, the driver is not called", "err", err)
	told := *cr.beginning
	told.told = err.Error()
	cr.beginning = &told
	c.creates.put(cr)
	c.metrics.failed(cr.claim, reasonNotRecorded)
	c.tell(cr.claim, eventFailed(fmt.Errorf("record the operation in a Lease before the driver is called: %w", err)))
}

// endBeginnings forgets the creates of which no call was made, when no worker is left: the next process begins them anew.
func (c *Controller) endBeginnings() {
	for _, uid := range c.creates.where(func(cr create) bool { return cr.beginning != nil }) {
		if cr, ok := c.creates.get(uid); ok {
			cr.beginning.span.End()
			c.giveUpBeginning(cr)
		}
	}
}

// checkOperation reads the Lease of an operation before the next try. It returns false with what follows when there must be
// none: a person has ended the operation, another process drives it, or it cannot be told.
func (c *Controller) checkOperation(ctx context.Context, cr create) (loop.Verdict, bool) {
	err := c.operations.Check(ctx, cr.claim.UID)
	switch {
	case err == nil:
		return loop.Verdict{}, true
	case errors.Is(err, operations.ErrForgotten):
		klog.FromContext(ctx).Info("The operation was ended by hand, its volume is left to whoever ended it", "driver", c.cfg.Settings.Driver, "volume", cr.volumeName(), "volumeHandle", cr.volumeID)
		c.tell(cr.claim, eventForgotten(c.cfg.Settings.Driver, cr.volumeName(), cr.volumeID))
	case errors.Is(err, operations.ErrLost):
		klog.FromContext(ctx).Info("Another process has taken the operation over", "volume", cr.volumeName())
	default:
		klog.FromContext(ctx).Info("Cannot read the Lease of the operation, trying again", "volume", cr.volumeName(), "err", err.Error())
		return loop.Again(), false
	}
	c.operations.End(cr.claim.UID)
	c.creates.drop(cr.claim.UID)
	return loop.After(0), false
}

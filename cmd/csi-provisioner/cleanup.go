package main

import (
	"context"
	"time"

	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/controllers/capacity"
	"github.com/csi-sidecars/external-provisioner/pkg/controllers/nodecleanup"
	"github.com/csi-sidecars/external-provisioner/pkg/operations"
	"github.com/csi-sidecars/external-provisioner/pkg/process"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// The lease of the clean-up is slow: the instances of all nodes watch it, and nobody is in a hurry.
const (
	cleanupLease = time.Minute
	cleanupRenew = 45 * time.Second
	cleanupRetry = 15 * time.Second
	// cleanupDrain is for the write at hand.
	cleanupDrain = 10 * time.Second
)

// cleanUpNodes adds the clean-up after nodes to what runs in the background, when it is wanted: of the instances of
// all nodes the one that holds a lease of its own does it.
func (r *components) cleanUpNodes() error {
	if !r.cfg.Node.Cleanup {
		return nil
	}
	nodes, err := nodecleanup.New(nodecleanup.Config{
		Cache: r.informers, Client: r.api.clients.Background, Recorder: r.events.Recorder(wellknown.EventComponent),
		Driver: r.name, InTree: r.inTree,
	})
	if err != nil {
		return err
	}
	leases, err := operations.NewSweeper(operations.SweeperConfig{
		Leases: r.api.clients.Background.CoordinationV1().Leases(r.cfg.Election.Namespace), Nodes: r.api.clients.Metadata, Driver: r.name,
	})
	if err != nil {
		return err
	}
	turns := []controller{nodes, leases}
	if r.cfg.Capacity.Enabled {
		objects, err := capacity.NewSweeper(capacity.SweeperConfig{
			Client: r.api.clients.Capacity, Metadata: r.api.clients.Metadata, DriverName: r.name,
			Namespace: r.cfg.Capacity.Namespace,
		})
		if err != nil {
			return err
		}
		turns = append(turns, objects)
	}
	lease := r.cleanupLease()
	if _, err := process.NewLeader(lease); err != nil {
		return err
	}
	r.background = append(r.background, forever("node cleanup", func(ctx context.Context) {
		if r.informers.WaitForSync(ctx) != nil {
			return // the main line says so
		}
		takeTurns(ctx, lease, func(stop, work context.Context) error { return runAll(stop, work, turns) })
	}))
	return nil
}

// cleanupLease describes the lease of the clean-up, which is not that of the leader. Its contenders spread, since there is
// one on each node.
func (r *components) cleanupLease() process.LeaderConfig {
	e := r.cfg.Election
	lock := process.LeaseName(r.name) + "-cleanup"
	return process.LeaderConfig{
		Leases: r.api.clients.Lease.CoordinationV1(), Lock: lock, Namespace: e.Namespace, Identity: r.holder.Identity(), Replaces: r.holder.Replaces,
		LeaseDuration: cleanupLease, RenewDeadline: cleanupRenew, RetryPeriod: cleanupRetry, Spread: cleanupRetry,
		DrainTimeout: cleanupDrain, Labels: e.Labels,
		Events: r.events.QuietRecorder(process.EventComponent(lock, r.holder.Pod())),
	}
}

// takeTurns does work whenever this process holds the lease, until ctx ends. To lose it costs nothing: the next
// holder goes on, and this process contends again.
func takeTurns(ctx context.Context, lease process.LeaderConfig, work func(stop, work context.Context) error) {
	for ctx.Err() == nil {
		leader, err := process.NewLeader(lease)
		if err == nil {
			err = leader.Run(ctx, work)
		}
		if err == nil || ctx.Err() != nil {
			return
		}
		klog.FromContext(ctx).Error(err, "The clean-up after nodes has stopped here, contending again", "after", lease.RetryPeriod)
		select {
		case <-ctx.Done():
		case <-time.After(lease.RetryPeriod):
		}
	}
}

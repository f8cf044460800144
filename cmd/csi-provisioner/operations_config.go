package main

import (
	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/operations"
	"github.com/csi-sidecars/external-provisioner/pkg/process"
)

// operationsConfig describes the Leases of operations, but for who listens. They are in the namespace of the leader lease,
// also without leader election.
func (r *components) operationsConfig() *operations.Config {
	e := r.cfg.Election
	return &operations.Config{
		Leases:    r.api.clients.Lease.CoordinationV1().Leases(e.Namespace),
		Rights:    cluster.NewNamespacedAccess(r.api.clients.Background, coordinationv1.Resource("leases"), e.Namespace),
		LeaseName: process.LeaseName(r.name), Driver: r.name, Node: r.cfg.Node.Name,
		Identity: r.holder.Identity(), SamePod: r.holder.Replaces, Exclusive: e.Enabled,
		ReadOnly: !r.cfg.Work.OperationLeases, Labels: e.Labels,
	}
}

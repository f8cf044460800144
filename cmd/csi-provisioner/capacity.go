package main

import (
	"context"
	"fmt"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/component-base/metrics/legacyregistry"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/controllers/capacity"
	"github.com/csi-sidecars/external-provisioner/pkg/nodelocal"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// publishCapacity builds the controller of CSIStorageCapacity objects; nil when it is not wanted. It asks the API
// server for the owner of the objects.
func (r *components) publishCapacity(ctx context.Context) (*capacity.Controller, error) {
	cfg := r.cfg.Capacity
	if !cfg.Enabled {
		return nil, nil //nolint:nilnil // not wanted
	}
	if !r.driver.Identity().Controller.Has(csi.ControllerServiceCapability_RPC_GET_CAPACITY) {
		klog.FromContext(ctx).Info("Warning about storage capacity: the driver does not claim GET_CAPACITY, it is asked for its room all the same")
	}
	clients := r.api.clients
	owner, err := cluster.Owner(ctx, cluster.OwnerConfig{
		Metadata: clients.Metadata, Discovery: clients.Capacity.Discovery(), Namespace: cfg.Namespace, Pod: cfg.PodName, Level: cfg.OwnerLevel,
	})
	if err != nil {
		return nil, fmt.Errorf("storage capacity: %w", err)
	}
	objects, err := capacity.NewObjects(capacity.ObjectsConfig{ //nolint:contextcheck // an index of a cache has no context
		Client: clients.Capacity, DriverName: r.name, Namespace: cfg.Namespace,
		ManagedBy: nodelocal.ManagedBy(wellknown.ManagedByBase, r.cfg.Node.Name),
	})
	if err != nil {
		return nil, fmt.Errorf("storage capacity: %w", err)
	}
	r.informers.Require(capacity.ResourceName, objects.HasSynced, objects.LastError)
	r.background = append(r.background, forever("capacity objects", objects.Run))
	metrics, err := capacity.NewMetrics(legacyregistry.Register)
	if err != nil {
		return nil, fmt.Errorf("storage capacity: %w", err)
	}
	return capacity.New(capacity.Config{
		Driver: r.driver, Segments: r.segments(), Classes: r.informers, Objects: objects, Owner: owner,
		PollInterval: cfg.Poll, Threads: cfg.Workers, ForImmediateBinding: cfg.ImmediateBinding,
		RespectAllowedTopologies: cfg.RespectAllowedTopologies,
		RetryStart:               r.cfg.Work.RetryStart, RetryMax: r.cfg.Work.RetryMax,
		Gate: r.gate, Metrics: metrics,
	})
}

func (r *components) segments() capacity.Segments {
	if r.fixed != nil {
		return r.fixed
	}
	return r.index
}

package main

import (
	"context"
	"math/rand/v2"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/controllers/provision"
	"github.com/csi-sidecars/external-provisioner/pkg/nodelocal"
	"github.com/csi-sidecars/external-provisioner/pkg/segments"
)

// nodeDeployment makes this the instance of its driver's node; nil in central mode.
func (r *components) nodeDeployment(ctx context.Context) (*provision.NodeDeployment, error) {
	if !r.cfg.Node.Enabled {
		return nil, nil //nolint:nilnil // central mode
	}
	return r.serveNode(ctx, r.driver.Identity().Node, r.driver)
}

// serveNode makes this the instance of the node that info is about.
func (r *components) serveNode(ctx context.Context, info *csi.NodeGetInfoResponse, room provision.RoomDriver) (*provision.NodeDeployment, error) {
	logger := klog.FromContext(ctx)
	local := nodelocal.NewLocal(r.name, r.cfg.Node.Name, info)
	for _, warning := range local.Warnings(r.has.Topology) {
		logger.Info("Warning about node deployment", "warning", warning)
	}
	logger.Info("Serving one node", "node", klog.KRef("", local.Name()), "nodeID", info.GetNodeId(), "topology", local.Topology().GetSegments())
	race, err := nodelocal.NewRace(nodelocal.RaceConfig{Base: r.cfg.Node.BaseDelay, Max: r.cfg.Node.MaxDelay, Random: rand.Float64})
	if err != nil {
		return nil, err
	}
	r.fixed = segments.NewFixed(local.Name(), local.Topology())
	return &provision.NodeDeployment{Local: local, Race: race, Room: room, ImmediateBinding: r.cfg.Node.ImmediateBinding}, nil
}

// watchTopology builds the index over Nodes and CSINodes, where something needs it.
func (r *components) watchTopology() (err error) {
	if r.cfg.Node.Enabled || (!r.has.Topology && !r.cfg.Capacity.Enabled) {
		return nil
	}
	r.index, err = segments.New(segments.Config{Driver: r.name, Client: r.api.clients.Core, Metadata: r.api.clients.Metadata})
	if err != nil {
		return err
	}
	r.informers.Require("nodes and csinodes.storage.k8s.io", r.index.HasSynced, r.index.LastError)
	r.background = append(r.background, forever("topology", r.index.Run))
	return nil
}

func (r *components) topologies() provision.Topologies {
	if r.fixed != nil {
		return r.fixed
	}
	return r.index
}

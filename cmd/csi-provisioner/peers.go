package main

import (
	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/controllers/provision"
)

// watchPeers lets the node know the others, where it competes with them. Nothing is read before there is a claim to
// compete for.
func (r *components) watchPeers(node *provision.NodeDeployment) error {
	if node == nil || !node.ImmediateBinding {
		return nil
	}
	peers, err := cluster.NewDriverNodes(r.api.clients.Core, r.name)
	if err != nil {
		return err
	}
	node.Peers = peers
	r.background = append(r.background, forever("peers", peers.Run))
	return nil
}

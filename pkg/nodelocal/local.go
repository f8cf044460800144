package nodelocal

import (
	"maps"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Local is what the driver of this node says about it, frozen for the life of the process: a change needs a
// restart. It is immutable.
type Local struct {
	node     string
	driver   string
	nodeID   string
	topology *csi.Topology
}

// NewLocal takes the answer of one NodeGetInfo call; it keeps a copy.
func NewLocal(driver, node string, info *csi.NodeGetInfoResponse) *Local {
	l := &Local{node: node, driver: driver, nodeID: info.GetNodeId()}
	if t := info.GetAccessibleTopology(); t != nil {
		l.topology = &csi.Topology{Segments: maps.Clone(t.GetSegments())}
	}
	return l
}

// Name returns the name of the node.
func (l *Local) Name() string { return l.node }

// Topology returns the topology that the driver reported, nil when it reported none. It must not be changed.
func (l *Local) Topology() *csi.Topology { return l.topology }

// Node returns a new Node object as far as topology is concerned: its labels are the segments that the driver
// reported, and nothing else may be read from it.
func (l *Local) Node() *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: l.node, Labels: maps.Clone(l.topology.GetSegments())}}
}

// CSINode returns a new CSINode object with just this driver, its keys sorted.
func (l *Local) CSINode() *storagev1.CSINode {
	return &storagev1.CSINode{
		ObjectMeta: metav1.ObjectMeta{Name: l.node},
		Spec: storagev1.CSINodeSpec{Drivers: []storagev1.CSINodeDriver{{
			Name: l.driver, NodeID: l.nodeID, TopologyKeys: slices.Sorted(maps.Keys(l.topology.GetSegments())),
		}}},
	}
}

// Warnings returns what the operator should know at start, none if all is well: without a topology of the node
// nobody can tell whose volume is whose.
func (l *Local) Warnings(topologySupported bool) []string {
	switch {
	case !topologySupported:
		return []string{"Topology is not supported or switched off: every node deletes every volume of the driver, and volumes have no node affinity"}
	case l.topology == nil:
		return []string{"NodeGetInfo returned no accessible topology: every node deletes every volume of the driver, and claims with a selected node cannot be provisioned"}
	case len(l.topology.GetSegments()) == 0:
		return []string{"NodeGetInfo returned an accessible topology without segments: claims with a selected node cannot be provisioned, and volumes with a node affinity are not deleted"}
	}
	return nil
}

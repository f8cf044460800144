package provision

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/nodelocal"
	"github.com/csi-sidecars/external-provisioner/pkg/topology"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// RoomDriver is asked whether this node has room.
type RoomDriver interface {
	GetCapacity(ctx context.Context, req *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error)
}

// Peers tells which nodes have the driver. Its methods may be called concurrently.
type Peers interface {
	// Ready reports whether Nodes says all that it ever will; it becomes true within seconds of the first call.
	Ready() bool
	// Nodes returns the names of the nodes that registered the driver, none when they cannot be read.
	Nodes() []string
}

// NodeDeployment makes a Controller serve one node only.
type NodeDeployment struct {
	// Local is what the driver says about this node. Required.
	Local *nodelocal.Local
	// Race spreads the instances that compete for one claim. Required.
	Race *nodelocal.Race
	// Peers are the nodes that may take a claim; nil: not known, and the nodes' first waits are random.
	Peers Peers
	// Room is asked before this node takes a claim. Required, but to explain: nil is not asked then.
	Room RoomDriver
	// ImmediateBinding lets this node take claims of classes that wait for no scheduler
	// (--node-deployment-immediate-binding).
	ImmediateBinding bool
}

// stand is how this node stands to a claim.
type stand struct {
	verdict nodelocal.Verdict
	// unreachable is why the class rules this node out, where nothing else did; nil otherwise.
	unreachable error
}

// standTo decides how this node stands to the claim; only called in node deployment.
func (c *Controller) standTo(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) stand {
	node := c.cfg.Node
	question := nodelocal.Question{
		Node:             node.Local.Name(),
		SelectedNode:     claim.Annotations[wellknown.AnnSelectedNode],
		Class:            class,
		ImmediateBinding: node.ImmediateBinding,
	}
	if c.cfg.Topologies != nil {
		question.Reachable = func() error {
			translated, err := c.translated(class)
			if err != nil {
				return nil //nolint:nilerr // the owner reports what is wrong with the class
			}
			_, err = c.cfg.Topologies.Require(ctx, c.topologyRequest(claim, translated, placement{node: node.Local.Name()}))
			return err
		}
	}
	verdict, err := nodelocal.Judge(question)
	return stand{verdict: verdict, unreachable: err}
}

// own decides whether this node serves the claim. It returns true when it does; otherwise the verdict says when
// to look again. A node that wins a claim writes its name on it, and the event of that brings the claim back.
func (c *Controller) own(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) (bool, loop.Verdict) {
	node := c.cfg.Node
	if node == nil {
		return true, loop.Done()
	}
	s := c.standTo(ctx, claim, class)
	if s.unreachable != nil {
		klog.FromContext(ctx).V(4).Info("This node is not among the allowed ones", "err", s.unreachable)
	}
	switch s.verdict {
	case nodelocal.Owned:
		node.Race.Forget(claim.UID)
		return true, loop.Done()
	case nodelocal.NotOurs:
		node.Race.Forget(claim.UID)
		c.metrics.ignored(claim, unservedNode)
		return false, loop.Done()
	case nodelocal.Compete:
	}
	if wait := node.enter(claim.UID, class); wait > 0 {
		return false, loop.After(wait)
	}
	return false, c.compete(ctx, claim, class)
}

// peersPoll is how often is looked whether the peers are known.
const peersPoll = 50 * time.Millisecond

// enter takes the claim into the race, once the order of the nodes is known, and returns how long to wait. Which nodes
// a class with allowed topologies admits only they know themselves, so their waits are random.
func (n *NodeDeployment) enter(uid types.UID, class *storagev1.StorageClass) time.Duration {
	if n.Race.Has(uid) || n.Peers == nil || len(class.AllowedTopologies) > 0 {
		return n.Race.Wait(uid, time.Now())
	}
	if !n.Peers.Ready() {
		return peersPoll
	}
	return n.Race.Enter(uid, time.Now(), nodelocal.OrderOf(uid, n.name(), n.Peers.Nodes()))
}

// compete tries to become the owner, if there is room here.
func (c *Controller) compete(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) loop.Verdict {
	node, logger := c.cfg.Node, klog.FromContext(ctx)
	asking, cancel := loop.UntilStop(ctx, 0)
	defer cancel()
	room := c.hasRoom(asking, claim, class)
	if asking.Err() != nil {
		return loop.Again() // A stop waits for no answer; the next process asks anew.
	}
	if !room {
		wait := node.Race.Again(claim.UID, time.Now())
		logger.V(4).Info("Not enough room on this node", "after", wait)
		return loop.After(max(wait, c.cfg.RetryStart))
	}
	var lost bool
	name := types.NamespacedName{Namespace: claim.Namespace, Name: claim.Name}
	_, err := cluster.UpdateClaim(ctx, c.cfg.Client, name, claim.UID, func(live *corev1.PersistentVolumeClaim) bool {
		lost = live.Annotations[wellknown.AnnSelectedNode] != "" || live.Spec.VolumeName != "" || live.DeletionTimestamp != nil
		if lost {
			return false
		}
		if live.Annotations == nil {
			live.Annotations = map[string]string{}
		}
		live.Annotations[wellknown.AnnSelectedNode] = node.Local.Name()
		return true
	})
	switch {
	case errors.Is(err, cluster.ErrGone) || lost:
		node.Race.Forget(claim.UID)
		return loop.Done()
	case err != nil:
		wait := node.Race.Again(claim.UID, time.Now())
		logger.Error(err, "Cannot become the owner of the claim, trying again", "node", node.Local.Name(), "after", wait)
		if !apierrors.IsConflict(err) { // else another node was faster
			c.tell(claim, eventFailed(fmt.Errorf("select node %q for the claim: %w", node.Local.Name(), err)))
		}
		return loop.After(max(wait, c.cfg.RetryStart))
	}
	node.Race.Forget(claim.UID)
	logger.V(2).Info("Took the claim for this node", "node", node.Local.Name())
	return loop.Done()
}

// hasRoom asks the driver; nothing is written for that, and nothing read that the question does not need: all nodes ask.
// Whatever cannot be told counts as room: the owner reports what is wrong.
func (c *Controller) hasRoom(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) bool {
	request, err := roomRequest(c.gatherForRoom(ctx, claim, class), c.cfg.Settings)
	if err != nil {
		return true
	}
	size := request.GetCapacityRange().GetRequiredBytes()
	if size == 0 {
		return true
	}
	for _, where := range nodelocal.Probes(request.GetAccessibilityRequirements(), c.cfg.Node.Local.Topology()) {
		answer, err := c.cfg.Node.Room.GetCapacity(ctx, &csi.GetCapacityRequest{
			VolumeCapabilities: request.GetVolumeCapabilities(),
			Parameters:         request.GetParameters(),
			AccessibleTopology: where,
		})
		if err != nil {
			klog.FromContext(ctx).V(2).Info("Cannot tell the room on this node, trying all the same", "err", err)
			return true
		}
		if nodelocal.Enough(size, answer) {
			return true
		}
	}
	return false
}

// gatherForRoom is gather for this node, as far as roomRequest needs it.
func (c *Controller) gatherForRoom(ctx context.Context, claim *corev1.PersistentVolumeClaim, class *storagev1.StorageClass) Facts {
	where := placement{node: c.cfg.Node.Local.Name()}
	f := c.remembered(claim, class, where)
	if c.cfg.Settings.GrowToSourceSize && f.SourceErr == nil {
		c.gatherSource(ctx, &f)
	}
	c.gatherPlace(ctx, &f, where)
	return f
}

// roomRequest makes those steps of a plan that say how much room is asked for, and where. The claim's annotations and
// labels stay out: room is a matter of the class, as in what is published of it. A source that cannot be used is for the
// owner to report; without it the claim's own size counts.
func roomRequest(f Facts, s Settings) (*csi.CreateVolumeRequest, error) {
	p := newPlan(f, s)
	for _, do := range []func(Facts, Settings, *Plan) error{classTranslated, named, described, sized, placed, parametersStripped} {
		if err := do(f, s, p); err != nil {
			return nil, err
		}
	}
	if s.GrowToSourceSize {
		_ = contentFound(f, s, p)
	}
	return p.Request, nil
}

// reaches reports whether this instance deletes the volume: always in central mode, else if its node can access it.
func (c *Controller) reaches(pv *corev1.PersistentVolume) (bool, error) {
	if c.cfg.Node == nil {
		return true, nil
	}
	return topology.Accessible(pv.Spec.NodeAffinity, c.cfg.Node.Local.Topology())
}

func (n *NodeDeployment) name() string {
	if n == nil {
		return ""
	}
	return n.Local.Name()
}

package operations

import (
	"context"
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/metadata"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

const (
	defaultSweepEvery = 5 * time.Minute
	// missesBeforeSweep is by how many sweeps in a row a node must have been missed: it may be about to come back.
	missesBeforeSweep = 2
	// componentSweep is the name of the Sweeper in the metric of panics.
	componentSweep = "operations sweep"
)

var nodesResource = corev1.SchemeGroupVersion.WithResource("nodes")

// SweeperConfig describes a Sweeper. Leases, Nodes and Driver are required.
type SweeperConfig struct {
	// Leases are those of the driver's namespace.
	Leases coordinationclient.LeaseInterface
	// Nodes lists the Nodes.
	Nodes metadata.Interface
	// Driver is the CSI driver's name.
	Driver string
	// Interval is the pause between two sweeps. Default: five minutes. The Leases of a node stay for up to two of them
	// after it has gone.
	Interval time.Duration
}

// Sweeper deletes, in node deployment, the Leases of nodes that are gone for good: no process will ever use them, and the
// volume of an operation that they say is gone with its node. One Sweeper does it for all nodes; the caller sees to it that
// there is one.
type Sweeper struct {
	cfg SweeperConfig
	// missed: Lease of a node that is not there → sweeps in a row that missed the node.
	missed map[types.UID]int
}

// NewSweeper checks cfg. Nothing is read before Run.
func NewSweeper(cfg SweeperConfig) (*Sweeper, error) {
	if cfg.Leases == nil || cfg.Nodes == nil || cfg.Driver == "" {
		return nil, errors.New("a sweeper of operation Leases needs Leases, Nodes and Driver")
	}
	if cfg.Interval <= 0 {
		cfg.Interval = defaultSweepEvery
	}
	return &Sweeper{cfg: cfg, missed: map[types.UID]int{}}, nil
}

// Run sweeps until stop ends; a deletion in flight gets the context work. It may be called again after it has returned.
func (s *Sweeper) Run(stop, work context.Context) error {
	clear(s.missed)
	ticker := time.NewTicker(s.cfg.Interval)
	defer ticker.Stop()
	for {
		if err := loop.Guard(work, componentSweep, func() error { return s.sweep(stop, work) }); err != nil && stop.Err() == nil {
			klog.FromContext(work).Error(err, "Cannot look for operation Leases of nodes that are gone")
		}
		select {
		case <-stop.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// sweep looks once. An error deletes nothing.
func (s *Sweeper) sweep(stop, work context.Context) error {
	leases, err := s.leasesOfNodes(stop)
	if err != nil || len(leases) == 0 {
		clear(s.missed)
		return err
	}
	nodes, err := s.nodes(stop)
	if err != nil {
		return err
	}
	missed := make(map[types.UID]int, len(leases))
	var failures loop.Failures
	for i := range leases {
		lease := &leases[i]
		if nodes[lease.Labels[wellknown.LabelOperationsNode]] {
			continue
		}
		if missed[lease.UID] = s.missed[lease.UID] + 1; missed[lease.UID] >= missesBeforeSweep && stop.Err() == nil {
			failures.Add(loop.Guard(work, componentSweep, func() error { return s.remove(work, lease) }))
		}
	}
	s.missed = missed
	return failures.Err()
}

// leasesOfNodes returns the Leases of the instances of all nodes.
func (s *Sweeper) leasesOfNodes(ctx context.Context) ([]coordinationv1.Lease, error) {
	var leases []coordinationv1.Lease
	opts := metav1.ListOptions{LabelSelector: names{driver: s.cfg.Driver}.selector() + "," + wellknown.LabelOperationsNode, Limit: listPage}
	for {
		page, err := s.cfg.Leases.List(ctx, opts)
		if err != nil {
			return nil, fmt.Errorf("list Leases: %w", err)
		}
		leases = append(leases, page.Items...)
		if opts.Continue = page.Continue; opts.Continue == "" {
			return leases, nil
		}
	}
}

// nodes returns the labels that the Leases of the nodes have that there are.
func (s *Sweeper) nodes(ctx context.Context) (map[string]bool, error) {
	nodes, err := s.cfg.Nodes.Resource(nodesResource).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	// A cluster without any node has lost them, or hides them from us: neither is a reason to delete.
	if len(nodes.Items) == 0 {
		return nil, errors.New("list nodes: there is none")
	}
	labels := make(map[string]bool, len(nodes.Items))
	for i := range nodes.Items {
		labels[hashOf(nodes.Items[i].Name)] = true
	}
	return labels, nil
}

func (s *Sweeper) remove(ctx context.Context, lease *coordinationv1.Lease) error {
	err := s.cfg.Leases.Delete(ctx, lease.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &lease.UID, ResourceVersion: &lease.ResourceVersion}})
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete Lease %s: %w", lease.Name, err)
	}
	klog.FromContext(ctx).V(2).Info("Deleted the operation Lease of a node that is gone", "lease", klog.KObj(lease), "operation", lease.Annotations[wellknown.AnnOperation])
	return nil
}

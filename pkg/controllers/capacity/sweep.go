package capacity

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/nodelocal"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

const (
	defaultSweepEvery = 5 * time.Minute
	// A node must have been missed by this many sweeps in a row: it may be about to come back.
	missesBeforeSweep = 2
	// baseHash stands in the label for the part of its base that a longer name of a node leaves no room for.
	baseHash = "53f40b57"
	// componentSweep is the name of the sweeper in the metric of panics.
	componentSweep = "capacity sweep"
)

var nodesResource = corev1.SchemeGroupVersion.WithResource("nodes")

// SweeperConfig describes a Sweeper. All fields are required unless they say otherwise.
type SweeperConfig struct {
	// Client lists and deletes the objects. It should have the limits of capacity writes.
	Client kubernetes.Interface
	// Metadata lists the Nodes.
	Metadata metadata.Interface
	// DriverName and Namespace say which objects.
	DriverName, Namespace string
	// Interval is the pause between two sweeps. Default: five minutes. The objects of a node stay for up to two of
	// them after it has gone.
	Interval time.Duration
}

// Sweeper removes, in node deployment, the objects of nodes that are gone. Each node's instance manages its own
// objects under a label of its own, and their owner is normally the DaemonSet of all: so nobody else would ever
// remove them. One Sweeper does it for all nodes; the caller sees to it that there is one.
type Sweeper struct {
	cfg SweeperConfig
	// missed: managed-by label of a node that is not there → sweeps in a row that missed it.
	missed map[string]int
}

// NewSweeper checks cfg and assembles the sweeper.
func NewSweeper(cfg SweeperConfig) (*Sweeper, error) {
	if cfg.Client == nil || cfg.Metadata == nil || cfg.DriverName == "" || cfg.Namespace == "" {
		return nil, errors.New("a sweeper of capacity objects needs Client, Metadata, DriverName and Namespace")
	}
	if cfg.Interval <= 0 {
		cfg.Interval = defaultSweepEvery
	}
	return &Sweeper{cfg: cfg, missed: map[string]int{}}, nil
}

// Run sweeps until stop ends; a deletion at hand gets the context work. It may be called again after it has
// returned, as by a process that gets the lease once more.
func (s *Sweeper) Run(stop, work context.Context) error {
	clear(s.missed)
	ticker := time.NewTicker(s.cfg.Interval)
	defer ticker.Stop()
	for {
		if err := loop.Guard(work, componentSweep, func() error { return s.sweep(stop, work) }); err != nil && stop.Err() == nil {
			klog.FromContext(work).Error(err, "Could not look for capacity objects of nodes that are gone")
		}
		select {
		case <-stop.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// sweep looks once. An error, above all while it lists nodes, deletes nothing.
func (s *Sweeper) sweep(stop, work context.Context) error {
	objects, err := s.objects(stop)
	if err != nil {
		return fmt.Errorf("list capacity objects: %w", err)
	}
	ids, err := s.nodes(stop)
	if err != nil {
		return err
	}
	left := leftovers(objects, ids)
	missed := make(map[string]int, len(left))
	var gone []*storagev1.CSIStorageCapacity
	for id, objects := range left {
		missed[id] = s.missed[id] + 1
		if missed[id] >= missesBeforeSweep {
			gone = append(gone, objects...)
		}
	}
	s.missed = missed
	for _, object := range gone {
		if stop.Err() == nil {
			err = errors.Join(err, loop.Guard(work, componentSweep, func() error { return s.remove(work, object) }))
		}
	}
	return err
}

// objects returns what all instances of the driver have published.
func (s *Sweeper) objects(ctx context.Context) ([]storagev1.CSIStorageCapacity, error) {
	options := metav1.ListOptions{LabelSelector: labels.Set{wellknown.LabelDriverName: s.cfg.DriverName}.String(), ResourceVersion: "0"}
	list, err := s.cfg.Client.StorageV1().CSIStorageCapacities(s.cfg.Namespace).List(ctx, options)
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// nodes returns the managed-by labels of the nodes that there are.
func (s *Sweeper) nodes(ctx context.Context) (map[string]bool, error) {
	nodes, err := s.cfg.Metadata.Resource(nodesResource).List(ctx, metav1.ListOptions{ResourceVersion: "0"})
	if err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	// A cluster without any node has lost them, or hides them from us: neither is a reason to delete.
	if len(nodes.Items) == 0 {
		return nil, errors.New("list nodes: there is none")
	}
	ids := make(map[string]bool, len(nodes.Items))
	for i := range nodes.Items {
		ids[nodelocal.ManagedBy(wellknown.ManagedByBase, nodes.Items[i].Name)] = true
	}
	return ids, nil
}

// leftovers returns, by managed-by label, the objects that no node manages. Those of central instances, and
// whatever does not look like ours, are left out.
func leftovers(objects []storagev1.CSIStorageCapacity, nodes map[string]bool) map[string][]*storagev1.CSIStorageCapacity {
	left := map[string][]*storagev1.CSIStorageCapacity{}
	for i := range objects {
		id := objects[i].Labels[wellknown.LabelManagedBy]
		if ofNode(id) && !nodes[id] {
			left[id] = append(left[id], &objects[i])
		}
	}
	return left
}

// ofNode reports whether a managed-by label has one of the forms that nodelocal.ManagedBy gives it for a node.
func ofNode(id string) bool {
	if strings.HasPrefix(id, wellknown.ManagedByBase+"-") {
		return true
	}
	base, _, shortened := strings.Cut(id, "-"+baseHash+"-")
	return shortened && base != "" && strings.HasPrefix(wellknown.ManagedByBase, base)
}

func (s *Sweeper) remove(ctx context.Context, object *storagev1.CSIStorageCapacity) error {
	err := writerFor(s.cfg.Client, s.cfg.Namespace).delete(ctx, object.Name, object.UID)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete capacity object %q: %w", object.Name, err)
	}
	klog.FromContext(ctx).V(2).Info("Deleted capacity object of a node that is gone", "CSIStorageCapacity", klog.KObj(object),
		"managedBy", object.Labels[wellknown.LabelManagedBy])
	return nil
}

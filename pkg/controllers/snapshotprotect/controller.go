package snapshotprotect

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	snapclientset "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// Claims is the cache of claims; *cluster.Informers is one.
type Claims interface {
	// ClaimsBySource returns the claims of all namespaces whose source has this key.
	ClaimsBySource(key string) []*corev1.PersistentVolumeClaim
}

var _ Claims = (*cluster.Informers)(nil)

// Outstanding knows the creates of this process that may still be running in the driver.
type Outstanding interface {
	// ForSource says whether one of them reads the source with this key (source.SnapshotKey).
	ForSource(key string) bool
}

// Config describes a Controller.
type Config struct {
	// Claims is the cache of claims. Required.
	Claims Claims
	// Client lists claims, to see those that the cache does not have yet. Required.
	Client kubernetes.Interface
	// Snapshots lists and writes snapshots. Required.
	Snapshots snapclientset.Interface
	// Discovery says whether the cluster has snapshots. Required.
	Discovery discovery.ServerResourcesInterface
	// Driver is the driver's name; snapshots of others stay as they are. Required.
	Driver string
	// Grants reads the ReferenceGrants that let claims of other namespaces use a snapshot. Default: nil, no claim of
	// another namespace may; for the gate CrossNamespaceVolumeDataSource.
	Grants source.Grants
	// Outstanding protects snapshots of creates whose claim is gone. Default: there are none.
	Outstanding Outstanding
	// Interval is the pause between two sweeps; --snapshot-orphan-sweep-interval. Required.
	Interval time.Duration
	// Spread delays the first sweep by a random time up to this, so that instances on many nodes do not sweep
	// at the same time; for node deployment. Default: none.
	Spread time.Duration
	// Recheck is how often a cluster without snapshots is asked again. Default: 3 minutes.
	Recheck time.Duration
}

// Controller sweeps the snapshots.
type Controller struct{ cfg Config }

// New checks cfg and assembles the controller.
func New(cfg Config) (*Controller, error) {
	var errs []error
	if cfg.Claims == nil || cfg.Client == nil || cfg.Snapshots == nil || cfg.Discovery == nil {
		errs = append(errs, errors.New("Claims, Client, Snapshots and Discovery are required"))
	}
	if cfg.Driver == "" {
		errs = append(errs, errors.New("no Driver"))
	}
	if cfg.Interval <= 0 {
		errs = append(errs, errors.New("the Interval must be above zero"))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("snapshotprotect: %w", err)
	}
	if cfg.Recheck <= 0 {
		cfg.Recheck = 3 * time.Minute
	}
	return &Controller{cfg: cfg}, nil
}

const (
	// component is the controller's name in logs and in the metric of panics.
	component = "snapshotprotection"
	// groupVersion is the only version of the API that is used.
	groupVersion = wellknown.GroupSnapshot + "/v1"
)

// Run sweeps until stop has ended, finishes the snapshot at hand with work, and returns. It waits for the API to
// appear; without the right to list snapshots it says so and returns early.
func (c *Controller) Run(stop, work context.Context) error {
	logger := klog.LoggerWithName(klog.FromContext(work), component)
	stop, work = klog.NewContext(stop, logger), klog.NewContext(work, logger)
	if !c.waitForAPI(stop) || !c.mayList(stop) {
		return nil
	}
	logger.Info("Sweeping snapshots whose protection was left behind", "interval", c.cfg.Interval)
	wait := time.Duration(0)
	if c.cfg.Spread > 0 {
		wait = rand.N(c.cfg.Spread) //nolint:gosec // spreading sweeps needs no secrecy
	}
	for sleep(stop, wait) {
		if err := loop.Guard(work, component, func() error { return c.sweep(stop, work) }); err != nil && stop.Err() == nil {
			logger.Error(err, "Some snapshots could not be swept; they wait for the next sweep", "after", c.cfg.Interval)
		}
		wait = spread(c.cfg.Interval)
	}
	return nil
}

// waitForAPI returns true as soon as the cluster serves snapshots, false when ctx ends before.
func (c *Controller) waitForAPI(ctx context.Context) bool {
	logger := klog.FromContext(ctx)
	for said := false; ; {
		served, err := cluster.HasKind(ctx, c.cfg.Discovery, groupVersion, wellknown.KindSnapshot)
		switch {
		case err != nil && ctx.Err() == nil:
			logger.Info("Snapshots are not swept yet: the API server does not tell whether it serves them",
				"reason", err.Error(), "recheck", c.cfg.Recheck)
		case err == nil && served:
			return true
		case err == nil && !said:
			logger.Info("Snapshots are not swept: the API server does not serve them", "groupVersion", groupVersion, "recheck", c.cfg.Recheck)
			said = true
		}
		if !sleep(ctx, c.cfg.Recheck) {
			return false
		}
	}
}

// mayList returns false when we have no right to list snapshots, which older installations do not grant.
func (c *Controller) mayList(ctx context.Context) bool {
	_, err := c.cfg.Snapshots.SnapshotV1().VolumeSnapshots(metav1.NamespaceAll).List(ctx, metav1.ListOptions{Limit: 1})
	if apierrors.IsForbidden(err) {
		klog.FromContext(ctx).Info("Snapshots are not swept: grant the verbs list and update on volumesnapshots.snapshot.storage.k8s.io and restart",
			"reason", err.Error())
		return false
	}
	// Any other failure may have passed by the time of the first sweep.
	return ctx.Err() == nil
}

// sleep returns true after d, false when ctx ends before.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// spread returns interval, less or more by up to a tenth.
func spread(interval time.Duration) time.Duration {
	tenth := interval / 10
	return interval - tenth + rand.N(2*tenth+1) //nolint:gosec // spreading sweeps needs no secrecy
}

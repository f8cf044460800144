package nodecleanup

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
)

// component is the controller's name in the metric of panics.
const component = "node cleanup"

const (
	defaultInterval    = 30 * time.Second
	defaultClaimGrace  = time.Minute
	defaultVolumeGrace = 5 * time.Minute
	// maxPerRound bounds the claims, and the PersistentVolumes, that are written in one round, so that the end of a large
	// node does not hold up the looks at the others.
	maxPerRound = 100
)

// Cache is what is watched; *cluster.Informers is one. What it returns is only read.
type Cache interface {
	// OnClaim and OnPV register handlers, which hear of what is there, too.
	OnClaim(cluster.Handler[*corev1.PersistentVolumeClaim]) (synced func() bool, err error)
	OnPV(cluster.Handler[*corev1.PersistentVolume]) (synced func() bool, err error)
	// AttachmentsOf returns the VolumeAttachments of a PersistentVolume; none when they are not watched.
	AttachmentsOf(pvName string) []*storagev1.VolumeAttachment
}

var _ Cache = (*cluster.Informers)(nil)

// Config describes a Controller. All fields are required unless they say otherwise.
type Config struct {
	// Cache is warm when Run is called.
	Cache Cache
	// Client reads Nodes, CSINodes and, once more before each write, claims and PersistentVolumes; and it writes those. It
	// needs a rate limit of its own: when many nodes go at once, provisioning must not wait for their clean-up.
	Client kubernetes.Interface
	// Recorder writes events on claims and PersistentVolumes.
	Recorder record.EventRecorder
	// Driver is the driver's name, and InTree the in-tree plugin that it replaces, "" for none.
	Driver, InTree string
	// Interval is the pause between two rounds. A round with nothing to suspect costs no request. Default: 30 s.
	Interval time.Duration
	// ClaimGrace is for how long a claim must have waited for a node that cannot serve it before it asks for another
	// one: a driver may be about to register. Default: one minute.
	ClaimGrace time.Duration
	// VolumeGrace is for how long a node must have been gone before its PersistentVolumes are removed: it may be
	// about to come back. Default: five minutes.
	VolumeGrace time.Duration
}

// Controller cleans up after nodes. Make one with New.
type Controller struct {
	cfg       Config
	names     names
	listening bool // from the first Run on

	mu     sync.Mutex
	claims map[string]*corev1.PersistentVolumeClaim // UID → a claim that hangs on a node; guarded by mu
	pvs    map[string]*corev1.PersistentVolume      // UID → a PersistentVolume that waits for a node; guarded by mu

	suspects histories
	// turns are whose turn it is first when not all could be written in the round before.
	claimTurn, pvTurn turn
}

// New checks cfg and assembles the controller; nothing is called or watched before Run.
func New(cfg Config) (*Controller, error) {
	if cfg.Cache == nil || cfg.Client == nil || cfg.Recorder == nil || cfg.Driver == "" {
		return nil, errors.New("nodecleanup: Cache, Client, Recorder and Driver are required")
	}
	for d, byDefault := range map[*time.Duration]time.Duration{
		&cfg.Interval: defaultInterval, &cfg.ClaimGrace: defaultClaimGrace, &cfg.VolumeGrace: defaultVolumeGrace,
	} {
		if *d == 0 {
			*d = byDefault
		}
		if *d < 0 {
			return nil, fmt.Errorf("nodecleanup: a pause of %s", *d)
		}
	}
	return &Controller{
		cfg: cfg, names: names{driver: cfg.Driver, inTree: cfg.InTree},
		claims: map[string]*corev1.PersistentVolumeClaim{}, pvs: map[string]*corev1.PersistentVolume{},
	}, nil
}

// Run cleans up until stop ends; what is at hand then is finished with work. Only one instance for all nodes may be
// running. After it has returned it may be called again, for another term; it remembers nothing of the one before.
func (c *Controller) Run(stop, work context.Context) error {
	if err := c.listen(); err != nil {
		return fmt.Errorf("nodecleanup: %w", err)
	}
	klog.FromContext(stop).Info("Cleaning up after nodes", "driver", c.cfg.Driver)
	c.suspects, c.claimTurn, c.pvTurn = histories{}, turn{}, turn{}
	ticker := time.NewTicker(c.cfg.Interval)
	defer ticker.Stop()
	for {
		select {
		case <-stop.Done():
			return nil
		case <-ticker.C:
			c.round(stop, work)
		}
	}
}

// listen registers the handlers, once: there is no way to take them off.
func (c *Controller) listen() error {
	if c.listening {
		return nil
	}
	c.listening = true
	_, errClaim := c.cfg.Cache.OnClaim(c.onClaim)
	_, errPV := c.cfg.Cache.OnPV(c.onPV)
	return errors.Join(errClaim, errPV)
}

func (c *Controller) onClaim(old, now *corev1.PersistentVolumeClaim) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old != nil {
		delete(c.claims, string(old.UID))
	}
	if now != nil && selectedNode(now, c.names) != "" {
		c.claims[string(now.UID)] = now
	}
}

func (c *Controller) onPV(old, now *corev1.PersistentVolume) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old != nil {
		delete(c.pvs, string(old.UID))
	}
	if now != nil && stranded(now, c.names) {
		c.pvs[string(now.UID)] = now
	}
}

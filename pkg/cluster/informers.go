package cluster

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned/typed/apis/v1beta1"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// InformersConfig describes Informers.
type InformersConfig struct {
	// Client reads claims, PersistentVolumes, classes and attachments. Required.
	Client kubernetes.Interface
	// Driver is the driver's name, and InTree the in-tree plugin that it replaces, "" for none: what is kept whole
	// hangs on them. Driver is required.
	Driver, InTree string
	// Handle returns the handle by which the driver knows the volume of a PersistentVolume, "" for a volume of another
	// driver. It may be called concurrently. Default: that of CSI volumes of Driver, so none for volumes of InTree.
	Handle func(pv *corev1.PersistentVolume) string
	// LastApplied: of claims that wait for the driver also keep kubectl's copy of the object, which is the one annotation
	// of theirs that is left out otherwise.
	LastApplied bool
	// Attachments: also watch VolumeAttachments; for drivers with PUBLISH_UNPUBLISH_VOLUME.
	Attachments bool
	// Gateway: also watch ReferenceGrants with this client; for the gate CrossNamespaceVolumeDataSource. nil = no.
	Gateway gatewayclient.GatewayV1beta1Interface
	// Resync is how often handlers get everything again. Default: 15 minutes.
	Resync time.Duration
}

// Informers are the shared caches, one watch a kind. All objects that come out are shared and read-only. The methods
// may be called concurrently; what they return before WaitForSync is not complete.
type Informers struct {
	claims, pvs, classes *Cache
	attachments          *Cache // nil when not wanted
	grants               *Cache // nil when not wanted

	mu    sync.Mutex
	extra []syncCondition // caches of others that belong to "in sync"
}

// syncCondition is one thing that must be true before work begins.
type syncCondition struct {
	name      string
	synced    func() bool
	lastError func() error
}

const (
	indexUID    = "uid"
	indexSource = "source"
	indexVolume = "volume"
	indexHandle = "handle"
	indexNS     = "namespace"
)

// NewInformers assembles the caches; Run starts them.
func NewInformers(cfg InformersConfig) (*Informers, error) {
	if cfg.Client == nil || cfg.Driver == "" {
		return nil, errors.New("informers need a Client and a Driver")
	}
	if cfg.Resync == 0 {
		cfg.Resync = Resync
	}
	i, trim := &Informers{}, newTrimmer(cfg.Driver, cfg.InTree)
	trim.lastApplied = cfg.LastApplied
	if cfg.Handle != nil {
		trim.handle = cfg.Handle
	}
	for _, build := range []func(InformersConfig, *trimmer) error{
		i.buildClaims, i.buildPVs, i.buildClasses, i.buildAttachments, i.buildGrants,
	} {
		if err := build(cfg, trim); err != nil {
			return nil, err
		}
	}
	return i, nil
}

func (i *Informers) buildClaims(cfg InformersConfig, t *trimmer) (err error) {
	claims := cfg.Client.CoreV1().PersistentVolumeClaims(metav1.NamespaceAll)
	i.claims, err = NewCache(CacheConfig{
		Name: "persistentvolumeclaims", Example: &corev1.PersistentVolumeClaim{}, Client: cfg.Client,
		List:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return claims.List(ctx, o) },
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return claims.Watch(ctx, o) },
		Trim:  t.claim, Resync: cfg.Resync,
		Indexers: cache.Indexers{indexUID: claimUIDs, indexSource: claimSources},
	})
	return err
}

func (i *Informers) buildPVs(cfg InformersConfig, t *trimmer) (err error) {
	pvs := cfg.Client.CoreV1().PersistentVolumes()
	i.pvs, err = NewCache(CacheConfig{
		Name: "persistentvolumes", Example: &corev1.PersistentVolume{}, Client: cfg.Client,
		List:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return pvs.List(ctx, o) },
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return pvs.Watch(ctx, o) },
		Trim:  t.pv, Resync: cfg.Resync, Indexers: cache.Indexers{indexHandle: t.pvHandles},
	})
	return err
}

func (i *Informers) buildClasses(cfg InformersConfig, _ *trimmer) (err error) {
	classes := cfg.Client.StorageV1().StorageClasses()
	i.classes, err = NewCache(CacheConfig{
		Name: "storageclasses.storage.k8s.io", Example: &storagev1.StorageClass{}, Client: cfg.Client,
		List:  func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return classes.List(ctx, o) },
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) { return classes.Watch(ctx, o) },
		Trim:  trimClass,
	})
	return err
}

func (i *Informers) buildAttachments(cfg InformersConfig, t *trimmer) (err error) {
	if !cfg.Attachments {
		return nil
	}
	attachments := cfg.Client.StorageV1().VolumeAttachments()
	i.attachments, err = NewCache(CacheConfig{
		Name: "volumeattachments.storage.k8s.io", Example: &storagev1.VolumeAttachment{}, Client: cfg.Client,
		List: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			return attachments.List(ctx, o)
		},
		Watch: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return attachments.Watch(ctx, o)
		},
		Trim: t.attachment, Indexers: cache.Indexers{indexVolume: attachmentVolumes},
	})
	return err
}

func claimUIDs(obj any) ([]string, error) {
	if plain(obj) {
		return nil, nil
	}
	return []string{string(asClaim(obj).UID)}, nil
}

func claimSources(obj any) ([]string, error) {
	if plain(obj) {
		return nil, nil
	}
	if key := source.Key(asClaim(obj)); key != "" {
		return []string{key}, nil
	}
	return nil, nil
}

func attachmentVolumes(obj any) ([]string, error) {
	if attachment, ok := obj.(*storagev1.VolumeAttachment); ok && attachment.Spec.Source.PersistentVolumeName != nil {
		return []string{*attachment.Spec.Source.PersistentVolumeName}, nil
	}
	return nil, nil
}

func trimClass(obj any) (any, error) {
	if class, ok := obj.(*storagev1.StorageClass); ok {
		class.ManagedFields = nil
		delete(class.Annotations, wellknown.AnnLastApplied)
	}
	return obj, nil
}

// Run runs the watches until ctx ends, and returns soon after, whether the API server answers or not.
func (i *Informers) Run(ctx context.Context) {
	var watches sync.WaitGroup
	for _, c := range []*Cache{i.claims, i.pvs, i.classes, i.attachments} {
		if c != nil {
			watches.Go(func() { c.RunWithContext(ctx) })
		}
	}
	if i.grants != nil {
		watches.Go(func() { i.grants.RunWithContext(ctx) })
		watches.Go(func() { loop.Restart(ctx, "grants", i.reportGrants) })
	}
	watches.Wait()
}

// Require makes WaitForSync and Synced also wait for a cache that somebody else keeps. name is its resource in the
// words of an RBAC rule; lastError may be nil. Call it before WaitForSync.
func (i *Informers) Require(name string, synced func() bool, lastError func() error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.extra = append(i.extra, syncCondition{name: name, synced: synced, lastError: lastError})
}

// conditions lists what must be in sync, ReferenceGrants as far as they can be.
func (i *Informers) conditions() []syncCondition {
	i.mu.Lock()
	defer i.mu.Unlock()
	var conditions []syncCondition
	for _, c := range []*Cache{i.claims, i.pvs, i.classes, i.attachments} {
		if c != nil {
			conditions = append(conditions, syncCondition{name: c.name, synced: c.HasSynced, lastError: c.LastError})
		}
	}
	if i.grants != nil {
		conditions = append(conditions, syncCondition{name: i.grants.name, synced: i.grantsTried, lastError: i.grants.LastError})
	}
	return append(conditions, i.extra...)
}

// Synced says whether every cache has its first content. Once true it stays true.
func (i *Informers) Synced() bool {
	for _, c := range i.conditions() {
		if !c.synced() {
			return false
		}
	}
	return true
}

const (
	syncPoll   = 20 * time.Millisecond
	syncReport = 30 * time.Second
)

// WaitForSync blocks until Synced, or until ctx ends; then it returns the cause, with the caches that are missing.
// Every 30 seconds it logs which caches are missing, why, and what to do about it. At the end it gives back the
// memory that reading the lists took, which is twice what is kept of them.
func (i *Informers) WaitForSync(ctx context.Context) error {
	poll, report := time.NewTicker(syncPoll), time.NewTicker(syncReport)
	defer poll.Stop()
	defer report.Stop()
	for {
		if i.Synced() {
			debug.FreeOSMemory()
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("caches not in sync: %s: %w", strings.Join(i.Missing(), "; "), context.Cause(ctx))
		case <-poll.C:
		case <-report.C:
			klog.FromContext(ctx).Error(nil, "Caches are not in sync and nothing is provisioned", "missing", i.Missing())
		}
	}
}

// Refused returns why a cache that is not in sync never will be as things are: the API server refuses to show its
// objects to us. The error names each such resource and the right that is missing; nil means that there is none.
func (i *Informers) Refused() error {
	var errs []error
	for _, c := range i.conditions() {
		if c.synced() || c.lastError == nil {
			continue
		}
		if err := c.lastError(); apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
			errs = append(errs, fmt.Errorf("%s: %w (%s)", c.name, err, advice(c.name, err)))
		}
	}
	return errors.Join(errs...)
}

// Missing describes each cache that is not in sync: its name, the last error, the way out.
func (i *Informers) Missing() []string {
	var missing []string
	for _, c := range i.conditions() {
		if c.synced() {
			continue
		}
		var err error
		if c.lastError != nil {
			err = c.lastError()
		}
		line := c.name
		if err != nil {
			line += ": " + err.Error()
		}
		missing = append(missing, line+" ("+advice(c.name, err)+")")
	}
	return missing
}

package provision

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapshotclient "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/operations"
	"github.com/csi-sidecars/external-provisioner/pkg/topology"
	"github.com/csi-sidecars/external-provisioner/pkg/trace"
)

// VolumeDriver makes and deletes volumes. Each call has its own deadline and returns the driver's error as it is.
type VolumeDriver interface {
	CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error)
	DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) error
}

// Cache gives what is watched. What it returns belongs to the cache and is only read; a missing object is nil.
type Cache interface {
	// ClaimByUID, Claim, PV and Class return one object.
	ClaimByUID(uid types.UID) *corev1.PersistentVolumeClaim
	Claim(namespace, name string) *corev1.PersistentVolumeClaim
	PV(name string) *corev1.PersistentVolume
	Class(name string) *storagev1.StorageClass
	// PVsByHandle returns the PersistentVolumes for which HandleOf returns this handle.
	PVsByHandle(handle string) []*corev1.PersistentVolume
	// ClaimsBySource returns the claims whose data source has the key of source.Key.
	ClaimsBySource(key string) []*corev1.PersistentVolumeClaim
	// UnboundClaims returns the claims of this driver that are not bound.
	UnboundClaims() []*corev1.PersistentVolumeClaim
	// CaughtUp reports whether what is returned of a resource is not from before this process began its work.
	CaughtUp(resource cluster.Resource) bool
	// AttachmentsOf returns the VolumeAttachments of a PersistentVolume; none when they are not watched.
	AttachmentsOf(pvName string) []*storagev1.VolumeAttachment
	// Grants returns the ReferenceGrants of a namespace, or an error when they are not known.
	Grants(namespace string) ([]*gatewayv1beta1.ReferenceGrant, error)
}

// Events is where the controller hears of changes. The handlers are called for what is there when they are
// registered, too.
type Events interface {
	OnClaim(cluster.Handler[*corev1.PersistentVolumeClaim]) (synced func() bool, err error)
	OnPV(cluster.Handler[*corev1.PersistentVolume]) (synced func() bool, err error)
	OnClass(cluster.Handler[*storagev1.StorageClass]) (synced func() bool, err error)
	OnAttachment(cluster.Handler[*storagev1.VolumeAttachment]) (synced func() bool, err error)
}

// Topologies says where a volume must be accessible from. The result is shared and only read. It waits no longer than until
// ctx ends.
type Topologies interface {
	Require(ctx context.Context, in topology.Request) (*csi.TopologyRequirement, error)
}

// Translator turns in-tree objects into CSI ones and back.
type Translator interface {
	TranslateClass(inTree string, class *storagev1.StorageClass) (*storagev1.StorageClass, error)
	TranslateToInTree(pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error)
	TranslateToCSI(pv *corev1.PersistentVolume) (*corev1.PersistentVolume, error)
	IsMigratable(pv *corev1.PersistentVolume) bool
}

// Observer hears of volumes that came, went, or could not be made. It must not block.
type Observer interface {
	// VolumeCreated and VolumeDeleted get the affinity of the PersistentVolume, nil for none.
	VolumeCreated(class string, affinity *corev1.VolumeNodeAffinity)
	VolumeDeleted(class string, affinity *corev1.VolumeNodeAffinity)
	// CreateFailed is called when a call or what followed it failed, and when a claim cannot be served as it is or needs
	// another node; not for what only has to be tried again.
	CreateFailed(class string)
}

// Config describes a Controller. All fields are required unless they say otherwise.
type Config struct {
	// Client reads what is not watched and writes claims and PersistentVolumes.
	Client kubernetes.Interface
	// BackgroundClient changes the finalizers of PersistentVolumes that are there, and asks for rights, with limits of
	// its own. Default: Client.
	BackgroundClient kubernetes.Interface
	// Snapshots reads and protects snapshot sources.
	Snapshots snapshotclient.Interface
	// Cache and Events are the informers. Their caches are warm when Run is called.
	Cache  Cache
	Events Events
	// Driver is the CSI driver.
	Driver VolumeDriver
	// Tracer gets a span for each attempt; nil for none.
	Tracer *trace.Tracer
	// WithMigrated, optional, tells whoever measures the calls whether one is for a volume of the in-tree plugin.
	WithMigrated func(ctx context.Context, migrated bool) context.Context
	// Gate, optional, blocks while the driver is away.
	Gate func(ctx context.Context) error
	// MayCall, optional, returns an error while Driver sends nothing because this process may not be the leader any more. After
	// a stop such creates are left alone.
	MayCall func() error
	// Recorder writes events on claims and PersistentVolumes; OwnRecorder those of the component external-provisioner.
	Recorder, OwnRecorder record.EventRecorder
	// Registerer gets the metrics. Optional: without it they are counted and not shown.
	Registerer prometheus.Registerer
	// Topologies is nil when the driver has no topology or the gate is off.
	Topologies Topologies
	// Translator is nil when the driver replaces no in-tree plugin.
	Translator Translator
	// Node is nil in central mode.
	Node *NodeDeployment
	// Observer is nil when nobody wants to know.
	Observer Observer
	// WantsVAC says whether VolumeAttributesClasses are honoured; it may change while the API server is asked.
	// Default: never.
	WantsVAC func() bool

	// Settings shape the plans.
	Settings Settings
	// StrictTopology, ImmediateTopology and KeepNodeTopology are the flags of these names.
	StrictTopology, ImmediateTopology, KeepNodeTopology bool
	// DeletionSecretNamespaces, optional, are the only namespaces that a deletion secret is read from.
	DeletionSecretNamespaces []string

	// CreateWorkers is how many claims are worked on at once (--create-threads), DeleteWorkers how many
	// PersistentVolumes (--delete-threads). Zero: none.
	CreateWorkers, DeleteWorkers int
	// MaxCreatesPerSource is how many CreateVolume calls run at once from one snapshot or claim
	// (--max-creates-per-source). Zero: no bound but that of the workers.
	MaxCreatesPerSource int
	// RetryStart and RetryMax bound the back-off (--retry-interval-start, --retry-interval-max).
	RetryStart, RetryMax time.Duration
	// Timeout is the deadline that Driver gives to a CreateVolume call (--timeout), unless CreateTimeout says otherwise.
	Timeout time.Duration
	// CreateTimeout returns the deadline of the call with that request (--create-timeout, --restore-timeout,
	// --clone-timeout). Default: Timeout for each.
	CreateTimeout func(req *csi.CreateVolumeRequest) time.Duration
	// QuietEvents tells only what has changed (--quiet-events).
	QuietEvents bool
	// Operations says how operations in flight are recorded; its Listener is set by New. Nil: they are not, and a process
	// that dies in a call may leave a volume behind.
	Operations *operations.Config
}

func (c *Config) validate() error {
	var errs []error
	for name, missing := range map[string]bool{
		"Client": c.Client == nil, "Snapshots": c.Snapshots == nil, "Cache": c.Cache == nil, "Events": c.Events == nil,
		"Driver": c.Driver == nil, "Recorder": c.Recorder == nil, "OwnRecorder": c.OwnRecorder == nil,
		"Settings.Driver": c.Settings.Driver == "", "Timeout": c.Timeout <= 0,
	} {
		if missing {
			errs = append(errs, fmt.Errorf("no %s", name))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("provision: %w", err)
	}
	if c.BackgroundClient == nil {
		c.BackgroundClient = c.Client
	}
	if c.CreateTimeout == nil {
		c.CreateTimeout = func(*csi.CreateVolumeRequest) time.Duration { return c.Timeout }
	}
	if c.WithMigrated == nil {
		c.WithMigrated = func(ctx context.Context, _ bool) context.Context { return ctx }
	}
	if c.MayCall == nil {
		c.MayCall = func() error { return nil }
	}
	if c.WantsVAC == nil {
		c.WantsVAC = func() bool { return false }
	}
	if c.Observer == nil {
		c.Observer = nobody{}
	}
	return nil
}

// nobody is the Observer that does nothing.
type nobody struct{}

func (nobody) VolumeCreated(string, *corev1.VolumeNodeAffinity) {}
func (nobody) VolumeDeleted(string, *corev1.VolumeNodeAffinity) {}
func (nobody) CreateFailed(string)                              {}

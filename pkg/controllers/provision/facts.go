package provision

import (
	"errors"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

// Facts is everything that the decision about one attempt rests on. Read-only: most of it belongs to caches.
// A missing object is a nil field; an error of a read is kept beside it, and the plan says when it matters.
type Facts struct {
	// Claim is the claim as cached or, when it is gone, as it was at the last attempt.
	Claim *corev1.PersistentVolumeClaim
	// Class is the claim's class; Translated is the same, or its CSI form when Class names the in-tree plugin.
	Class, Translated *storagev1.StorageClass
	// TranslateErr says why Translated is nil.
	TranslateErr error
	// SelectedNode is empty for a claim that no scheduler placed.
	SelectedNode string
	// Source is where the volume's content comes from; zero when it begins empty.
	Source source.Reference
	// SourceErr says why Source could not be told, or that reading the source's objects failed.
	SourceErr, ContentErr error
	// Granted says that a ReferenceGrant allows Source, or that none is needed; GrantErr that nobody knows.
	Granted  bool
	GrantErr error
	// Snapshot and Content are set for a snapshot source, SourceClaim and SourcePV for a clone.
	Snapshot    *snapv1.VolumeSnapshot
	Content     *snapv1.VolumeSnapshotContent
	SourceClaim *corev1.PersistentVolumeClaim
	SourcePV    *corev1.PersistentVolume
	// WantsVAC says that VolumeAttributesClasses are honoured (gate VolumeAttributesClass). VAC is the claim's.
	WantsVAC bool
	VAC      *storagev1.VolumeAttributesClass
	VACErr   error
	// Requirement is where the volume must be accessible from; nil when there is nothing to say.
	Requirement    *csi.TopologyRequirement
	RequirementErr error
	// ExistingPV is the PersistentVolume that has the name of the claim's own to be, whoever it belongs to.
	ExistingPV *corev1.PersistentVolume
	// Outstanding says that an earlier call for this claim may still be at work in the driver.
	Outstanding bool
}

// unread reports whether something could not be read, so that the decision may be another one soon. What is not there
// was read, and a kind that is not served has no objects.
func (f Facts) unread() bool {
	content := f.ContentErr != nil && !errors.Is(f.ContentErr, source.ErrSnapshotsNotServed)
	return f.GrantErr != nil || content || (f.VACErr != nil && !apierrors.IsNotFound(f.VACErr))
}

// Settings is what the operator and the driver decided for all claims.
type Settings struct {
	// Driver is the driver's name; InTree the legacy plugin that it replaces, empty if none.
	Driver, InTree string
	// Capabilities are the driver's.
	Capabilities Capabilities
	// Identity is written to each PersistentVolume, to tell which process made it.
	Identity string
	// VolumeNamePrefix and VolumeNameUUIDLength make the volume's name (--volume-name-prefix, --volume-name-uuid-length).
	VolumeNamePrefix     string
	VolumeNameUUIDLength int
	// DefaultFSType is used when the class names none (--default-fstype); empty sends none.
	DefaultFSType string
	// ExtraCreateMetadata adds names of claim and PersistentVolume to the parameters (--extra-create-metadata).
	ExtraCreateMetadata bool
	// CreateMetadata are the annotations and labels of the claim that the driver is told with CreateVolume
	// (--create-metadata-annotations, --create-metadata-labels), CopyToPV those that the PersistentVolume gets
	// (--pv-copy-annotations, --pv-copy-labels).
	CreateMetadata, CopyToPV volume.ClaimKeys
	// PublishReadonly marks ReadOnlyMany volumes read-only (--controller-publish-readonly).
	PublishReadonly bool
	// PreventModeConversion guards a restore against another volume mode (--prevent-volume-mode-conversion).
	PreventModeConversion bool
	// GrowToSourceSize raises a request to the size of its source (--grow-to-source-size).
	GrowToSourceSize bool
	// CrossNamespace honours a source in another namespace (gate CrossNamespaceVolumeDataSource).
	CrossNamespace bool
}

// volumeName returns the name of the volume of the claim with that UID. The error says that there can be none.
func (s Settings) volumeName(claimUID types.UID) (string, error) {
	return volume.Name(s.VolumeNamePrefix, s.VolumeNameUUIDLength, claimUID)
}

// Capabilities are the services of the driver that a plan depends on.
type Capabilities struct {
	// ControllerService is the plugin's CONTROLLER_SERVICE; the others are the controller's.
	ControllerService                                 bool
	CreateDeleteVolume, Snapshot, Clone, Modify       bool
	PublishUnpublish, SingleNodeMultiWriter, Topology bool
}

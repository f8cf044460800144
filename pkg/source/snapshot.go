package source

import (
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// ErrSnapshotsNotServed is the ReadErr when the API server does not serve the kinds of snapshots, because their CRDs
// are not installed.
var ErrSnapshotsNotServed = errors.New("the API server does not serve VolumeSnapshot (snapshot.storage.k8s.io/v1)")

// SnapshotFacts is what was read about a claim that is restored from a VolumeSnapshot. Everything is only read.
type SnapshotFacts struct {
	// Claim is the claim to fill. Required.
	Claim *corev1.PersistentVolumeClaim
	// Source is what Of returned for it.
	Source Reference
	// ClassName is the name of its class, for the messages.
	ClassName string
	// DriverName is what the content's driver must be: the provisioner of the class, or the CSI driver when the
	// class was translated from an in-tree one.
	DriverName string
	// Snapshot is the source, Content what it is bound to; nil when it was not found or could not be read.
	Snapshot *snapv1.VolumeSnapshot
	Content  *snapv1.VolumeSnapshotContent
	// ReadErr is why the first of them that is nil could not be read, also ErrSnapshotsNotServed; nil for not found.
	ReadErr error
	// PreventModeConversion is --prevent-volume-mode-conversion.
	PreventModeConversion bool
	// GrowToSourceSize is --grow-to-source-size: a request below the snapshot's size is raised to it instead of
	// being an error.
	GrowToSourceSize bool
}

// snapshotChecks are in the order of the contract. Each relies on those before it.
var snapshotChecks = []check[SnapshotFacts]{
	snapshotExists,
	snapshotKept,
	snapshotBound,
	contentExists,
	contentBoundBack,
	contentOfDriver,
	snapshotReady,
	contentHasHandle,
	restoreSizeRequested,
	restoreSizeCovered,
	modeUnchanged,
}

// CheckSnapshot returns the content source for a restore, or why it is not possible now. An error carries no
// outcome: the driver was not reached, try again. Its text begins with what the source is.
func CheckSnapshot(f SnapshotFacts) (Content, error) {
	if err := first(f, snapshotChecks); err != nil {
		return Content{}, unfit(f.Source, err)
	}
	minBytes, _ := RequestBytes(f.Claim)
	if size := f.Snapshot.Status.RestoreSize; f.GrowToSourceSize && size != nil {
		minBytes = max(minBytes, inBytes(size))
	}
	return Content{
		VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
			Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: *f.Content.Status.SnapshotHandle},
		}},
		MinBytes: minBytes,
	}, nil
}

func snapshotExists(f SnapshotFacts) error {
	if f.Snapshot != nil {
		return nil
	}
	return fmt.Errorf("get snapshot %s/%s: %w", f.Source.Namespace, f.Source.Name, cause(f.ReadErr))
}

// A terminating snapshot that we protect is one that a restore began to use before: it may be finished.
func snapshotKept(f SnapshotFacts) error {
	if f.Snapshot.DeletionTimestamp == nil || slices.Contains(f.Snapshot.Finalizers, wellknown.FinalizerSnapshotSource) {
		return nil
	}
	return fmt.Errorf("snapshot %s is currently being deleted", f.Snapshot.Name)
}

func snapshotBound(f SnapshotFacts) error {
	if f.Snapshot.Status != nil && f.Snapshot.Status.BoundVolumeSnapshotContentName != nil {
		return nil
	}
	return fmt.Errorf("snapshot %s not bound", f.Snapshot.Name)
}

func contentExists(f SnapshotFacts) error {
	if f.Content != nil {
		return nil
	}
	return fmt.Errorf("get snapshotcontent %s of snapshot %s: %w",
		*f.Snapshot.Status.BoundVolumeSnapshotContentName, f.Snapshot.Name, cause(f.ReadErr))
}

func contentBoundBack(f SnapshotFacts) error {
	ref := f.Content.Spec.VolumeSnapshotRef
	if ref.UID == f.Snapshot.UID && ref.Namespace == f.Snapshot.Namespace && ref.Name == f.Snapshot.Name {
		return nil
	}
	return fmt.Errorf("snapshotcontent %s for snapshot %s is bound to a different snapshot", f.Content.Name, f.Snapshot.Name)
}

func contentOfDriver(f SnapshotFacts) error {
	if f.Content.Spec.Driver == f.DriverName {
		return nil
	}
	return fmt.Errorf("snapshotcontent %s for snapshot %s is not handled by CSI driver %q of StorageClass %s but by %q",
		f.Content.Name, f.Snapshot.Name, f.DriverName, f.ClassName, f.Content.Spec.Driver)
}

func snapshotReady(f SnapshotFacts) error {
	if ready := f.Snapshot.Status.ReadyToUse; ready != nil && *ready {
		return nil
	}
	return fmt.Errorf("snapshot %s is not Ready", f.Snapshot.Name)
}

func contentHasHandle(f SnapshotFacts) error {
	if status := f.Content.Status; status != nil && status.SnapshotHandle != nil && *status.SnapshotHandle != "" {
		return nil
	}
	return fmt.Errorf("snapshot handle of snapshot %s is not available in snapshotcontent %s", f.Snapshot.Name, f.Content.Name)
}

func restoreSizeRequested(f SnapshotFacts) error {
	if _, ok := RequestBytes(f.Claim); ok || f.Snapshot.Status.RestoreSize == nil {
		return nil
	}
	return fmt.Errorf("claim %s/%s asks for no capacity", f.Claim.Namespace, f.Claim.Name)
}

func restoreSizeCovered(f SnapshotFacts) error {
	size := f.Snapshot.Status.RestoreSize
	if size == nil || f.GrowToSourceSize {
		return nil
	}
	if asked, _ := RequestBytes(f.Claim); asked < inBytes(size) {
		return fmt.Errorf("requested volume size %d is less than the size %d for the source snapshot %s", asked, inBytes(size), f.Snapshot.Name)
	}
	return nil
}

// modeUnchanged keeps a claim's author from reading a raw device as a file system, or the other way round,
// without leave: the kernel parses what is on it.
func modeUnchanged(f SnapshotFacts) error {
	from, to := f.Content.Spec.SourceVolumeMode, f.Claim.Spec.VolumeMode
	if !f.PreventModeConversion || from == nil || to == nil || *from == *to {
		return nil
	}
	value, found := f.Content.Annotations[wellknown.AnnAllowVolumeModeChange]
	allowed, err := strconv.ParseBool(value)
	var why error
	switch {
	case !found:
		why = errors.New("annotation is not present")
	case err != nil:
		why = fmt.Errorf("annotation is not a boolean: %w", err)
	case !allowed:
		why = errors.New("annotation is set to false")
	default:
		return nil
	}
	// End-to-end tests of drivers look for the words up to "do so" in events.
	return fmt.Errorf("requested volume %s/%s modifies the mode of the source volume but does not have permission to do so: on snapshotcontent %s the %s %w",
		f.Claim.Namespace, f.Claim.Name, f.Content.Name, wellknown.AnnAllowVolumeModeChange, why)
}

package source

import (
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// CloneFacts is what was read about a claim that is cloned from another. Everything is only read.
type CloneFacts struct {
	// Claim is the claim to fill. Required.
	Claim *corev1.PersistentVolumeClaim
	// Reference is what Of returned for it.
	Reference Reference
	// Source is the claim to clone, SourcePV its volume; nil when it was not found or could not be read.
	Source   *corev1.PersistentVolumeClaim
	SourcePV *corev1.PersistentVolume
	// ReadErr is why the first of them that is nil could not be read; nil for not found.
	ReadErr error
	// DriverName is what the volume's driver must be: the provisioner of the claim's class, or the CSI driver when
	// the class was translated from an in-tree one.
	DriverName string
	// OutstandingCreate says that the driver may be making this clone already. Then a source that is being
	// deleted, but kept for us, is no reason to stop: it is kept until the clone is there.
	OutstandingCreate bool
	// GrowToSourceSize is --grow-to-source-size: a request below the size of the source's volume is raised to
	// it. The source's request then does not count, as it may be less than the volume has.
	GrowToSourceSize bool
}

// cloneChecks are in the order of the contract. Each relies on those before it.
var cloneChecks = []check[CloneFacts]{
	sourceExists,
	sourceBound,
	sourceKept,
	sourceHasClass,
	claimHasClass,
	sourceSizeCovered,
	sourceHasVolume,
	volumeExists,
	volumeIsCSI,
	volumeOfDriver,
	volumeHasClaim,
	volumeBoundBack,
	volumeBound,
	modesEqual,
}

// CheckClone returns the content source for a clone, or why it is not possible now. An error carries no
// outcome: the driver was not reached, try again. Its text begins with what the source is.
func CheckClone(f CloneFacts) (Content, error) {
	if err := first(f, cloneChecks); err != nil {
		return Content{}, unfit(f.Reference, err)
	}
	minBytes, _ := RequestBytes(f.Claim)
	if f.GrowToSourceSize {
		minBytes = max(minBytes, inBytes(f.SourcePV.Spec.Capacity.Storage()))
	}
	return Content{
		VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
			Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: f.SourcePV.Spec.CSI.VolumeHandle},
		}},
		MinBytes: minBytes,
	}, nil
}

func sourceExists(f CloneFacts) error {
	if f.Source != nil {
		return nil
	}
	return fmt.Errorf("get PVC %s in namespace %s: %w", f.Reference.Name, f.Reference.Namespace, cause(f.ReadErr))
}

func sourceBound(f CloneFacts) error {
	if f.Source.Status.Phase == corev1.ClaimBound {
		return nil
	}
	return fmt.Errorf("the PVC DataSource %s must have a status of Bound, got %q", f.Source.Name, f.Source.Status.Phase)
}

func sourceKept(f CloneFacts) error {
	if f.Source.DeletionTimestamp == nil ||
		f.OutstandingCreate && slices.Contains(f.Source.Finalizers, wellknown.FinalizerCloneSource) {
		return nil
	}
	return fmt.Errorf("the PVC DataSource %s is currently being deleted", f.Source.Name)
}

func sourceHasClass(f CloneFacts) error {
	if f.Source.Spec.StorageClassName != nil {
		return nil
	}
	return fmt.Errorf("the source PVC (%s) storageclass cannot be empty: spec.storageClassName is not set", f.Source.Name)
}

func claimHasClass(f CloneFacts) error {
	if f.Claim.Spec.StorageClassName != nil {
		return nil
	}
	return fmt.Errorf("the requested PVC (%s) storageclass cannot be empty: spec.storageClassName is not set", f.Claim.Name)
}

func sourceSizeCovered(f CloneFacts) error {
	asked, _ := RequestBytes(f.Claim)
	size, _ := RequestBytes(f.Source)
	if f.GrowToSourceSize || asked >= size {
		return nil
	}
	return fmt.Errorf("new PVC request must be greater than or equal in size to the specified PVC data source, requested %d but source is %d", asked, size)
}

func sourceHasVolume(f CloneFacts) error {
	if f.Source.Spec.VolumeName != "" {
		return nil
	}
	return fmt.Errorf("volume name is empty in source PVC %s", f.Source.Name)
}

// unusable begins with the words that all failures around the source's volume have always had.
func unusable(format string, args ...any) error {
	return fmt.Errorf("claim in dataSource not bound or invalid: "+format, args...)
}

func volumeExists(f CloneFacts) error {
	if f.SourcePV != nil {
		return nil
	}
	return unusable("get its PersistentVolume %s: %w", f.Source.Spec.VolumeName, cause(f.ReadErr))
}

func volumeIsCSI(f CloneFacts) error {
	if f.SourcePV.Spec.CSI != nil {
		return nil
	}
	return unusable("its PersistentVolume %s is not one of a CSI driver", f.SourcePV.Name)
}

func volumeOfDriver(f CloneFacts) error {
	if f.SourcePV.Spec.CSI.Driver == f.DriverName {
		return nil
	}
	return unusable("its PersistentVolume %s is handled by driver %q, the requested class by %q",
		f.SourcePV.Name, f.SourcePV.Spec.CSI.Driver, f.DriverName)
}

func volumeHasClaim(f CloneFacts) error {
	if f.SourcePV.Spec.ClaimRef != nil {
		return nil
	}
	return unusable("its PersistentVolume %s has no claimRef", f.SourcePV.Name)
}

func volumeBoundBack(f CloneFacts) error {
	ref := f.SourcePV.Spec.ClaimRef
	if ref.UID == f.Source.UID && ref.Namespace == f.Source.Namespace && ref.Name == f.Source.Name {
		return nil
	}
	return unusable("its PersistentVolume %s is bound to a different claim", f.SourcePV.Name)
}

func volumeBound(f CloneFacts) error {
	if f.SourcePV.Status.Phase == corev1.VolumeBound {
		return nil
	}
	return unusable("its PersistentVolume %s is in phase %q and not Bound", f.SourcePV.Name, f.SourcePV.Status.Phase)
}

// The mode of the volume counts, which is what the driver made, and not that of the source.
func modesEqual(f CloneFacts) error {
	source, requested := modeOf(f.SourcePV.Spec.VolumeMode), modeOf(f.Claim.Spec.VolumeMode)
	if source == requested {
		return nil
	}
	return fmt.Errorf("the source PVC %s has volume mode %s, which must be the same as the requested volume mode %s", f.Source.Name, source, requested)
}

package wellknown

// Finalizers that we place and remove.
const (
	// FinalizerPV keeps a PersistentVolume until its volume is deleted.
	FinalizerPV = "external-provisioner.volume.kubernetes.io/finalizer"
	// FinalizerCloneSource keeps a claim while it is the source of a clone.
	FinalizerCloneSource = "provisioner.storage.kubernetes.io/cloning-protection"
	// FinalizerSnapshotSource keeps a VolumeSnapshot while it is restored from.
	FinalizerSnapshotSource = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"
	// FinalizerProvisioningInProgress keeps a claim while a CreateVolume for it may have made a volume that
	// no PersistentVolume stands for yet.
	FinalizerProvisioningInProgress = AnnProvisioningInProgress
)

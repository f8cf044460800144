package wellknown

// Finalizers that we place and remove.
const (
	// FinalizerPV keeps a PersistentVolume until its volume is deleted.
	FinalizerPV = "external-provisioner.volume.kubernetes.io/finalizer"
	// FinalizerCloneSource keeps a claim while it is the source of a clone.
	FinalizerCloneSource = "provisioner.storage.kubernetes.io/cloning-protection"
	// FinalizerSnapshotSource keeps a VolumeSnapshot while it is restored from.
	FinalizerSnapshotSource = "provisioner.storage.kubernetes.io/volumesnapshot-as-source-protection"
	// FinalizerProvisioningInProgress was put on claims by pre-releases and is removed.
	FinalizerProvisioningInProgress = AnnProvisioningInProgress
)

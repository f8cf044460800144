package wellknown

// Annotations of claims.
const (
	// AnnStorageProvisioner names the provisioner that must serve a claim. Written by kube-controller-manager.
	AnnStorageProvisioner = "volume.kubernetes.io/storage-provisioner"
	// AnnBetaStorageProvisioner is its older twin, read only when AnnStorageProvisioner is absent.
	AnnBetaStorageProvisioner = "volume.beta.kubernetes.io/storage-provisioner"
	// AnnMigratedTo names the CSI driver that serves an object of an in-tree plugin; on claims and PersistentVolumes.
	AnnMigratedTo = "pv.kubernetes.io/migrated-to"
	// AnnBetaStorageClass is the legacy class name; it wins over spec.storageClassName, even when empty.
	AnnBetaStorageClass = "volume.beta.kubernetes.io/storage-class"
	// AnnSelectedNode is the node that the scheduler (or, in node deployment, an instance of ours) chose.
	AnnSelectedNode = "volume.kubernetes.io/selected-node"
	// AnnAlphaSelectedNode is what very old schedulers wrote; only a fallback for reading.
	AnnAlphaSelectedNode = "volume.alpha.kubernetes.io/selected-node"
	// AnnProvisioningInProgress was put on claims by pre-releases, with FinalizerProvisioningInProgress, and is removed.
	AnnProvisioningInProgress = "provisioner.storage.kubernetes.io/provisioning-in-progress"
)

// Annotations of PersistentVolumes.
const (
	// AnnProvisionedBy is the provisioner field of the class that a PersistentVolume was made from.
	AnnProvisionedBy = "pv.kubernetes.io/provisioned-by"
	// AnnDeletionSecretName and AnnDeletionSecretNamespace name the secret for DeleteVolume. Both are
	// always set on our PersistentVolumes; both empty means no secret.
	AnnDeletionSecretName      = "volume.kubernetes.io/provisioner-deletion-secret-name"
	AnnDeletionSecretNamespace = "volume.kubernetes.io/provisioner-deletion-secret-namespace"
	// AnnModifySecretName and AnnModifySecretNamespace name the secret for ControllerModifyVolume; read by the resizer.
	AnnModifySecretName      = "volume.kubernetes.io/controller-modify-secret-name"
	AnnModifySecretNamespace = "volume.kubernetes.io/controller-modify-secret-namespace"
)

// AnnLastApplied is kubectl's copy of the whole object inside the object.
const AnnLastApplied = "kubectl.kubernetes.io/last-applied-configuration"

// AnnAllowVolumeModeChange on a VolumeSnapshotContent lets a restore change the volume mode.
const AnnAllowVolumeModeChange = "snapshot.storage.kubernetes.io/allow-volume-mode-change"

package wellknown

// Keys of StorageClass parameters that are for us and not for the driver.
const (
	// ReservedPrefix begins each of them.
	ReservedPrefix = "csi.storage.k8s.io/"
	// ParamFSType is the file system type.
	ParamFSType = ReservedPrefix + "fstype"
	// DeprecatedParamFSType is its older form, compared without regard to case; the driver still gets it.
	DeprecatedParamFSType = "fstype"

	// Default pair for all secrets.
	ParamSecretName      = ReservedPrefix + "secret-name"
	ParamSecretNamespace = ReservedPrefix + "secret-namespace"

	// One pair for each consumer.
	ParamProvisionerSecretName            = ReservedPrefix + "provisioner-secret-name"
	ParamProvisionerSecretNamespace       = ReservedPrefix + "provisioner-secret-namespace"
	ParamControllerPublishSecretName      = ReservedPrefix + "controller-publish-secret-name"
	ParamControllerPublishSecretNamespace = ReservedPrefix + "controller-publish-secret-namespace"
	ParamNodeStageSecretName              = ReservedPrefix + "node-stage-secret-name"
	ParamNodeStageSecretNamespace         = ReservedPrefix + "node-stage-secret-namespace"
	ParamNodePublishSecretName            = ReservedPrefix + "node-publish-secret-name"
	ParamNodePublishSecretNamespace       = ReservedPrefix + "node-publish-secret-namespace"
	ParamControllerExpandSecretName       = ReservedPrefix + "controller-expand-secret-name"
	ParamControllerExpandSecretNamespace  = ReservedPrefix + "controller-expand-secret-namespace"
	ParamNodeExpandSecretName             = ReservedPrefix + "node-expand-secret-name"
	ParamNodeExpandSecretNamespace        = ReservedPrefix + "node-expand-secret-namespace"
	ParamControllerModifySecretName       = ReservedPrefix + "controller-modify-secret-name"
	ParamControllerModifySecretNamespace  = ReservedPrefix + "controller-modify-secret-namespace"

	// Deprecated pairs; the driver still gets them.
	DeprecatedParamProvisionerSecretName            = "csiProvisionerSecretName"
	DeprecatedParamProvisionerSecretNamespace       = "csiProvisionerSecretNamespace"
	DeprecatedParamControllerPublishSecretName      = "csiControllerPublishSecretName"
	DeprecatedParamControllerPublishSecretNamespace = "csiControllerPublishSecretNamespace"
	DeprecatedParamNodeStageSecretName              = "csiNodeStageSecretName"
	DeprecatedParamNodeStageSecretNamespace         = "csiNodeStageSecretNamespace"
	DeprecatedParamNodePublishSecretName            = "csiNodePublishSecretName"
	DeprecatedParamNodePublishSecretNamespace       = "csiNodePublishSecretNamespace"

	// What --extra-create-metadata adds for the driver.
	ParamClaimName      = ReservedPrefix + "pvc/name"
	ParamClaimNamespace = ReservedPrefix + "pvc/namespace"
	ParamPVName         = ReservedPrefix + "pv/name"

	// What comes before the keys of annotations and labels that --create-metadata-annotations and
	// --create-metadata-labels add.
	ParamClaimAnnotationPrefix = ReservedPrefix + "pvc/annotations/"
	ParamClaimLabelPrefix      = ReservedPrefix + "pvc/labels/"
)

// AttributeIdentity is the volume attribute of each PersistentVolume that tells which process made it.
const AttributeIdentity = "storage.kubernetes.io/csiProvisionerIdentity"

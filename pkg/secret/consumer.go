package secret

import (
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// Consumer is a call, or a group of calls, for which a class can name a Secret. The zero value is for none:
// it knows no keys of its own and resolves to the default pair. Use the variables below.
type Consumer struct {
	name                string
	nameKey             string
	namespaceKey        string
	deprecatedName      string // "" when there never was one
	deprecatedNamespace string
}

// The consumers, as values that are never changed.
var (
	// Provisioner is for CreateVolume and DeleteVolume.
	Provisioner = Consumer{
		name:                "provisioner",
		nameKey:             wellknown.ParamProvisionerSecretName,
		namespaceKey:        wellknown.ParamProvisionerSecretNamespace,
		deprecatedName:      wellknown.DeprecatedParamProvisionerSecretName,
		deprecatedNamespace: wellknown.DeprecatedParamProvisionerSecretNamespace,
	}
	// ControllerPublish is for ControllerPublishVolume and ControllerUnpublishVolume.
	ControllerPublish = Consumer{
		name:                "controller-publish",
		nameKey:             wellknown.ParamControllerPublishSecretName,
		namespaceKey:        wellknown.ParamControllerPublishSecretNamespace,
		deprecatedName:      wellknown.DeprecatedParamControllerPublishSecretName,
		deprecatedNamespace: wellknown.DeprecatedParamControllerPublishSecretNamespace,
	}
	// NodeStage is for NodeStageVolume.
	NodeStage = Consumer{
		name:                "node-stage",
		nameKey:             wellknown.ParamNodeStageSecretName,
		namespaceKey:        wellknown.ParamNodeStageSecretNamespace,
		deprecatedName:      wellknown.DeprecatedParamNodeStageSecretName,
		deprecatedNamespace: wellknown.DeprecatedParamNodeStageSecretNamespace,
	}
	// NodePublish is for NodePublishVolume.
	NodePublish = Consumer{
		name:                "node-publish",
		nameKey:             wellknown.ParamNodePublishSecretName,
		namespaceKey:        wellknown.ParamNodePublishSecretNamespace,
		deprecatedName:      wellknown.DeprecatedParamNodePublishSecretName,
		deprecatedNamespace: wellknown.DeprecatedParamNodePublishSecretNamespace,
	}
	// ControllerExpand is for ControllerExpandVolume.
	ControllerExpand = Consumer{
		name:         "controller-expand",
		nameKey:      wellknown.ParamControllerExpandSecretName,
		namespaceKey: wellknown.ParamControllerExpandSecretNamespace,
	}
	// NodeExpand is for NodeExpandVolume.
	NodeExpand = Consumer{
		name:         "node-expand",
		nameKey:      wellknown.ParamNodeExpandSecretName,
		namespaceKey: wellknown.ParamNodeExpandSecretNamespace,
	}
	// ControllerModify is for ControllerModifyVolume.
	ControllerModify = Consumer{
		name:         "controller-modify",
		nameKey:      wellknown.ParamControllerModifySecretName,
		namespaceKey: wellknown.ParamControllerModifySecretNamespace,
	}
)

// defaults is the pair that stands in for every consumer without one of its own.
var defaults = Consumer{
	name:         "default",
	nameKey:      wellknown.ParamSecretName,
	namespaceKey: wellknown.ParamSecretNamespace,
}

// String returns the name as it appears in errors.
func (c Consumer) String() string { return c.name }

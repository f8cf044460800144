package volume

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// reserved holds the keys below wellknown.ReservedPrefix that a class may have; they are ours, not the driver's.
var reserved = map[string]bool{
	wellknown.ParamFSType:                           true,
	wellknown.ParamSecretName:                       true,
	wellknown.ParamSecretNamespace:                  true,
	wellknown.ParamProvisionerSecretName:            true,
	wellknown.ParamProvisionerSecretNamespace:       true,
	wellknown.ParamControllerPublishSecretName:      true,
	wellknown.ParamControllerPublishSecretNamespace: true,
	wellknown.ParamNodeStageSecretName:              true,
	wellknown.ParamNodeStageSecretNamespace:         true,
	wellknown.ParamNodePublishSecretName:            true,
	wellknown.ParamNodePublishSecretNamespace:       true,
	wellknown.ParamControllerExpandSecretName:       true,
	wellknown.ParamControllerExpandSecretNamespace:  true,
	wellknown.ParamNodeExpandSecretName:             true,
	wellknown.ParamNodeExpandSecretNamespace:        true,
	wellknown.ParamControllerModifySecretName:       true,
	wellknown.ParamControllerModifySecretNamespace:  true,
}

// Parameters returns the class's parameters without the reserved keys: what the driver gets in CreateVolume and
// GetCapacity. Deprecated keys without the prefix stay. The result is never nil and belongs to the caller.
// A key with the reserved prefix that we do not know is an error, Failed.
func Parameters(parameters map[string]string) (map[string]string, error) {
	stripped := make(map[string]string, len(parameters)+3) // room for AddMetadata
	var unknown []string
	for key, value := range parameters {
		switch {
		case !strings.HasPrefix(key, wellknown.ReservedPrefix):
			stripped[key] = value
		case !reserved[key]:
			unknown = append(unknown, key)
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return nil, outcome.With(outcome.Failed, fmt.Errorf(
			"unknown parameters %q with the reserved prefix %q", unknown, wellknown.ReservedPrefix))
	}
	return stripped, nil
}

// AddMetadata adds to parameters, a map made by Parameters, the names of the claim and of its PersistentVolume.
func AddMetadata(parameters map[string]string, claim *corev1.PersistentVolumeClaim, pvName string) {
	parameters[wellknown.ParamClaimName] = claim.Name
	parameters[wellknown.ParamClaimNamespace] = claim.Namespace
	parameters[wellknown.ParamPVName] = pvName
}

// FSType returns the file system type that the class's parameters ask for, else def, which may be empty.
// deprecated says that they use the key without the prefix, which deserves a warning. More than one key for it,
// also two spellings of the old one or an empty value, is an error, Failed.
func FSType(parameters map[string]string, def string) (fsType string, deprecated bool, err error) {
	var keys []string
	for key := range parameters {
		// ToLower and not EqualFold, which also takes letters that only fold to ASCII ("fſtype").
		if key == wellknown.ParamFSType || strings.ToLower(key) == wellknown.DeprecatedParamFSType {
			keys = append(keys, key)
		}
	}
	if len(keys) > 1 {
		slices.Sort(keys)
		return "", false, outcome.With(outcome.Failed, fmt.Errorf(
			"the class gives the file system type more than once, with the keys %q: use %q and not %q",
			keys, wellknown.ParamFSType, wellknown.DeprecatedParamFSType))
	}
	if len(keys) == 0 {
		return def, false, nil
	}
	fsType, deprecated = parameters[keys[0]], keys[0] != wellknown.ParamFSType
	if fsType == "" {
		fsType = def
	}
	return fsType, deprecated, nil
}

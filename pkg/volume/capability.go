package volume

import (
	"fmt"
	"slices"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/accessmodes"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

// CapabilityInput is what the volume capabilities of a request are made from.
type CapabilityInput struct {
	// Claim is required; only read.
	Claim *corev1.PersistentVolumeClaim
	// FSType is the file system of mounted volumes, as returned by the function FSType; may be empty.
	FSType string
	// MountOptions are the class's; copied.
	MountOptions []string
	// SingleNodeMultiWriter says that the driver has the controller capability SINGLE_NODE_MULTI_WRITER.
	SingleNodeMultiWriter bool
}

// Capabilities returns one capability for each access mode of the claim, in its order and with its duplicates.
// Each mode is mapped on its own, so modes that CSI cannot hold in one capability are no error here. An
// access mode that CSI does not know is an error, Failed. The caller owns the result.
func Capabilities(in CapabilityInput) ([]*csi.VolumeCapability, error) {
	capabilities := make([]*csi.VolumeCapability, 0, len(in.Claim.Spec.AccessModes))
	for _, claimMode := range in.Claim.Spec.AccessModes {
		mode, err := accessmodes.ToCSIAccessMode([]corev1.PersistentVolumeAccessMode{claimMode}, in.SingleNodeMultiWriter)
		if err != nil {
			return nil, outcome.With(outcome.Failed, fmt.Errorf("unsupported access mode %q: %w", claimMode, err))
		}
		c := &csi.VolumeCapability{AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode}}
		if isBlock(in.Claim) {
			c.AccessType = &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}}
		} else {
			c.AccessType = &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{
				FsType:     in.FSType,
				MountFlags: slices.Clone(in.MountOptions),
			}}
		}
		capabilities = append(capabilities, c)
	}
	return capabilities, nil
}

package volume

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
)

func mounted(mode csi.VolumeCapability_AccessMode_Mode, fsType string, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: flags}},
	}
}

func block(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
	}
}

func TestCapabilities(t *testing.T) {
	t.Parallel()
	const (
		rwo  = corev1.ReadWriteOnce
		rwop = corev1.ReadWriteOncePod
		rox  = corev1.ReadOnlyMany
		rwx  = corev1.ReadWriteMany
	)
	for name, tc := range map[string]struct {
		modes       []corev1.PersistentVolumeAccessMode
		volumeMode  *corev1.PersistentVolumeMode
		fsType      string
		mount       []string
		multiWriter bool
		want        []*csi.VolumeCapability
		wantErr     string
	}{
		"no mode is no capability": {want: []*csi.VolumeCapability{}},
		"each mode, for drivers without SINGLE_NODE_MULTI_WRITER": {
			modes: []corev1.PersistentVolumeAccessMode{rwo, rwop, rox, rwx},
			want: []*csi.VolumeCapability{
				mounted(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, ""),
				mounted(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, ""),
				mounted(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, ""),
				mounted(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, ""),
			},
		},
		"each mode, for drivers with it": {
			modes: []corev1.PersistentVolumeAccessMode{rwo, rwop, rox, rwx}, multiWriter: true,
			want: []*csi.VolumeCapability{
				mounted(csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER, ""),
				mounted(csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER, ""),
				mounted(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, ""),
				mounted(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, ""),
			},
		},
		"order and duplicates stay": {
			modes: []corev1.PersistentVolumeAccessMode{rox, rwo, rox},
			want: []*csi.VolumeCapability{
				mounted(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, ""),
				mounted(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, ""),
				mounted(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, ""),
			},
		},
		"file system and mount options on each": {
			modes: []corev1.PersistentVolumeAccessMode{rwo, rwx}, volumeMode: new(corev1.PersistentVolumeFilesystem),
			fsType: "xfs", mount: []string{"b", "a"},
			want: []*csi.VolumeCapability{
				mounted(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "xfs", "b", "a"),
				mounted(csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER, "xfs", "b", "a"),
			},
		},
		"a raw device has neither": {
			modes: []corev1.PersistentVolumeAccessMode{rwo}, volumeMode: new(corev1.PersistentVolumeBlock),
			fsType: "xfs", mount: []string{"a"},
			want: []*csi.VolumeCapability{block(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)},
		},
		"an unknown mode": {
			modes: []corev1.PersistentVolumeAccessMode{rwo, "WriteNever"}, wantErr: `unsupported access mode "WriteNever"`,
		},
		"an unknown mode with SINGLE_NODE_MULTI_WRITER": {
			modes: []corev1.PersistentVolumeAccessMode{""}, multiWriter: true, wantErr: "unsupported access mode",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claim := annotated(nil)
			claim.Spec.AccessModes, claim.Spec.VolumeMode = tc.modes, tc.volumeMode
			got, err := Capabilities(CapabilityInput{Claim: claim, FSType: tc.fsType, MountOptions: tc.mount, SingleNodeMultiWriter: tc.multiWriter})
			checkFailed(t, err, tc.wantErr)
			if diff := cmp.Diff(tc.want, got, protocmp.Transform()); diff != "" {
				t.Errorf("capabilities (-want +got):\n%s", diff)
			}
		})
	}
}

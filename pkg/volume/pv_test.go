package volume

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func testInput() PVInput {
	return PVInput{
		Name: "pvc-1", Driver: "csi.example.com", ProvisionedBy: "csi.example.com", Identity: "1-2-csi.example.com", ClassName: "fast",
		Claim: &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Name: "data", Namespace: "team-a", UID: testUID, ResourceVersion: "42", Labels: map[string]string{"a": "b"}},
			Spec:       corev1.PersistentVolumeClaimSpec{AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}},
		},
		Request: &csi.CreateVolumeRequest{
			Name:               "pvc-1",
			CapacityRange:      &csi.CapacityRange{RequiredBytes: 1000},
			VolumeCapabilities: []*csi.VolumeCapability{mounted(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "ext4")},
		},
		Volume: &csi.Volume{VolumeId: "vol/1", CapacityBytes: 102400},
	}
}

// testPV is what testInput gives.
func testPV() *corev1.PersistentVolume {
	return &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: "pvc-1",
			Annotations: map[string]string{
				"pv.kubernetes.io/provisioned-by":                            "csi.example.com",
				"volume.kubernetes.io/provisioner-deletion-secret-name":      "",
				"volume.kubernetes.io/provisioner-deletion-secret-namespace": "",
			},
			Finalizers: []string{"external-provisioner.volume.kubernetes.io/finalizer"},
		},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:    corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("100Ki")},
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			ClaimRef: &corev1.ObjectReference{
				Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: "team-a", Name: "data", UID: testUID, ResourceVersion: "42",
			},
			StorageClassName: "fast",
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: "csi.example.com", VolumeHandle: "vol/1",
				VolumeAttributes: map[string]string{"storage.kubernetes.io/csiProvisionerIdentity": "1-2-csi.example.com"},
			}},
		},
	}
}

func TestBuildPV(t *testing.T) {
	t.Parallel()
	ref := func(name string) *corev1.SecretReference { return &corev1.SecretReference{Name: name, Namespace: "ns"} }
	affinity := &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpIn, Values: []string{"a"}}},
	}}}}
	readers := mounted(csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY, "")
	for name, tc := range map[string]struct {
		in   func(in *PVInput)
		want func(pv *corev1.PersistentVolume)
	}{
		"the least": {},
		"the driver's larger size": {
			in:   func(in *PVInput) { in.Volume.CapacityBytes = 5970004541 },
			want: func(pv *corev1.PersistentVolume) { setSize(pv, "5970004541") },
		},
		"the requested size when the driver does not tell": {
			in:   func(in *PVInput) { in.Volume.CapacityBytes = 0 },
			want: func(pv *corev1.PersistentVolume) { setSize(pv, "1000") },
		},
		"all secrets": {
			in: func(in *PVInput) {
				in.Secrets = SecretRefs{
					Provisioner: ref("p"), ControllerPublish: ref("cp"), NodeStage: ref("ns"), NodePublish: ref("np"),
					ControllerExpand: ref("ce"), NodeExpand: ref("ne"), ControllerModify: ref("cm"),
				}
			},
			want: func(pv *corev1.PersistentVolume) {
				pv.Annotations["volume.kubernetes.io/provisioner-deletion-secret-name"] = "p"
				pv.Annotations["volume.kubernetes.io/provisioner-deletion-secret-namespace"] = "ns"
				pv.Annotations["volume.kubernetes.io/controller-modify-secret-name"] = "cm"
				pv.Annotations["volume.kubernetes.io/controller-modify-secret-namespace"] = "ns"
				pv.Spec.CSI.ControllerPublishSecretRef, pv.Spec.CSI.NodeStageSecretRef = ref("cp"), ref("ns")
				pv.Spec.CSI.NodePublishSecretRef, pv.Spec.CSI.ControllerExpandSecretRef = ref("np"), ref("ce")
				pv.Spec.CSI.NodeExpandSecretRef = ref("ne")
			},
		},
		"copies from the claim, which change nothing that is there anyway": {
			in: func(in *PVInput) {
				in.Labels = map[string]string{"team": "blue"}
				in.Annotations = map[string]string{"example.com/cost": "42", "pv.kubernetes.io/provisioned-by": "evil", "volume.kubernetes.io/provisioner-deletion-secret-name": "evil"}
			},
			want: func(pv *corev1.PersistentVolume) {
				pv.Labels = map[string]string{"team": "blue"}
				pv.Annotations["example.com/cost"] = "42"
			},
		},
		"what the class says": {
			in: func(in *PVInput) {
				in.ReclaimPolicy = new(corev1.PersistentVolumeReclaimRetain)
				in.MountOptions, in.FSType, in.VACName = []string{"b", "a"}, "xfs", "gold"
			},
			want: func(pv *corev1.PersistentVolume) {
				pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
				pv.Spec.MountOptions, pv.Spec.CSI.FSType, pv.Spec.VolumeAttributesClassName = []string{"b", "a"}, "xfs", new("gold")
			},
		},
		"a mounted volume, said so": {
			in: func(in *PVInput) { in.Claim.Spec.VolumeMode, in.FSType = new(corev1.PersistentVolumeFilesystem), "xfs" },
			want: func(pv *corev1.PersistentVolume) {
				pv.Spec.VolumeMode, pv.Spec.CSI.FSType = new(corev1.PersistentVolumeFilesystem), "xfs"
			},
		},
		"a raw device keeps the mount options and has no file system": {
			in: func(in *PVInput) {
				in.Claim.Spec.VolumeMode, in.FSType, in.MountOptions = new(corev1.PersistentVolumeBlock), "xfs", []string{"a"}
			},
			want: func(pv *corev1.PersistentVolume) {
				pv.Spec.VolumeMode, pv.Spec.MountOptions = new(corev1.PersistentVolumeBlock), []string{"a"}
			},
		},
		"the claim's access modes as they are": {
			in: func(in *PVInput) {
				in.Claim.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany, corev1.ReadOnlyMany, corev1.ReadWriteMany}
			},
			want: func(pv *corev1.PersistentVolume) {
				pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany, corev1.ReadOnlyMany, corev1.ReadWriteMany}
			},
		},
		"a volume context, which wins over our identity": {
			in: func(in *PVInput) {
				in.Volume.VolumeContext = map[string]string{"a": "b", "storage.kubernetes.io/csiProvisionerIdentity": "theirs"}
			},
			want: func(pv *corev1.PersistentVolume) {
				pv.Spec.CSI.VolumeAttributes = map[string]string{"a": "b", "storage.kubernetes.io/csiProvisionerIdentity": "theirs"}
			},
		},
		"a node affinity": {
			in:   func(in *PVInput) { in.NodeAffinity = affinity },
			want: func(pv *corev1.PersistentVolume) { pv.Spec.NodeAffinity = affinity.DeepCopy() },
		},
		"the in-tree name of a migrated class": {
			in: func(in *PVInput) { in.ProvisionedBy = "kubernetes.io/example" },
			want: func(pv *corev1.PersistentVolume) {
				pv.Annotations["pv.kubernetes.io/provisioned-by"] = "kubernetes.io/example"
			},
		},
		"readers only, with the flag, is read-only": {
			in: func(in *PVInput) {
				in.PublishReadonly, in.Request.VolumeCapabilities = true, []*csi.VolumeCapability{readers}
			},
			want: func(pv *corev1.PersistentVolume) { pv.Spec.CSI.ReadOnly = true },
		},
		"readers only without the flag": {
			in: func(in *PVInput) { in.Request.VolumeCapabilities = []*csi.VolumeCapability{readers} },
		},
		"readers and another mode": {
			in: func(in *PVInput) {
				in.PublishReadonly = true
				in.Request.VolumeCapabilities = []*csi.VolumeCapability{readers, mounted(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER, "")}
			},
		},
		"the flag without any mode": {
			in: func(in *PVInput) { in.PublishReadonly, in.Request.VolumeCapabilities = true, nil },
		},
		"the flag with a writer": {
			in: func(in *PVInput) { in.PublishReadonly = true },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in, want := testInput(), testPV()
			if tc.in != nil {
				tc.in(&in)
			}
			if tc.want != nil {
				tc.want(want)
			}
			got := BuildPV(in)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("volume (-want +got):\n%s", diff)
			}
			// Equal quantities may be written differently; users see the text.
			if got, want := got.Spec.Capacity.Storage().String(), want.Spec.Capacity.Storage().String(); got != want {
				t.Errorf("capacity is written %q, want %q", got, want)
			}
		})
	}
}

func setSize(pv *corev1.PersistentVolume, size string) {
	pv.Spec.Capacity[corev1.ResourceStorage] = resource.MustParse(size)
}

// What BuildPV returns can be changed at will, as the in-tree translation does, and what it was given stays.
func TestBuildPVSharesNothing(t *testing.T) {
	t.Parallel()
	input := func() PVInput {
		in := testInput()
		in.ReclaimPolicy, in.VACName, in.MountOptions = new(corev1.PersistentVolumeReclaimDelete), "gold", []string{"a"}
		in.Claim.Spec.VolumeMode = new(corev1.PersistentVolumeFilesystem)
		in.Volume.VolumeContext = map[string]string{"a": "b"}
		in.Secrets = SecretRefs{NodeStage: &corev1.SecretReference{Name: "s"}, ControllerModify: &corev1.SecretReference{Name: "m"}}
		in.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{}}}}
		return in
	}
	in := input()
	first := BuildPV(in)
	second := BuildPV(in)
	if diff := cmp.Diff(first, second); diff != "" {
		t.Errorf("the same input gave different volumes (-first +second):\n%s", diff)
	}
	first.Annotations["x"], first.Finalizers[0], first.Spec.MountOptions[0] = "y", "x", "x"
	first.Spec.AccessModes[0], *first.Spec.VolumeMode, *first.Spec.VolumeAttributesClassName = "x", "x", "x"
	first.Spec.CSI.VolumeAttributes["a"], first.Spec.CSI.NodeStageSecretRef.Name, first.Spec.ClaimRef.Name = "x", "x", "x"
	first.Spec.NodeAffinity.Required.NodeSelectorTerms = nil
	if diff := cmp.Diff(input(), in, protocmp.Transform()); diff != "" {
		t.Errorf("the input was changed (-before +after):\n%s", diff)
	}
	if diff := cmp.Diff(BuildPV(input()), second); diff != "" {
		t.Errorf("another result was changed (-want +got):\n%s", diff)
	}
}

// FuzzBuildPV: whatever a driver answers that CheckResponse lets pass becomes a volume with a handle and a size
// that is at least the requested one, and the answer stays as it was.
func FuzzBuildPV(f *testing.F) {
	f.Add("v", int64(0), int64(1000), "k", false)
	f.Add("", int64(1), int64(0), "", true)
	f.Add("v", int64(-1), int64(0), "storage.kubernetes.io/csiProvisionerIdentity", true)
	f.Add("\xff", int64(1<<62), int64(1<<63-1), "k", true)
	f.Fuzz(func(t *testing.T, id string, size, required int64, key string, content bool) {
		in := testInput()
		in.Request.CapacityRange.RequiredBytes = max(required, 0)
		in.Volume = &csi.Volume{VolumeId: id, CapacityBytes: size, VolumeContext: map[string]string{key: "v"}}
		if content {
			in.Request.VolumeContentSource = &csi.VolumeContentSource{}
		}
		before := proto.Clone(in.Volume)
		if CheckResponse(in.Request, &csi.CreateVolumeResponse{Volume: in.Volume}) != nil {
			return
		}
		if content {
			t.Error("the missing content was not noticed")
		}
		pv := BuildPV(in)
		if pv.Spec.CSI.VolumeHandle == "" || pv.Spec.Capacity.Storage().Value() < in.Request.GetCapacityRange().GetRequiredBytes() {
			t.Errorf("handle %q and size %s for %d requested", pv.Spec.CSI.VolumeHandle, pv.Spec.Capacity.Storage(), required)
		}
		if pv.Spec.CSI.VolumeAttributes[key] != "v" {
			t.Errorf("attributes %v without the driver's %q", pv.Spec.CSI.VolumeAttributes, key)
		}
		if !proto.Equal(before, in.Volume) {
			t.Error("the answer was changed")
		}
	})
}

func BenchmarkBuildPV(b *testing.B) {
	in := testInput()
	in.Volume.VolumeContext = map[string]string{"a": "b", "c": "d"}
	b.ReportAllocs()
	for b.Loop() {
		BuildPV(in)
	}
}

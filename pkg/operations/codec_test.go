package operations

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/volume"
)

var update = flag.Bool("update", false, "write the golden file of the present version")

const leaseUID = "5b0c1d5e-0000-4000-8000-000000000001"

// full is an operation in which nothing is empty.
func full() Operation {
	ref := func(name string) *corev1.SecretReference {
		return &corev1.SecretReference{Namespace: "storage", Name: name}
	}
	zone := &csi.Topology{Segments: map[string]string{"topology.example.com/zone": "a", "topology.example.com/rack": "7"}}
	return Operation{
		Driver: testDriver, Node: "node-1",
		Claim:      Object{Namespace: "team", Name: "data", UID: "claim-uid"},
		Class:      Object{Name: "fast", UID: "class-uid"},
		VolumeName: "pvc-claim-uid",
		Request: &csi.CreateVolumeRequest{
			Name: "pvc-claim-uid", CapacityRange: &csi.CapacityRange{RequiredBytes: 1 << 40},
			VolumeCapabilities: []*csi.VolumeCapability{{
				AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "xfs", MountFlags: []string{"noatime"}}},
				AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
			}},
			Parameters: map[string]string{"tier": "gold", "text": "<ä & \"b\">"},
			VolumeContentSource: &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
				Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: "snap-1"},
			}},
			AccessibilityRequirements: &csi.TopologyRequirement{Requisite: []*csi.Topology{zone}, Preferred: []*csi.Topology{zone}},
			MutableParameters:         map[string]string{"iops": "9000"},
		},
		Secrets: volume.SecretRefs{
			Provisioner: ref("provisioner"), ControllerPublish: ref("publish"), NodeStage: ref("stage"), NodePublish: ref("node-publish"),
			ControllerExpand: ref("expand"), NodeExpand: ref("node-expand"), ControllerModify: ref("modify"),
		},
		Source:       Source{Group: "snapshot.storage.k8s.io", Kind: "VolumeSnapshot", Namespace: "team", Name: "monday", UID: "source-uid"},
		SelectedNode: "node-1", Reschedulable: true,
		PersistentVolume: PersistentVolume{
			Provisioner: "example.com/in-tree", Identity: "1-2-csi.example.com", Translated: true, PublishReadonly: true,
			AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, VolumeMode: new(corev1.PersistentVolumeFilesystem),
			FSType: "xfs", ReclaimPolicy: new(corev1.PersistentVolumeReclaimDelete), MountOptions: []string{"noatime"}, VACName: "quick",
			Labels: map[string]string{"team": "a"}, Annotations: map[string]string{"note": "b"},
		},
	}
}

func mustEncode(t *testing.T, op Operation) string {
	t.Helper()
	text, err := Encode(op, leaseUID)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func wantOperation(t *testing.T, got, want Operation) {
	t.Helper()
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("operation (-want +got):\n%s", diff)
	}
}

// The golden file of a version never changes, and the version after it reads it.
func TestGolden(t *testing.T) {
	file := func(version int) string { return filepath.Join("testdata", fmt.Sprintf("v%d.json", version)) }
	text := mustEncode(t, full())
	if *update {
		if err := os.WriteFile(file(Version), []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for version := max(1, Version-1); version <= Version; version++ {
		golden, err := os.ReadFile(file(version))
		if err != nil {
			t.Fatal(err)
		}
		if version == Version && strings.TrimSpace(string(golden)) != text {
			t.Errorf("%s is not what is written now (a change needs a new version):\n%s", file(version), text)
		}
		op, err := Decode(string(golden), leaseUID)
		if err != nil {
			t.Fatal(err)
		}
		wantOperation(t, op, full())
	}
}

func TestSameTextForTheSameOperation(t *testing.T) {
	text := mustEncode(t, full())
	for range 100 {
		if again := mustEncode(t, full()); again != text {
			t.Fatalf("two texts:\n%s\n%s", text, again)
		}
	}
}

func TestSecretsAreNotEncoded(t *testing.T) {
	op := full()
	op.Request.Secrets = map[string]string{"password": "hunter2"}
	if text := mustEncode(t, op); strings.Contains(text, "hunter2") || strings.Contains(text, "password") {
		t.Errorf("a secret is in %s", text)
	}
	if op.Request.Secrets == nil {
		t.Error("the request was changed")
	}
}

func TestLongTopologyIsReduced(t *testing.T) {
	op := full()
	var terms []*csi.Topology
	for i := range 200 {
		terms = append(terms, &csi.Topology{Segments: map[string]string{"topology.example.com/host": fmt.Sprintf("host-%d.%s", i, strings.Repeat("x", 40))}})
	}
	op.Request.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: terms, Preferred: terms[7:]}
	got, err := Decode(mustEncode(t, op), leaseUID)
	if err != nil {
		t.Fatal(err)
	}
	want := full()
	want.TopologyReduced = true
	want.Request.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: terms[7:8], Preferred: terms[7:8]}
	wantOperation(t, got, want)
	if len(op.Request.GetAccessibilityRequirements().GetRequisite()) != 200 {
		t.Error("the request was changed")
	}
	op.Request.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: terms}
	if got, err = Decode(mustEncode(t, op), leaseUID); err != nil {
		t.Fatal(err)
	}
	want.Request.AccessibilityRequirements = &csi.TopologyRequirement{Requisite: terms[:1], Preferred: terms[:1]}
	wantOperation(t, got, want)
}

func TestLongRequestIsCompressed(t *testing.T) {
	op := full()
	op.Request.Parameters["long"] = strings.Repeat("0123456789", compressAbove/10)
	text := mustEncode(t, op)
	if len(text) > compressAbove || !strings.Contains(text, "requestGzip") {
		t.Errorf("%d bytes, want the request compressed", len(text))
	}
	got, err := Decode(text, leaseUID)
	if err != nil {
		t.Fatal(err)
	}
	wantOperation(t, got, op)
}

func TestTooLarge(t *testing.T) {
	op := full()
	op.PersistentVolume.Annotations["long"] = strings.Repeat("x", maxBytes)
	if _, err := Encode(op, leaseUID); !errors.Is(err, ErrTooLarge) {
		t.Errorf("%v, want ErrTooLarge", err)
	}
}

func TestDecodeRefuses(t *testing.T) {
	text := mustEncode(t, full())
	bomb := func() string {
		data, err := compress(make([]byte, maxRequestBytes+1))
		if err != nil {
			t.Fatal(err)
		}
		i, j := strings.Index(text, `"request":`), len(text)-1
		return text[:i] + fmt.Sprintf(`"requestGzip":%q`, encodeBase64(data)) + text[j:]
	}()
	for name, tc := range map[string]struct {
		text string
		want string
	}{
		"no JSON":                 {"nonsense", "no JSON"},
		"empty":                   {"", "no JSON"},
		"no version":              {`{}`, "unknown version 0"},
		"a later version":         {strings.Replace(text, `"version":1`, `"version":2`, 1), "unknown version 2"},
		"another Lease":           {strings.Replace(text, leaseUID, "other", 1), "another UID"},
		"a field of no version":   {strings.Replace(text, `{"version"`, `{"new":1,"version"`, 1), "unknown field"},
		"a field of no request":   {strings.Replace(text, `"request":{`, `"request":{"new":1,`, 1), "the request cannot be read"},
		"no request":              {strings.Replace(text, `"request":{`, `"request":null,"x":{`, 1), "unknown field"},
		"no driver":               {strings.Replace(text, `"driver":"csi.example.com",`, "", 1), "has no driver"},
		"no UID of the claim":     {strings.Replace(text, `"uid":"claim-uid"`, `"uid":""`, 1), "has no claim.uid"},
		"another volume":          {strings.Replace(text, `"volumeName":"pvc-claim-uid"`, `"volumeName":"pvc-x"`, 1), "for the volume"},
		"secrets":                 {strings.Replace(text, `"request":{`, `"request":{"secrets":{"a":"b"},`, 1), `unknown field "secrets"`},
		"a request without bound": {bomb, "longer than"},
	} {
		if _, err := Decode(tc.text, leaseUID); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v, want %q", name, err, tc.want)
		}
	}
}

// FuzzDecode holds that no text breaks the reader, and that what is read is written again with the same meaning.
func FuzzDecode(f *testing.F) {
	for _, op := range []Operation{full(), operation("a")} {
		text, err := Encode(op, leaseUID)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		op, err := Decode(text, leaseUID)
		if err != nil {
			return
		}
		again, err := Encode(op, leaseUID)
		if errors.Is(err, ErrTooLarge) {
			return
		}
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		got, err := Decode(again, leaseUID)
		if err != nil {
			t.Fatalf("what was written cannot be read: %v", err)
		}
		if op.TopologyReduced == got.TopologyReduced {
			if third := mustEncode(t, got); third != again {
				t.Errorf("two texts:\n%s\n%s", again, third)
			}
		}
	})
}

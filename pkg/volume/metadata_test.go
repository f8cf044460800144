package volume

import (
	"maps"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

func described(annotations, labels map[string]string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data", Annotations: annotations, Labels: labels}}
}

func TestAddClaimMetadata(t *testing.T) {
	t.Parallel()
	claim := described(
		map[string]string{"team": "blue", "example.com/cost": "42", "example.com/note": "", wellknown.AnnProvisioningInProgress: "{}", wellknown.AnnSelectedNode: "n1"},
		map[string]string{"team": "red", "app.kubernetes.io/name": "db"},
	)
	for name, tc := range map[string]struct {
		claim   *corev1.PersistentVolumeClaim
		keys    ClaimKeys
		want    map[string]string // beside the class's
		wantErr string
	}{
		"nothing is asked for":       {claim: claim},
		"an annotation is no label":  {claim: claim, keys: ClaimKeys{Annotations: Keys{"team"}}, want: map[string]string{"csi.storage.k8s.io/pvc/annotations/team": "blue"}},
		"a label is no annotation":   {claim: claim, keys: ClaimKeys{Labels: Keys{"team"}}, want: map[string]string{"csi.storage.k8s.io/pvc/labels/team": "red"}},
		"what is not there is not":   {claim: claim, keys: ClaimKeys{Annotations: Keys{"nope"}, Labels: Keys{"nope/*"}}},
		"a prefix, and empty values": {claim: claim, keys: ClaimKeys{Annotations: Keys{"example.com/*"}}, want: map[string]string{"csi.storage.k8s.io/pvc/annotations/example.com/cost": "42", "csi.storage.k8s.io/pvc/annotations/example.com/note": ""}},
		"the annotation of pre-releases never": {
			claim: claim, keys: ClaimKeys{Annotations: Keys{wellknown.AnnProvisioningInProgress, "provisioner.storage.kubernetes.io/*"}},
		},
		"the driver may know what Kubernetes says": {
			claim: claim, keys: ClaimKeys{Annotations: Keys{"volume.kubernetes.io/*"}, Labels: Keys{"app.kubernetes.io/*"}},
			want: map[string]string{"csi.storage.k8s.io/pvc/annotations/volume.kubernetes.io/selected-node": "n1", "csi.storage.k8s.io/pvc/labels/app.kubernetes.io/name": "db"},
		},
		"as much as the spec allows": {
			claim: described(map[string]string{"a": strings.Repeat("x", 4096-len("csi.storage.k8s.io/pvc/annotations/a"))}, nil),
			keys:  ClaimKeys{Annotations: Keys{"a"}},
			want:  map[string]string{"csi.storage.k8s.io/pvc/annotations/a": strings.Repeat("x", 4096-len("csi.storage.k8s.io/pvc/annotations/a"))},
		},
		"more than that": {
			claim:   described(map[string]string{"a": strings.Repeat("x", 4096-len("csi.storage.k8s.io/pvc/annotations/a")), "b": ""}, nil),
			keys:    ClaimKeys{Annotations: Keys{"a", "b"}},
			wantErr: "bytes, more than 4096",
		},
		"what is not passed on may be as large as it is": {claim: described(map[string]string{"a": strings.Repeat("x", 5000)}, nil), keys: ClaimKeys{Annotations: Keys{"b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			parameters := map[string]string{"type": "ssd"}
			err := AddClaimMetadata(parameters, tc.claim, tc.keys)
			checkFailed(t, err, tc.wantErr)
			if err != nil {
				return
			}
			want := map[string]string{"type": "ssd"}
			maps.Copy(want, tc.want)
			if diff := cmp.Diff(want, parameters); diff != "" {
				t.Errorf("parameters (-want +got):\n%s", diff)
			}
		})
	}
}

// A class cannot say what only the claim may.
func TestAClassCannotPretendToBeTheClaim(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"csi.storage.k8s.io/pvc/annotations/team", "csi.storage.k8s.io/pvc/labels/team"} {
		_, err := Parameters(map[string]string{key: "fake"})
		checkFailed(t, err, key)
	}
}

func TestCopiedToPV(t *testing.T) {
	t.Parallel()
	claim := described(map[string]string{"team": "blue", "example.com/cost": "42"}, map[string]string{"team": "red", "app.kubernetes.io/name": "db"})
	keys := ClaimKeys{Annotations: Keys{"example.com/*", "nope"}, Labels: Keys{"app.kubernetes.io/*", "team"}}
	labels, annotations, err := CopiedToPV(claim, keys)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(claim.Labels, labels); diff != "" {
		t.Errorf("labels (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"example.com/cost": "42"}, annotations); diff != "" {
		t.Errorf("annotations (-want +got):\n%s", diff)
	}
	labels["team"] = "mine"
	if claim.Labels["team"] != "red" {
		t.Error("the map is the claim's own")
	}
	for name, none := range map[string]ClaimKeys{"no keys": {}, "no matching ones": {Annotations: Keys{"x"}, Labels: Keys{"y"}}} {
		labels, annotations, err := CopiedToPV(claim, none)
		if labels != nil || annotations != nil || err != nil {
			t.Errorf("%s: %v, %v, %v, want nothing", name, labels, annotations, err)
		}
	}
	_, _, err = CopiedToPV(described(map[string]string{"big": strings.Repeat("x", 200<<10)}, nil), ClaimKeys{Annotations: Keys{"big"}})
	checkFailed(t, err, "more than 196608")
}

// Whatever the patterns say, a claim cannot steer its PersistentVolume.
func TestWhatNeverComesToAPV(t *testing.T) {
	t.Parallel()
	for key, want := range map[string]bool{
		"volume.kubernetes.io/provisioner-deletion-secret-name": true, "volume.kubernetes.io/provisioner-deletion-secret-namespace": true,
		"volume.kubernetes.io/controller-modify-secret-name": true, "volume.beta.kubernetes.io/mount-options": true,
		"volume.beta.kubernetes.io/storage-class": true, "volume.alpha.kubernetes.io/node-affinity": true,
		"pv.kubernetes.io/provisioned-by": true, "pv.kubernetes.io/migrated-to": true, "pv.kubernetes.io/bound-by-controller": true,
		"pv.beta.kubernetes.io/gid": true, "topology.kubernetes.io/zone": true, "failure-domain.beta.kubernetes.io/zone": true,
		wellknown.AnnLastApplied: true, wellknown.AnnProvisioningInProgress: true, "kubernetes.io/createdby": true, "csi.storage.k8s.io/x": true,
		"Volume.Kubernetes.IO/x": true, "k8s.io/x": true,
		"app.kubernetes.io/name": false, "my-kubernetes.io/x": false, "kubernetes.io.example.com/x": false, "cluster.x-k8s.io/name": false,
		"kubernetes.io": false, "team": false, "example.com/kubernetes.io": false,
	} {
		if got := KeptFromPV(key); got != want {
			t.Errorf("KeptFromPV(%q) = %t, want %t", key, got, want)
		}
		prefix, _, _ := strings.Cut(key, "/")
		labels, annotations, err := CopiedToPV(described(map[string]string{key: "v"}, map[string]string{key: "v"}), ClaimKeys{Annotations: Keys{key, prefix + "/*"}, Labels: Keys{key}})
		if err != nil {
			t.Fatal(err)
		}
		if copied := len(labels) + len(annotations); (copied == 0) != want {
			t.Errorf("%q: copied %v and %v", key, labels, annotations)
		}
	}
}

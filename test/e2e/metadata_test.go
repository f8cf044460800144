package e2e

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

// What the flags name of a claim reaches the driver and the PersistentVolume; nothing else does, and nothing with which
// a user could steer the volume.
func TestWhatAClaimSaysReachesDriverAndVolume(t *testing.T) {
	t.Parallel()
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
	sidecar.Start(t, w.Options(
		"--create-metadata-annotations=cost.example.com/*,"+wellknown.AnnLastApplied, "--create-metadata-labels=team",
		"--pv-copy-annotations=cost.example.com/*,volume.kubernetes.io/*,pv.kubernetes.io/*", "--pv-copy-labels=team,app.kubernetes.io/*,topology.kubernetes.io/*",
	))
	w.Claim(t, fixture.Claim("data").Class(w.Class(t, fixture.Class("c").Parameter("type", "ssd"))).
		Annotation("cost.example.com/center", "4711").Annotation("note", "private").Annotation(wellknown.AnnLastApplied, "{}").
		Annotation(wellknown.AnnDeletionSecretName, "stolen").Annotation(wellknown.AnnDeletionSecretNamespace, "kube-system").
		Label("team", "blue").Label("app.kubernetes.io/name", "db").Label("topology.kubernetes.io/zone", "far"))
	_, pv := w.Bound(t, "data")
	want := map[string]string{
		"type": "ssd",
		"csi.storage.k8s.io/pvc/annotations/cost.example.com/center":     "4711",
		"csi.storage.k8s.io/pvc/annotations/" + wellknown.AnnLastApplied: "{}",
		"csi.storage.k8s.io/pvc/labels/team":                             "blue",
	}
	if diff := cmp.Diff(want, w.Driver.Volumes()[0].Parameters); diff != "" {
		t.Errorf("parameters (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(map[string]string{"team": "blue", "app.kubernetes.io/name": "db"}, pv.Labels); diff != "" {
		t.Errorf("labels of the PersistentVolume (-want +got):\n%s", diff)
	}
	want = map[string]string{
		"cost.example.com/center":            "4711",
		wellknown.AnnProvisionedBy:           w.Driver.Name(),
		wellknown.AnnDeletionSecretName:      "",
		wellknown.AnnDeletionSecretNamespace: "",
	}
	if diff := cmp.Diff(want, pv.Annotations); diff != "" {
		t.Errorf("annotations of the PersistentVolume (-want +got):\n%s", diff)
	}
	w.DeleteClaim(t, "data")
	w.Empty(t)
}

// A class that claims to be the claim is refused, with and without the flags.
func TestAClassCannotSpeakForItsClaims(t *testing.T) {
	t.Parallel()
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
	sidecar.Start(t, w.Options("--create-metadata-labels=team"))
	fake := wellknown.ParamClaimLabelPrefix + "team"
	w.Claim(t, fixture.Claim("data").Class(w.Class(t, fixture.Class("c").Parameter(fake, "red"))).Label("team", "blue"))
	if message := w.Event(t, "data", "ProvisioningFailed"); !strings.Contains(message, fake) {
		t.Errorf("event %q does not name %s", message, fake)
	}
	if calls := w.Driver.Calls("CreateVolume"); len(calls) != 0 {
		t.Errorf("calls %v, want none", calls)
	}
}

package e2e

import (
	"context"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

func TestAClaimGetsItsVolumeAndGivesItBack(t *testing.T) {
	t.Parallel()
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
	sidecar.Start(t, w.Options())
	class := w.Class(t, fixture.Class("fast").Parameter("type", "ssd").Parameter("csi.storage.k8s.io/fstype", "xfs"))
	w.Claim(t, fixture.Claim("data").Class(class).Size("2Gi"))

	_, pv := w.Bound(t, "data")
	volumes := w.Driver.Volumes()
	if len(volumes) != 1 || volumes[0].Name != pv.Name || volumes[0].ID != pv.Spec.CSI.VolumeHandle {
		t.Fatalf("volumes %v, want the one of PV %s", volumes, pv.Name)
	}
	if got := pv.Spec.CSI.FSType + " " + pv.Spec.Capacity.Storage().String(); got != "xfs 2Gi" {
		t.Errorf("PV has %s, want xfs 2Gi", got)
	}
	if diff := cmp.Diff(map[string]string{"type": "ssd"}, volumes[0].Parameters); diff != "" {
		t.Errorf("parameters (-want +got):\n%s", diff)
	}
	w.Event(t, "data", "ProvisioningSucceeded")

	w.DeleteClaim(t, "data")
	w.Empty(t)
	if calls := w.Driver.Calls("DeleteVolume"); len(calls) != 1 {
		t.Errorf("%d calls of DeleteVolume, want one", len(calls))
	}
}

// A plain driver needs no more than the base rights.
func TestTheBaseRightsAreEnoughForAPlainDriver(t *testing.T) {
	t.Parallel()
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{Capabilities: []memdriver.Capability{memdriver.CreateDelete}}, "base")
	process := sidecar.Start(t, w.Options())
	w.Claim(t, fixture.Claim("data").Class(w.Class(t, fixture.Class("c"))))
	w.Bound(t, "data")
	w.Event(t, "data", "ProvisioningSucceeded")
	w.DeleteClaim(t, "data")
	w.Empty(t)
	if strings.Contains(process.Log(), "forbidden") {
		t.Error("something was forbidden")
	}
}

func TestSecretsReachTheDriverAndNeverTheLog(t *testing.T) {
	t.Parallel()
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
	const hush = "hush-do-not-print"
	secret := fixture.Secret(w.Namespace, "of-data", map[string]string{"user": "admin-" + hush, "password": hush})
	if _, err := w.Client.CoreV1().Secrets(w.Namespace).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	class := w.Class(t, fixture.Class("secret").
		Parameter(wellknown.ParamSecretName, "of-${pvc.name}").Parameter(wellknown.ParamSecretNamespace, "${pvc.namespace}"))
	w.Driver.Add(memdriver.Rule{Method: "CreateVolume", Times: 1, Code: 13, Message: "refused for a start"})
	process := sidecar.Start(t, w.Options("-v=10"))
	w.Claim(t, fixture.Claim("data").Class(class))
	w.Bound(t, "data")
	w.DeleteClaim(t, "data")
	w.Empty(t)

	for _, method := range []string{"CreateVolume", "DeleteVolume"} {
		calls := w.Driver.Calls(method)
		if diff := cmp.Diff([]string{"password", "user"}, calls[len(calls)-1].SecretKeys); diff != "" {
			t.Errorf("secrets of %s (-want +got):\n%s", method, diff)
		}
	}
	if !strings.Contains(process.Log(), "CreateVolume") {
		t.Error("-v=10 shows no calls: this test proves nothing")
	}
	if strings.Contains(process.Log(), hush) {
		t.Error("the log shows a secret")
	}
}

func TestAPodMakesItsClaimLandInItsZone(t *testing.T) {
	t.Parallel()
	const zone = "topology.mem.csi/zone"
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{Topology: map[string]string{zone: "a"}})
	sidecar.Start(t, w.Options())
	pool := map[string]string{"pool": w.Namespace}
	for _, value := range []string{"a", "b"} {
		node := fixture.Node(w.Namespace+"-"+value, map[string]string{zone: value, "pool": pool["pool"], "chosen": value})
		if _, err := w.Client.CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = w.Client.CoreV1().Nodes().Delete(context.WithoutCancel(t.Context()), node.Name, metav1.DeleteOptions{})
		})
		csiNode := fixture.CSINode(node.Name, w.Driver.Name(), map[string]string{zone: value})
		if _, err := w.Client.StorageV1().CSINodes().Create(t.Context(), csiNode, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	late := w.Class(t, fixture.Class("late").WaitForFirstConsumer())
	w.Claim(t, fixture.Claim("data").Class(late))
	// A claim that need not wait shows that the sidecar is at work, and has left the other one alone.
	w.Claim(t, fixture.Claim("early").Class(w.Class(t, fixture.Class("early"))))
	w.Bound(t, "early")
	w.Event(t, "data", "WaitForFirstConsumer")
	if got := len(w.Driver.Volumes()); got != 1 {
		t.Fatalf("%d volumes before there is a pod, want that of the other claim", got)
	}

	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "user"},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{"pool": pool["pool"], "chosen": "b"},
			Tolerations:  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Containers:   []corev1.Container{{Name: "c", Image: "none"}},
			Volumes: []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"},
			}}},
		},
	}
	w.Pod(t, pod)
	_, pv := w.Bound(t, "data")
	want := &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
		MatchExpressions: []corev1.NodeSelectorRequirement{{Key: zone, Operator: corev1.NodeSelectorOpIn, Values: []string{"b"}}},
	}}}}
	if diff := cmp.Diff(want, pv.Spec.NodeAffinity); diff != "" {
		t.Errorf("node affinity (-want +got):\n%s", diff)
	}
	sidecar.Eventually(t, "the pod has its node", func(ctx context.Context) (bool, error) {
		pod, err := w.Client.CoreV1().Pods(w.Namespace).Get(ctx, "user", metav1.GetOptions{})
		return err == nil && pod.Spec.NodeName == w.Namespace+"-b", err
	})
}

// What a driver must not answer costs retries and events, and no volume.
func TestGarbageFromTheDriverLosesNothing(t *testing.T) {
	t.Parallel()
	w := sidecar.NewWorld(t, cluster.Shared(t), memdriver.Config{})
	process := sidecar.Start(t, w.Options())
	class := w.Class(t, fixture.Class("odd"))
	for name, rule := range map[string]memdriver.Rule{
		"no-volume":     memdriver.NoVolume(2),
		"empty-id":      memdriver.EmptyID(2),
		"negative-size": memdriver.Size(-1, 2),
		"small-size":    memdriver.Size(1, 2),
	} {
		remove := w.Driver.Add(rule)
		w.Claim(t, fixture.Claim(name).Class(class))
		w.Event(t, name, "ProvisioningFailed")
		_, pv := w.Bound(t, name)
		remove()
		if got := pv.Spec.Capacity.Storage().String(); got != "1Gi" {
			t.Errorf("%s: PV of %s, want 1Gi", name, got)
		}
		w.DeleteClaim(t, name)
		w.Empty(t)
	}
	if !process.Running() {
		t.Error("the sidecar has ended")
	}
}

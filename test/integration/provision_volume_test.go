package integration

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/controllers/provision"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	controlplane "github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// One claim comes and goes: what a user sees, and what it costs.
func TestAClaimComesAndGoes(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	l := g.begin()
	claim := g.create(g.ours("c"))
	pv := g.bound("c")
	if want := "pvc-" + string(claim.UID); pv.Name != want || pv.Spec.CSI.VolumeHandle == "" || pv.Spec.ClaimRef.UID != claim.UID {
		t.Errorf("PersistentVolume %s %+v", pv.Name, pv.Spec)
	}
	g.saying(g.ns, claim.UID, "Provisioning", g.ns+"/c")
	g.saying(g.ns, claim.UID, "ProvisioningSucceeded", pv.Name)
	g.remove("c")
	g.clean()
	if g.creates() != 1 || g.deletes() != 1 {
		t.Errorf("%d CreateVolume and %d DeleteVolume calls, want one each", g.creates(), g.deletes())
	}
	for verb, want := range map[string]int{http.MethodPost: 1, http.MethodDelete: 1, http.MethodPatch: 1, http.MethodPut: 0} {
		eventually(t, fmt.Sprintf("%d requests %s of PersistentVolumes", want, verb), func() bool {
			return l.requests.count(func(r request) bool { return r.verb == verb && strings.Contains(r.path, "/persistentvolumes") }) == want
		})
	}
	if told := g.told("default", pv.UID); len(told) != 0 {
		t.Errorf("events about an ordinary deletion: %v", told)
	}
	for metric, want := range map[string]float64{
		"controller_persistentvolumeclaim_provision_total": 1, "controller_persistentvolumeclaim_provision_failed_total": 0,
		"controller_persistentvolume_delete_total": 1, "controller_persistentvolume_delete_failed_total": 0,
	} {
		// The last one is counted a moment after the object has gone.
		eventually(t, metric, func() bool { return l.sum(metric) == want })
	}
}

// P2, P4: claims that are deleted as soon as they are there, over and over under one name. Nothing is left, nothing is
// deleted twice.
func TestClaimsThatGoAtOnce(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	g.begin()
	const rounds, names = 6, 5
	for round := range rounds {
		for i := range names {
			name := fmt.Sprintf("c%d", i)
			eventually(t, "name free", func() bool { return g.live(name) == nil })
			g.create(g.ours(name))
			if round%2 == 0 {
				g.bound(name)
			}
			g.remove(name)
		}
	}
	g.clean()
	byID := map[string]int{}
	for _, call := range g.driver.Calls("DeleteVolume") {
		byID[call.Key]++
	}
	for id, n := range byID {
		if n != 1 {
			t.Errorf("volume %s was deleted %d times", id, n)
		}
	}
	for _, call := range g.driver.Calls("CreateVolume", "DeleteVolume") {
		if len(call.Overlaps) != 0 {
			t.Errorf("overlapping calls: %s", call)
		}
	}
}

// Without the right to change PersistentVolumes they get no finalizer, so that they can be deleted.
func TestWithoutTheRightToPatch(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	l := g.restricted("patch", "persistentvolumes")()
	g.create(g.ours("c"))
	if pv := g.bound("c"); slices.Contains(pv.Finalizers, wellknown.FinalizerPV) {
		t.Error("the PersistentVolume has a finalizer that nobody can remove")
	}
	g.remove("c")
	g.clean()
	if got := g.deletes(); got != 1 {
		t.Errorf("%d DeleteVolume calls, want 1", got)
	}
	if got := l.requests.count(func(r request) bool { return r.verb == http.MethodPatch && r.code == http.StatusForbidden }); got != 0 {
		t.Errorf("%d patches were refused, want that none is tried", got)
	}
}

// Policies, and volumes that an administrator made.
func TestFinalizersFollowThePolicy(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	g.begin()
	has := func(name string) func() bool {
		return func() bool {
			pv := g.pv(name)
			return pv != nil && slices.Contains(pv.Finalizers, wellknown.FinalizerPV)
		}
	}
	lacks := func(name string) func() bool { return func() bool { return !has(name)() } }
	policy := func(name string, policy corev1.PersistentVolumeReclaimPolicy) {
		t.Helper()
		pvs := g.clients.Core.CoreV1().PersistentVolumes()
		if err := controlplane.Modify(t.Context(), name, pvs.Get, pvs.Update, func(pv *corev1.PersistentVolume) {
			pv.Spec.PersistentVolumeReclaimPolicy = policy
		}); err != nil {
			t.Fatal(err)
		}
	}
	static := g.ns + "-static"
	claim := g.create(g.claim("static").Class("none").Annotation("x", "y"))
	g.createPV(fixture.PV(static).Driver(g.ns).Class("none").BoundTo(claim).Obj())
	g.bound("static")
	eventually(t, "a bound volume gets our finalizer", has(static))
	policy(static, corev1.PersistentVolumeReclaimRetain)
	eventually(t, "and loses it with Retain", lacks(static))
	policy(static, corev1.PersistentVolumeReclaimDelete)
	eventually(t, "and gets it again", has(static))
	g.remove("static")
	calls := g.ended("DeleteVolume", 1)
	if calls[0].Key != "handle-"+static {
		t.Errorf("deleted %s", calls[0].Key)
	}
	g.clean()

	// A bound PersistentVolume that is deleted first waits for its claim.
	g.create(g.ours("c"))
	pv := g.bound("c")
	g.deletePV(pv.Name)
	g.remove("c")
	g.clean()
	if got := g.deletes(); got != 2 {
		t.Errorf("%d DeleteVolume calls, want 2", got)
	}
}

// P30: a PersistentVolume that goes with our finalizer comes to its end, in whatever phase it is.
func TestEveryTerminatingPVComesToAnEnd(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	gone := fixture.Claim("gone").Namespace(g.ns).UID("11111111-1111-1111-1111-111111111111").Obj()
	for name, pv := range map[string]*fixture.PVBuilder{
		"failed":    fixture.PV(g.ns + "-failed").ProvisionedBy(g.ns).Class(g.ns).BoundTo(gone),
		"available": fixture.PV(g.ns + "-available").ProvisionedBy(g.ns).Class(g.ns),
	} {
		created := g.createPV(pv.Obj())
		if name == "failed" {
			pvs := g.clients.Core.CoreV1().PersistentVolumes()
			if err := controlplane.Modify(t.Context(), created.Name, pvs.Get, pvs.UpdateStatus, func(live *corev1.PersistentVolume) {
				live.Status.Phase = corev1.VolumeFailed
			}); err != nil {
				t.Fatal(err)
			}
		}
		g.deletePV(created.Name)
	}
	g.begin()
	g.clean()
	if got := g.deletes(); got != 1 {
		t.Errorf("%d DeleteVolume calls, want the one of the failed PersistentVolume", got)
	}
}

// P6: a volume that is attached waits without an error, and goes when the attachment does, not by back-off.
func TestTheEndOfAnAttachmentWakesItsVolume(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	l := g.begin(func(cfg *provision.Config) { cfg.RetryStart, cfg.RetryMax = time.Hour, time.Hour })
	g.create(g.ours("c"))
	pv := g.bound("c")
	attachments := g.clients.Core.StorageV1().VolumeAttachments()
	if _, err := attachments.Create(t.Context(), fixture.Attachment(g.ns, g.ns, pv.Name, "node-7"), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "attachment cached", func() bool { return len(l.caches.AttachmentsOf(pv.Name)) == 1 })
	g.remove("c")
	g.saying("default", pv.UID, "VolumeDelete", pv.Name, "is still attached to node node-7")
	if got := g.deletes(); got != 0 {
		t.Fatalf("%d DeleteVolume calls of an attached volume", got)
	}
	if err := attachments.Delete(t.Context(), g.ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	g.clean()
	if got := l.sum("controller_persistentvolume_delete_failed_total"); got != 0 {
		t.Errorf("%v failures counted", got)
	}
}

// R19: a volume is not deleted without its secret because the API server hiccups; NotFound goes on without.
func TestDeletionSecrets(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{}, func(class *fixture.ClassBuilder) {
		class.Parameter("csi.storage.k8s.io/provisioner-secret-name", "${pvc.name}").Parameter("csi.storage.k8s.io/provisioner-secret-namespace", "${pvc.namespace}")
	})
	l := g.begin()
	secrets := g.clients.Core.CoreV1().Secrets(g.ns)
	pvs := map[string]*corev1.PersistentVolume{}
	for _, name := range []string{"hiccup", "missing"} {
		if _, err := secrets.Create(t.Context(), fixture.Secret(g.ns, name, map[string]string{"key": "value"}), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		g.create(g.ours(name))
		pvs[name] = g.bound(name)
	}
	if err := secrets.Delete(t.Context(), "missing", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	l.faults(http.StatusInternalServerError, metav1.StatusReasonInternalError, func(r *http.Request) bool {
		return on(http.MethodGet, "secrets")(r) && strings.HasSuffix(r.URL.Path, "/hiccup")
	})
	g.remove("hiccup")
	g.saying("default", pvs["hiccup"].UID, "VolumeFailedDelete", "hiccup", "played InternalError")
	g.remove("missing")
	calls := g.ended("DeleteVolume", 1)
	if calls[0].Key != pvs["missing"].Spec.CSI.VolumeHandle || len(calls[0].SecretKeys) != 0 {
		t.Errorf("deleted %s", calls[0])
	}
	l.faults(0, "", nil)
	g.clean()
	if calls := g.driver.Calls("DeleteVolume"); len(calls) != 2 || !slices.Equal(calls[1].SecretKeys, []string{"key"}) {
		t.Errorf("calls %v, want one with the secret", calls)
	}
}

// P27: an annotation cannot send the secrets of other namespaces to the driver.
func TestDeletionSecretNamespaces(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	g.begin(func(cfg *provision.Config) { cfg.DeletionSecretNamespaces = []string{"storage"} })
	if _, err := g.clients.Core.CoreV1().Secrets(g.ns).Create(t.Context(), fixture.Secret(g.ns, "s", map[string]string{"key": "value"}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	g.create(g.ours("c"))
	pv := g.bound("c")
	patch := fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"s",%q:%q}}}`, wellknown.AnnDeletionSecretName, wellknown.AnnDeletionSecretNamespace, g.ns)
	if _, err := g.clients.Core.CoreV1().PersistentVolumes().Patch(t.Context(), pv.Name, "application/merge-patch+json", patch, metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	g.remove("c")
	g.saying("default", pv.UID, "VolumeFailedDelete", g.ns+"/s", "--deletion-secret-namespaces")
	g.clean()
	if calls := g.driver.Calls("DeleteVolume"); len(calls) != 1 || len(calls[0].SecretKeys) != 0 {
		t.Errorf("calls %v, want one without secrets", calls)
	}
}

// P23: with names of another form, too, a claim whose volume is there is not provisioned again.
func TestOtherNames(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	g.begin(func(cfg *provision.Config) {
		cfg.Settings.VolumeNamePrefix, cfg.Settings.VolumeNameUUIDLength = "foo", 8
	})
	claim := g.create(g.ours("c"))
	name := "foo-" + strings.ReplaceAll(string(claim.UID), "-", "")[:8]
	eventually(t, "PersistentVolume saved", func() bool { return g.pv(name) != nil })
	for i := range 5 {
		g.update("c", func(claim *corev1.PersistentVolumeClaim) bool {
			claim.Annotations["touched"] = fmt.Sprint(i)
			return true
		})
	}
	if pv := g.bound("c"); pv.Name != name {
		t.Errorf("PersistentVolume %s, want %s", pv.Name, name)
	}
	if got := g.creates(); got != 1 {
		t.Errorf("%d CreateVolume calls, want 1", got)
	}
	g.remove("c")
	g.clean()
}

// R5: with short names two claims may want the same volume; the second is told, and the driver is not asked.
func TestNamesThatCollide(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	g.begin(func(cfg *provision.Config) { cfg.Settings.VolumeNameUUIDLength = 1 })
	// Sixteen names for seventeen claims.
	const n = 17
	claims := map[string]*corev1.PersistentVolumeClaim{}
	for i := range n {
		name := fmt.Sprintf("c%02d", i)
		claims[name] = g.create(g.ours(name))
	}
	var bound, told int
	eventually(t, "each claim is bound or told", func() bool {
		bound, told = 0, 0
		for name, claim := range claims {
			switch {
			case g.live(name).Status.Phase == corev1.ClaimBound:
				bound++
			case slices.ContainsFunc(g.told(g.ns, claim.UID), func(line string) bool {
				return strings.HasPrefix(line, "ProvisioningFailed") && (strings.Contains(line, "another claim") || strings.Contains(line, "in use"))
			}):
				told++
			}
		}
		return bound+told == n
	})
	if told == 0 || len(g.driver.Volumes()) != bound {
		t.Errorf("%d bound, %d told, %d volumes", bound, told, len(g.driver.Volumes()))
	}
	for name := range claims {
		g.remove(name)
	}
	g.clean()
}

// P29: "not now" comes back soon, again and again.
func TestBusyAnswersDoNotSlowDown(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	g.driver.Add(memdriver.Fail("CreateVolume", codes.Aborted, 30))
	g.begin(func(cfg *provision.Config) { cfg.RetryStart, cfg.RetryMax = 10*time.Millisecond, time.Hour })
	g.create(g.ours("c"))
	g.bound("c") // 30 doublings of 10 ms would take until the end of days
	if diff := cmp.Diff(31, g.creates()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

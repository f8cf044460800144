package integration

import (
	"encoding/json"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/controllers/provision"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	controlplane "github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// held keeps a deleted claim there, so that a test can look at it.
const held = "example.com/held"

func (g *ground) letGo(name string) {
	g.Helper()
	g.update(name, func(claim *corev1.PersistentVolumeClaim) bool {
		claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f == held })
		return true
	})
}

// P1: the driver makes the volume and does not say so, the process dies, the claim is deleted, a process starts. The
// same volume is asked for, gets its PersistentVolume, and is deleted.
func TestAVolumeOutlivesTheProcessThatAskedForIt(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	g.driver.Add(memdriver.FailLate("CreateVolume", codes.DeadlineExceeded, 0))
	first := g.begin(func(cfg *provision.Config) { cfg.RetryStart, cfg.RetryMax = time.Hour, time.Hour })
	claim := g.create(g.ours("c").Annotation("tenants", "own").Label("l", "m"))
	g.ended("CreateVolume", 1)
	eventually(t, "claim marked", func() bool { return g.marked("c") })
	live := g.live("c")
	var content map[string]any
	if err := json.Unmarshal([]byte(live.Annotations[wellknown.AnnProvisioningInProgress]), &content); err != nil {
		t.Fatal(err)
	}
	class, err := g.clients.Core.StorageV1().StorageClasses().Get(t.Context(), g.ns, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"v": float64(1), "uid": string(claim.UID), "driver": g.ns, "class": string(class.UID)}
	if diff := cmp.Diff(want, content); diff != "" {
		t.Errorf("marker (-want +got):\n%s", diff)
	}
	if live.Annotations["tenants"] != "own" || live.Labels["l"] != "m" {
		t.Errorf("the tenant's metadata changed: %v", live.ObjectMeta)
	}
	first.kill()
	g.remove("c")
	g.driver.ClearRules()
	if g.live("c") == nil {
		t.Fatal("the claim is gone, nobody remembers the volume")
	}
	g.begin()
	g.clean()
	calls := g.driver.Calls("CreateVolume")
	if len(calls) != 2 {
		t.Fatalf("%d CreateVolume calls, want 2", len(calls))
	}
	if diff := cmp.Diff(calls[0].Request, calls[1].Request, protocmp.Transform()); diff != "" {
		t.Errorf("requests (-before +after the restart):\n%s", diff)
	}
	if got := g.deletes(); got != 1 {
		t.Errorf("%d DeleteVolume calls, want 1", got)
	}
}

// A process that dies in the middle of a call leaves the same behind.
func TestAProcessDiesInACall(t *testing.T) {
	t.Parallel()
	for name, delay := range map[string]time.Duration{"by default": 50 * time.Millisecond, "with strict marking": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGround(t, memdriver.Config{})
			rule, release := memdriver.Block("CreateVolume")
			rule.Times = 1
			g.driver.Add(rule)
			first := g.begin(func(cfg *provision.Config) { cfg.MarkerDelay = delay })
			g.create(g.ours("c"))
			g.started("CreateVolume", 1)
			eventually(t, "claim marked", func() bool { return g.marked("c") })
			first.kill()
			release() // the driver goes on alone
			g.remove("c")
			g.begin()
			g.clean()
		})
	}
}

// With strict marking the marker is there when the driver hears of the volume, and only then.
func TestStrictMarkingComesBeforeTheCall(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	rule, release := memdriver.Block("CreateVolume")
	g.driver.Add(rule)
	defer release()
	g.begin(func(cfg *provision.Config) { cfg.MarkerDelay = 0 })
	g.create(g.ours("c"))
	g.started("CreateVolume", 1)
	if !g.marked("c") {
		t.Error("the call began before the claim was marked")
	}
	release()
	g.bound("c")
	eventually(t, "marker gone", func() bool { return !g.marked("c") })
}

// A quick create writes nothing on the claim. The save of its PersistentVolume has a second, and may take longer here:
// then the claim is marked, rightly, and another one shows it.
func TestAQuickCreateIsNotMarked(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	l := g.begin(func(cfg *provision.Config) { cfg.MarkerDelay = time.Minute })
	eventually(t, "a create without a write of its claim", func() bool {
		before, begin := l.requests.count(onClaims("PUT", http.StatusOK)), time.Now()
		g.create(g.ours("c"))
		g.bound("c")
		writes := l.requests.count(onClaims("PUT", http.StatusOK)) - before
		if took := time.Since(begin); writes > 0 && took < time.Second {
			t.Fatalf("%d writes of the claim within %s, want none", writes, took)
		}
		g.remove("c")
		g.clean()
		return writes == 0
	})
}

// No finalizer can be added to a claim that is being deleted: memory finishes the create.
func TestATerminatingClaimCannotBeMarked(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	rule, release := memdriver.Block("CreateVolume")
	rule.Times, rule.Late, rule.Code = 1, true, codes.DeadlineExceeded
	g.driver.Add(rule)
	defer release()
	l := g.begin(func(cfg *provision.Config) { cfg.MarkerDelay = time.Hour })
	g.create(g.ours("c").Finalizer(held))
	g.started("CreateVolume", 1)
	g.remove("c")
	release()
	eventually(t, "refusal counted", func() bool { return l.sum("controller_provisioning_markers_refused_total") > 0 })
	eventually(t, "PersistentVolume saved", func() bool { return len(g.pvs()) == 1 })
	if claim := g.live("c"); slices.Contains(claim.Finalizers, wellknown.FinalizerProvisioningInProgress) {
		t.Errorf("finalizers %v", claim.Finalizers)
	}
	g.letGo("c")
	g.clean()
}

// restricted returns the config of an account that has all that a provisioner needs but one verb on one resource.
func (g *ground) restricted(verb, resource string) func() *life {
	g.Helper()
	rule := func(resource, group string, verbs ...string) rbacv1.PolicyRule {
		return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
	}
	rules := []rbacv1.PolicyRule{
		rule("persistentvolumeclaims", "", "get", "list", "watch", "update"),
		rule("persistentvolumes", "", "get", "list", "watch", "create", "patch", "delete"),
		rule("storageclasses", "storage.k8s.io", "get", "list", "watch"),
		rule("volumeattachments", "storage.k8s.io", "get", "list", "watch"),
		rule("volumeattributesclasses", "storage.k8s.io", "get"),
		rule("secrets", "", "get"),
		rule("volumesnapshots", "snapshot.storage.k8s.io", "get", "list", "watch", "update"),
		rule("volumesnapshotcontents", "snapshot.storage.k8s.io", "get"),
		rule("referencegrants", "gateway.networking.k8s.io", "get", "list", "watch"),
	}
	for i := range rules {
		if rules[i].Resources[0] == resource {
			rules[i].Verbs = slices.DeleteFunc(rules[i].Verbs, func(v string) bool { return v == verb })
		}
	}
	rbac := g.clients.Core.RbacV1()
	_, err := rbac.ClusterRoles().Create(g.Context(), &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: g.ns}, Rules: rules}, metav1.CreateOptions{})
	if err != nil {
		g.Fatal(err)
	}
	_, err = rbac.ClusterRoleBindings().Create(g.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: g.ns},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: g.ns, Name: "default"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: g.ns},
	}, metav1.CreateOptions{})
	if err != nil {
		g.Fatal(err)
	}
	return func() *life {
		g.Helper()
		waitForServiceAccount(g.T, g.clients.Core, g.ns)
		config, err := controlplane.Shared(g.T).ServiceAccountConfig(g.Context(), g.ns, "default")
		if err != nil {
			g.Fatal(err)
		}
		return g.beginAs(config)
	}
}

// Without the right to update claims provisioning goes on; that is counted, and nothing is retried for it.
func TestWithoutTheRightToMark(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	l := g.restricted("update", "persistentvolumeclaims")()
	g.driver.Add(memdriver.FailLate("CreateVolume", codes.Aborted, 2))
	g.create(g.ours("c"))
	g.bound("c")
	if got := l.sum("controller_provisioning_markers_refused_total"); got == 0 {
		t.Error("no refusal was counted")
	}
	if g.live("c").Annotations[wellknown.AnnProvisioningInProgress] != "" {
		t.Error("the claim was marked all the same")
	}
	g.remove("c")
	g.clean()
}

// Strict marking makes no call for a claim that it may not mark, and says why.
func TestStrictMarkingWithoutTheRight(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	l := g.begin(func(cfg *provision.Config) { cfg.MarkerDelay = 0 })
	l.faults(http.StatusForbidden, metav1.StatusReasonForbidden, on(http.MethodPut, "persistentvolumeclaims"))
	claim := g.create(g.ours("c"))
	g.saying(g.ns, claim.UID, "ProvisioningFailed", "cannot be marked", "not called", "played Forbidden")
	if got := g.creates(); got != 0 {
		t.Errorf("%d CreateVolume calls, want none", got)
	}
	l.faults(0, "", nil)
	g.bound("c")
}

// The claim is bound to another PersistentVolume while the driver is at work: ours is finished all the same, saved,
// released by Kubernetes and deleted by us.
func TestAClaimIsBoundElsewhereMeanwhile(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	rule, release := memdriver.Block("CreateVolume")
	rule.Times, rule.Late, rule.Code = 1, true, codes.DeadlineExceeded
	g.driver.Add(rule)
	defer release()
	g.begin()
	claim := g.create(g.ours("c"))
	g.started("CreateVolume", 1)
	other := fixture.PV(g.ns + "-other").Driver("other").Class(g.ns).BoundTo(claim).Policy(corev1.PersistentVolumeReclaimRetain).Obj()
	g.createPV(other)
	if pv := g.bound("c"); pv.Name != other.Name {
		t.Fatalf("bound to %s", pv.Name)
	}
	release()
	g.ended("DeleteVolume", 1)
	eventually(t, "ours gone", func() bool { return len(g.pvs()) == 0 && len(g.driver.Volumes()) == 0 })
	eventually(t, "marker gone", func() bool { return !g.marked("c") })
	if pv := g.bound("c"); pv.Name != other.Name {
		t.Errorf("now bound to %s", pv.Name)
	}
	g.deletePV(other.Name)
}

// A marker that a tenant copied or made up holds no claim.
func TestAForgedMarkerHoldsNothing(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	g.begin()
	g.create(g.ours("copied").Finalizer(wellknown.FinalizerProvisioningInProgress).
		Annotation(wellknown.AnnProvisioningInProgress, `{"v":1,"uid":"5c5e8c0e-0000-0000-0000-000000000000","driver":"`+g.ns+`"}`))
	g.create(g.ours("made-up").Finalizer(wellknown.FinalizerProvisioningInProgress).Annotation(wellknown.AnnProvisioningInProgress, "yes"))
	g.create(g.ours("bare").Finalizer(wellknown.FinalizerProvisioningInProgress))
	for _, name := range []string{"copied", "made-up", "bare"} {
		g.bound(name)
		eventually(t, "marker of "+name+" gone", func() bool {
			return !slices.Contains(g.live(name).Finalizers, wellknown.FinalizerProvisioningInProgress)
		})
		g.remove(name)
	}
	g.clean()
}

// The class is gone when the process comes back: the claim says every few minutes what to do, and goes on when the very
// class returns is impossible, so taking the marker off by hand is the way out.
func TestAStuckCreateAndItsWayOut(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	g.driver.Add(memdriver.FailLate("CreateVolume", codes.DeadlineExceeded, 0))
	first := g.begin(func(cfg *provision.Config) { cfg.RetryStart, cfg.RetryMax = time.Hour, time.Hour })
	claim := g.create(g.ours("c"))
	eventually(t, "claim marked", func() bool { return g.marked("c") })
	first.kill()
	classes := g.clients.Core.StorageV1().StorageClasses()
	if err := classes.Delete(t.Context(), g.ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	g.begin()
	g.saying(g.ns, claim.UID, "ProvisioningFailed", g.ns, "pvc-"+string(claim.UID), "is gone", "Markers")
	if _, err := classes.Create(t.Context(), fixture.Class(g.ns).Provisioner(g.ns).Obj(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	g.remove("c")
	if !g.marked("c") {
		t.Fatal("the claim is not held any more")
	}
	if got := g.creates(); got != 1 {
		t.Errorf("%d CreateVolume calls, want the one from before", got)
	}
	// What the guide says: the volume is removed by hand, then the finalizer.
	g.driver.Forget()
	g.update("c", func(claim *corev1.PersistentVolumeClaim) bool {
		claim.Finalizers = slices.DeleteFunc(claim.Finalizers, func(f string) bool { return f == wellknown.FinalizerProvisioningInProgress })
		return true
	})
	g.clean()
}

// The secret went with the namespace: a claim that is being deleted is finished without.
func TestAMissingSecretHoldsNoClaim(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{}, func(class *fixture.ClassBuilder) {
		class.Parameter("csi.storage.k8s.io/provisioner-secret-name", "s").Parameter("csi.storage.k8s.io/provisioner-secret-namespace", "${pvc.namespace}")
	})
	secrets := g.clients.Core.CoreV1().Secrets(g.ns)
	if _, err := secrets.Create(t.Context(), fixture.Secret(g.ns, "s", map[string]string{"key": "value"}), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	g.driver.Add(memdriver.FailLate("CreateVolume", codes.DeadlineExceeded, 0))
	first := g.begin(func(cfg *provision.Config) { cfg.RetryStart, cfg.RetryMax = time.Hour, time.Hour })
	g.create(g.ours("c"))
	eventually(t, "claim marked", func() bool { return g.marked("c") })
	first.kill()
	g.driver.ClearRules()
	if err := secrets.Delete(t.Context(), "s", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	g.begin()
	g.remove("c")
	g.clean()
	calls := g.driver.Calls("CreateVolume")
	if len(calls) != 2 || len(calls[0].SecretKeys) != 1 || len(calls[1].SecretKeys) != 0 {
		t.Errorf("calls %v, want the second one without secrets", calls)
	}
}

// A stop finishes the call in flight and saves what it made; a second process finds nothing to do.
func TestAStopSavesTheVolumeInFlight(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	rule, release := memdriver.Block("CreateVolume")
	g.driver.Add(rule)
	l := g.begin()
	claim := g.create(g.ours("c"))
	g.started("CreateVolume", 1)
	l.stopping()
	release()
	l.term()
	if pv := g.pv("pvc-" + string(claim.UID)); pv == nil {
		t.Error("the volume has no PersistentVolume")
	}
	if g.marked("c") {
		t.Error("the marker is left")
	}
	g.begin()
	g.bound("c")
	if got := g.creates(); got != 1 {
		t.Errorf("%d CreateVolume calls, want 1", got)
	}
}

// A stop while the driver answers nothing drives to its end what only this process knows of: the claim is gone.
func TestAStopFinishesTheVolumeOfAGoneClaim(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	remove := g.driver.Add(memdriver.FailLate("CreateVolume", codes.DeadlineExceeded, 0))
	l := g.begin(func(cfg *provision.Config) { cfg.MarkerDelay, cfg.RetryStart, cfg.RetryMax = -1, time.Hour, time.Hour })
	claim := g.create(g.ours("c"))
	g.ended("CreateVolume", 1)
	g.remove("c")
	eventually(t, "claim gone", func() bool { return g.live("c") == nil && l.caches.ClaimByUID(claim.UID) == nil })
	remove()
	l.term()
	if g.pv("pvc-"+string(claim.UID)) == nil {
		t.Error("the volume has no PersistentVolume")
	}
	g.begin()
	g.clean()
}

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
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/controllers/provision"
	"github.com/csi-sidecars/external-provisioner/pkg/operations"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	controlplane "github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// held keeps a deleted claim there, so that a test can look at it.
const held = "example.com/held"

// P1: the driver makes the volume and does not say so, the process dies, the claim is deleted, a process starts. The
// same volume is asked for, gets its PersistentVolume, and is deleted.
func TestAVolumeOutlivesTheProcessThatAskedForIt(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	g.driver.Add(memdriver.FailLate("CreateVolume", codes.DeadlineExceeded, 0))
	first := g.begin(func(cfg *provision.Config) { cfg.RetryStart, cfg.RetryMax = time.Hour, time.Hour })
	claim := g.create(g.ours("c").Annotation("tenants", "own").Label("l", "m"))
	g.ended("CreateVolume", 1)
	if !g.recorded("c") {
		t.Fatal("no Lease says the operation")
	}
	if live := g.live("c"); live.ResourceVersion != claim.ResourceVersion {
		t.Errorf("the claim was written: %v", live.ObjectMeta)
	}
	first.kill()
	g.remove("c")
	g.driver.ClearRules()
	eventually(t, "the claim is gone, nothing of ours holds it", func() bool { return g.live("c") == nil })
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
	g := newGround(t, memdriver.Config{})
	rule, release := memdriver.Block("CreateVolume")
	rule.Times = 1
	g.driver.Add(rule)
	first := g.begin()
	g.create(g.ours("c"))
	g.started("CreateVolume", 1)
	if !g.recorded("c") {
		t.Error("the call began before its operation was recorded")
	}
	first.kill()
	release() // the driver goes on alone
	g.remove("c")
	g.begin()
	g.clean()
}

// A create writes nothing on the claim, and in a row of them each costs one write of a Lease.
func TestWhatAnOperationCosts(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	l := g.begin(func(cfg *provision.Config) { cfg.CreateWorkers = 1 })
	const claims = 20
	for i := range claims {
		g.create(g.ours(fmt.Sprint("c", i)))
	}
	for i := range claims {
		g.bound(fmt.Sprint("c", i))
	}
	if writes := l.requests.count(onClaims("PUT", http.StatusOK)); writes != 0 {
		t.Errorf("%d writes of claims", writes)
	}
	eventually(t, "all operations have ended", func() bool {
		records, err := operations.List(t.Context(), *operationsIn(g.ns, g.ns, "", g.clients, true))
		return err == nil && len(records) == 0
	})
	writes := l.requests.count(func(r request) bool { return r.verb == http.MethodPut && strings.Contains(r.path, "/leases/") })
	t.Logf("%d writes of Leases for %d claims", writes, claims)
	if writes > 2*claims {
		t.Errorf("%d writes of Leases for %d claims, want two each at most", writes, claims)
	}
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
		rule("leases", "coordination.k8s.io", "get", "create", "update"),
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

// Without the right to write Leases provisioning goes on unprotected, and a gauge says so.
func TestWithoutTheRightToRecord(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	l := g.restricted("create", "leases")()
	g.driver.Add(memdriver.FailLate("CreateVolume", codes.Aborted, 2))
	g.create(g.ours("c"))
	g.bound("c")
	if l.sum("controller_operation_leases_enabled") != 0 || l.sum("controller_operations_unprotected_total") == 0 {
		t.Error("the metrics do not tell that operations are unprotected")
	}
	g.remove("c")
	g.clean()
}

// A refusal that is no missing right, as that of a quota or of a webhook, is waited for: the driver is not called.
func TestARefusalOfALeaseIsWaitedFor(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	l := g.begin()
	l.faults(http.StatusForbidden, metav1.StatusReasonForbidden, func(r *http.Request) bool {
		return r.Method != http.MethodGet && strings.Contains(r.URL.Path, "/leases")
	})
	claim := g.create(g.ours("c"))
	g.saying(g.ns, claim.UID, "ProvisioningFailed", "record the operation", "played Forbidden")
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
	eventually(t, "operation ended", func() bool { return !g.recorded("c") })
	if pv := g.bound("c"); pv.Name != other.Name {
		t.Errorf("now bound to %s", pv.Name)
	}
	g.deletePV(other.Name)
}

// Finalizer and annotation of a pre-release hold no claim, whoever wrote them.
func TestAFormerMarkerHoldsNothing(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	g.begin()
	g.create(g.ours("copied").Finalizer(wellknown.FinalizerProvisioningInProgress).
		Annotation(wellknown.AnnProvisioningInProgress, `{"v":1,"uid":"5c5e8c0e-0000-0000-0000-000000000000","driver":"`+g.ns+`"}`))
	g.create(g.ours("made-up").Finalizer(wellknown.FinalizerProvisioningInProgress).Annotation(wellknown.AnnProvisioningInProgress, "yes"))
	g.create(g.ours("bare").Finalizer(wellknown.FinalizerProvisioningInProgress))
	for _, name := range []string{"copied", "made-up", "bare"} {
		g.bound(name)
		eventually(t, "finalizer of "+name+" gone", func() bool {
			return !slices.Contains(g.live(name).Finalizers, wellknown.FinalizerProvisioningInProgress)
		})
		g.remove(name)
	}
	g.clean()
}

// The class that named the secret was created again when the process comes back: the operation is not replayed, which the
// claim says every few minutes. The way out is to end the operation by hand.
func TestAStuckOperationAndItsWayOut(t *testing.T) {
	t.Parallel()
	withSecret := func(class *fixture.ClassBuilder) {
		class.Parameter("csi.storage.k8s.io/provisioner-secret-name", "s").Parameter("csi.storage.k8s.io/provisioner-secret-namespace", "${pvc.namespace}")
	}
	g := newGround(t, memdriver.Config{}, withSecret)
	if _, err := g.clients.Core.CoreV1().Secrets(g.ns).Create(t.Context(), fixture.Secret(g.ns, "s", nil), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	g.driver.Add(memdriver.FailLate("CreateVolume", codes.DeadlineExceeded, 0))
	first := g.begin(func(cfg *provision.Config) { cfg.RetryStart, cfg.RetryMax = time.Hour, time.Hour })
	claim := g.create(g.ours("c"))
	g.ended("CreateVolume", 1)
	first.kill()
	classes := g.clients.Core.StorageV1().StorageClasses()
	if err := classes.Delete(t.Context(), g.ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	again := fixture.Class(g.ns).Provisioner(g.ns)
	withSecret(again)
	if _, err := classes.Create(t.Context(), again.Obj(), metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	g.begin()
	g.saying(g.ns, claim.UID, "ProvisioningFailed", g.ns, "pvc-"+string(claim.UID), "was created again", "operations forget")
	if got := g.creates(); got != 1 {
		t.Errorf("%d CreateVolume calls, want the one from before", got)
	}
	// What the event says: the volume is removed by hand, then the operation is ended. The claim gets a new volume.
	g.driver.Forget()
	g.driver.ClearRules()
	lease := g.leaseOf("c")
	lease.Annotations[wellknown.AnnForgetOperation] = "true"
	if _, err := g.clients.Lease.CoordinationV1().Leases(g.ns).Update(t.Context(), lease, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	g.update("c", func(live *corev1.PersistentVolumeClaim) bool { // which makes the controller look
		live.Labels = map[string]string{"look": "again"}
		return true
	})
	g.saying(g.ns, claim.UID, "OperationForgotten", "pvc-"+string(claim.UID))
	g.bound("c")
	g.remove("c")
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
	g.ended("CreateVolume", 1)
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
	if g.recorded("c") {
		t.Error("the operation has not ended")
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
	l := g.begin(func(cfg *provision.Config) { cfg.Operations, cfg.RetryStart, cfg.RetryMax = nil, time.Hour, time.Hour })
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

package integration

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/controllers/provision"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// forbidPVs makes the API server refuse the PersistentVolumes of the driver, and returns what ends that.
func (g *ground) forbidPVs() (allow func()) {
	g.Helper()
	registration := g.clients.Core.AdmissionregistrationV1()
	policy := &admissionv1.ValidatingAdmissionPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: g.ns},
		Spec: admissionv1.ValidatingAdmissionPolicySpec{
			MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
				RuleWithOperations: admissionv1.RuleWithOperations{
					Operations: []admissionv1.OperationType{admissionv1.Create},
					Rule:       admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"persistentvolumes"}},
				},
			}}},
			Validations: []admissionv1.Validation{{
				Expression: `!has(object.spec.csi) || object.spec.csi.driver != "` + g.ns + `"`, Message: "no volumes today",
			}},
		},
	}
	if _, err := registration.ValidatingAdmissionPolicies().Create(g.Context(), policy, metav1.CreateOptions{}); err != nil {
		g.Fatal(err)
	}
	binding := &admissionv1.ValidatingAdmissionPolicyBinding{
		ObjectMeta: metav1.ObjectMeta{Name: g.ns},
		Spec:       admissionv1.ValidatingAdmissionPolicyBindingSpec{PolicyName: g.ns, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}},
	}
	if _, err := registration.ValidatingAdmissionPolicyBindings().Create(g.Context(), binding, metav1.CreateOptions{}); err != nil {
		g.Fatal(err)
	}
	eventually(g.T, "the policy is in force", func() bool {
		probe := fixture.PV(g.ns + "-probe").Driver(g.ns).Obj()
		_, err := g.clients.Core.CoreV1().PersistentVolumes().Create(g.Context(), probe, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err != nil
	})
	allow = func() {
		ctx := context.WithoutCancel(g.Context())
		_ = registration.ValidatingAdmissionPolicyBindings().Delete(ctx, g.ns, metav1.DeleteOptions{})
		_ = registration.ValidatingAdmissionPolicies().Delete(ctx, g.ns, metav1.DeleteOptions{})
	}
	g.Cleanup(allow)
	return allow
}

// R9: a PersistentVolume that the API server refuses is told and counted. When the claim goes its volume is deleted; when
// the API server changes its mind it is saved.
func TestARefusedPVIsToldAndCleanedUp(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{})
	allow := g.forbidPVs()
	l := g.begin()
	given := g.create(g.ours("given-up"))
	kept := g.create(g.ours("kept"))
	for _, claim := range []*corev1.PersistentVolumeClaim{given, kept} {
		g.saying(g.ns, claim.UID, "ProvisioningFailed", "cannot be saved", "no volumes today")
		eventually(t, "operation recorded", func() bool { return g.recorded(claim.Name) })
	}
	if got := l.sum("controller_persistentvolume_save_failed_total"); got < 2 {
		t.Errorf("%v failures counted", got)
	}
	g.remove("given-up")
	eventually(t, "the claim is gone", func() bool { return g.live("given-up") == nil })
	g.ended("DeleteVolume", 1)
	if volumes := g.driver.Volumes(); len(volumes) != 1 || volumes[0].Name != "pvc-"+string(kept.UID) {
		t.Errorf("volumes %v, want that of the other claim", volumes)
	}
	allow()
	g.bound("kept")
	eventually(t, "operation ended", func() bool { return !g.recorded("kept") })
	if got := g.creates(); got != 2 {
		t.Errorf("%d CreateVolume calls, want one a claim", got)
	}
	g.remove("kept")
	g.clean()
}

// The name of the PersistentVolume is taken: by one of another driver, or by one that is about to go. That is no
// success, and it is saved as soon as the name is free.
func TestTheNameOfThePVIsTaken(t *testing.T) {
	t.Parallel()
	for name, going := range map[string]bool{"by another driver's": false, "by one that is being deleted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGround(t, memdriver.Config{})
			rule, release := memdriver.Block("CreateVolume")
			g.driver.Add(rule)
			defer release()
			g.begin()
			claim := g.create(g.ours("c"))
			g.started("CreateVolume", 1)
			pv := g.createPV(fixture.PV("pvc-" + string(claim.UID)).Driver("other").Class("nobody").Finalizer(held).Policy(corev1.PersistentVolumeReclaimRetain).Obj())
			if going {
				g.deletePV(pv.Name)
			}
			release()
			g.saying(g.ns, claim.UID, "ProvisioningFailed", "cannot be saved", "not for this volume")
			if !going {
				g.deletePV(pv.Name)
			}
			patch := []byte(`{"metadata":{"finalizers":null}}`)
			if _, err := g.clients.Core.CoreV1().PersistentVolumes().Patch(t.Context(), pv.Name, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
				t.Fatal(err)
			}
			if got := g.bound("c"); got.UID == pv.UID || got.Spec.CSI.Driver != g.ns {
				t.Errorf("bound to %v", got)
			}
			if got := g.creates(); got != 1 {
				t.Errorf("%d CreateVolume calls, want 1", got)
			}
			g.remove("c")
			g.clean()
		})
	}
}

// Faults of drivers: each is told, none crashes, and the claim is served when the driver behaves.
func TestBrokenAnswersOfADriver(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		rule        memdriver.Rule
		edit        func(*provision.Config)
		reason      string
		words       []string
		wantDeletes int
	}{
		"R6: no volume":                 {memdriver.NoVolume(1), nil, "ProvisioningFailed", []string{"volume"}, 0},
		"R9: no id":                     {memdriver.EmptyID(1), nil, "ProvisioningFailed", []string{"id"}, 0},
		"R34: too small":                {memdriver.Size(1, 1), nil, "ProvisioningFailed", []string{"infeasible", "1073741824"}, 1},
		"R8: a segment without a place": {memdriver.EmptySegment(1), func(cfg *provision.Config) { cfg.Settings.Capabilities.Topology = true }, "ProvisioningSucceeded", []string{"pvc-"}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGround(t, memdriver.Config{})
			g.driver.Add(tc.rule)
			g.begin(func(cfg *provision.Config) {
				if tc.edit != nil {
					tc.edit(cfg)
				}
			})
			claim := g.create(g.ours("c"))
			g.saying(g.ns, claim.UID, tc.reason, tc.words...)
			if pv := g.bound("c"); pv.Spec.NodeAffinity != nil {
				t.Errorf("node affinity %v", pv.Spec.NodeAffinity)
			}
			if got := g.deletes(); got != tc.wantDeletes {
				t.Errorf("%d DeleteVolume calls, want %d", got, tc.wantDeletes)
			}
			g.remove("c")
			g.clean()
		})
	}
}

// P34: a request that is invalid waits long, and not at all once what was wrong is mended.
func TestAMendedRequestIsTriedSoon(t *testing.T) {
	t.Parallel()
	params := map[string]string{
		"csi.storage.k8s.io/provisioner-secret-name": "s", "csi.storage.k8s.io/provisioner-secret-namespace": "${pvc.namespace}",
	}
	for name, mend := range map[string]func(g *ground) error{
		"the secret": func(g *ground) error {
			_, err := g.clients.Core.CoreV1().Secrets(g.ns).Update(g.Context(), fixture.Secret(g.ns, "s", map[string]string{"password": "good"}), metav1.UpdateOptions{})
			return err
		},
		"the claim": func(g *ground) error {
			g.update("c", func(claim *corev1.PersistentVolumeClaim) bool {
				claim.Labels = map[string]string{"tier": "1"}
				return true
			})
			return nil
		},
		"the class": func(g *ground) error {
			if err := g.clients.Core.StorageV1().StorageClasses().Delete(g.Context(), g.ns, metav1.DeleteOptions{}); err != nil {
				return err
			}
			_, err := g.clients.Core.StorageV1().StorageClasses().Create(g.Context(), fixture.Class(g.ns).Provisioner(g.ns).Parameters(params).Obj(), metav1.CreateOptions{})
			return err
		},
		"the VolumeAttributesClass": func(g *ground) error {
			vac, err := g.clients.Core.StorageV1().VolumeAttributesClasses().Get(g.Context(), g.ns, metav1.GetOptions{})
			if err != nil {
				return err
			}
			vac.Labels = map[string]string{"mended": "yes"}
			_, err = g.clients.Core.StorageV1().VolumeAttributesClasses().Update(g.Context(), vac, metav1.UpdateOptions{})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := newGround(t, memdriver.Config{}, func(class *fixture.ClassBuilder) { class.Parameters(params) })
			if _, err := g.clients.Core.CoreV1().Secrets(g.ns).Create(t.Context(), fixture.Secret(g.ns, "s", map[string]string{"password": "bad"}), metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			vac := &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: g.ns}, DriverName: g.ns, Parameters: map[string]string{"iops": "1"}}
			if _, err := g.clients.Core.StorageV1().VolumeAttributesClasses().Create(t.Context(), vac, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			g.driver.Add(memdriver.Fail("CreateVolume", codes.InvalidArgument, 1))
			l := g.begin(func(cfg *provision.Config) { cfg.RetryStart, cfg.RetryMax = 50*time.Millisecond, time.Hour })
			claim := g.create(g.ours("c").AttributesClass(g.ns))
			g.saying(g.ns, claim.UID, "ProvisioningFailed", "infeasible", "InvalidArgument")
			// It was looked at again, and nothing had changed.
			gets := l.requests.count(func(r request) bool { return strings.HasSuffix(r.path, "/secrets/s") })
			eventually(t, "another look", func() bool {
				return l.requests.count(func(r request) bool { return strings.HasSuffix(r.path, "/secrets/s") }) > gets
			})
			if got := g.creates(); got != 1 {
				t.Fatalf("%d CreateVolume calls before anything was mended", got)
			}
			if err := mend(g); err != nil {
				t.Fatal(err)
			}
			g.bound("c")
			if got := g.creates(); got != 2 {
				t.Errorf("%d CreateVolume calls, want 2", got)
			}
			g.remove("c")
			g.clean()
		})
	}
}

// ResourceExhausted without a node that could be replaced is tried again by us; with one the scheduler is asked.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{}, func(class *fixture.ClassBuilder) { class.WaitForFirstConsumer() })
	g.driver.Add(memdriver.Fail("CreateVolume", codes.ResourceExhausted, 2))
	g.begin()
	claim := g.create(g.ours("c").SelectedNode("node-1"))
	g.bound("c")
	if got := g.creates(); got != 3 {
		t.Errorf("%d CreateVolume calls, want 3: without topology it is an error like others", got)
	}
	g.saying(g.ns, claim.UID, "ProvisioningFailed", "ResourceExhausted")
	g.remove("c")
	g.clean()
}

// With topology the claim loses its node, and nothing else of it changes; with another node it is served.
func TestNoRoomOnTheNode(t *testing.T) {
	t.Parallel()
	g := newGround(t, memdriver.Config{}, func(class *fixture.ClassBuilder) { class.WaitForFirstConsumer() })
	g.driver.Add(memdriver.Fail("CreateVolume", codes.ResourceExhausted, 1))
	l := g.begin(func(cfg *provision.Config) { cfg.Settings.Capabilities.Topology = true })
	g.create(g.ours("c").SelectedNode("node-1").Annotation("tenants", "own"))
	eventually(t, "claim gave its node back", func() bool { return g.live("c").Annotations[wellknown.AnnSelectedNode] == "" })
	if live := g.live("c"); live.Annotations["tenants"] != "own" {
		t.Errorf("annotations %v", live.Annotations)
	}
	if got := l.requests.count(onClaims(http.MethodPut, http.StatusOK)); got != 1 {
		t.Errorf("%d writes of the claim, want 1", got)
	}
	if got := g.creates(); got != 1 {
		t.Errorf("%d CreateVolume calls, want 1 before another node is selected", got)
	}
	g.update("c", func(claim *corev1.PersistentVolumeClaim) bool {
		claim.Annotations[wellknown.AnnSelectedNode] = "node-2"
		return true
	})
	g.bound("c")
	g.remove("c")
	g.clean()
}

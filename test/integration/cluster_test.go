package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	controlplane "github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// patience bounds every wait of these tests.
const patience = time.Minute

// eventually waits until done says so; what is for the message.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !done(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}

// clients returns unlimited clients of the admin.
func clients(t *testing.T) *cluster.Clients {
	t.Helper()
	unlimited := cluster.Limits{QPS: -1}
	made, err := cluster.NewClients(controlplane.Shared(t).Config(), cluster.ClientConfig{
		Version: "test", Provisioning: unlimited, Capacity: unlimited, Events: unlimited,
	})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

// newNamespace makes a namespace for one test.
func newNamespace(t *testing.T, client kubernetes.Interface) string {
	t.Helper()
	ns, err := client.CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return ns.Name
}

// waitForServiceAccount waits until a namespace has its default service account: no pod comes and no token before that.
func waitForServiceAccount(t *testing.T, client kubernetes.Interface, ns string) {
	t.Helper()
	eventually(t, "the default service account is there", func() bool {
		_, err := client.CoreV1().ServiceAccounts(ns).Get(t.Context(), "default", metav1.GetOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// informers returns running, synced caches of driver.
func informers(t *testing.T, c *cluster.Clients, driver string) *cluster.Informers {
	t.Helper()
	i, err := cluster.NewInformers(cluster.InformersConfig{Client: c.Core, Driver: driver, Attachments: true, Gateway: c.Gateway})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { i.Run(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	if err := i.WaitForSync(ctx); err != nil {
		t.Fatal(err)
	}
	return i
}

func createClaim(t *testing.T, c *cluster.Clients, claim *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	t.Helper()
	created, err := c.Core.CoreV1().PersistentVolumeClaims(claim.Namespace).Create(t.Context(), claim, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// The caches show what is there when they start and what comes later, our objects whole and others short.
func TestCachesFollowTheAPIServer(t *testing.T) {
	t.Parallel()
	c := clients(t)
	ns := newNamespace(t, c.Core)
	driver := ns + ".driver"
	before := createClaim(t, c, fixture.Claim("before").Namespace(ns).For("other").FromClaim("origin").Obj())
	i := informers(t, c, driver)
	if got := i.Claim(ns, "before"); got == nil || got.UID != before.UID || len(got.Labels) != 0 {
		t.Errorf("claim from before the start: %v", got)
	}
	seen := make(chan string, 100)
	synced, err := i.OnClaim(func(old, new *corev1.PersistentVolumeClaim) {
		if claim := newer(old, new); claim.Namespace == ns {
			seen <- fmt.Sprintf("%s %v %v", claim.Name, old != nil, new != nil)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "handler synced", synced)
	ours := createClaim(t, c, fixture.Claim("ours").Namespace(ns).For(driver).Label("kept", "whole").FromClaim("origin").Obj())
	createClaim(t, c, fixture.Claim("plain").Namespace(ns).For("other").Obj())
	eventually(t, "both clones indexed", func() bool { return len(i.ClaimsBySource(source.ClaimKey(ns, "origin"))) == 2 })
	eventually(t, "plain claim cached", func() bool { return i.Claim(ns, "plain") != nil })
	if got := i.ClaimByUID(ours.UID); got == nil || got.Labels["kept"] != "whole" || len(got.ManagedFields) != 0 {
		t.Errorf("our claim: %v", got)
	}
	if err := c.Core.CoreV1().PersistentVolumeClaims(ns).Delete(t.Context(), "ours", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "our claim gone", func() bool {
		return i.ClaimByUID(ours.UID) == nil && len(i.ClaimsBySource(source.ClaimKey(ns, "origin"))) == 1
	})
	want := map[string]bool{"before false true": true, "ours false true": true, "ours true false": true}
	for len(want) > 0 {
		select {
		case got := <-seen:
			if strings.HasPrefix(got, "plain") {
				t.Errorf("handler was called for a claim that concerns nobody: %s", got)
			}
			delete(want, got)
		case <-time.After(patience):
			t.Fatalf("handler did not see %v", want)
		}
	}
}

func newer(before, after *corev1.PersistentVolumeClaim) *corev1.PersistentVolumeClaim {
	if after != nil {
		return after
	}
	return before
}

// When the node of a claim was selected is what the API server has recorded; writes of others do not move it.
func TestTheCacheTellsWhenTheNodeWasSelected(t *testing.T) {
	t.Parallel()
	c := clients(t)
	ns := newNamespace(t, c.Core)
	i := informers(t, c, ns+".driver")
	claim := createClaim(t, c, fixture.Claim("c").Namespace(ns).For(ns+".driver").Label("l", "0").Obj())
	claims := c.Core.CoreV1().PersistentVolumeClaims(ns)
	patch := func(manager, body string) *corev1.PersistentVolumeClaim {
		t.Helper()
		live, err := claims.Patch(t.Context(), "c", types.MergePatchType, []byte(body), metav1.PatchOptions{FieldManager: manager})
		if err != nil {
			t.Fatal(err)
		}
		return live
	}
	eventually(t, "the claim is cached", func() bool { return i.ClaimByUID(claim.UID) != nil })
	if got := cluster.NodeSelected(i.ClaimByUID(claim.UID)); !got.IsZero() {
		t.Errorf("selected at %s before there was a node", got)
	}
	patch("scheduler", `{"metadata":{"annotations":{"`+wellknown.AnnSelectedNode+`":"n"}}}`)
	live := patch("somebody", `{"metadata":{"labels":{"l":"1"}}}`)
	at := slices.IndexFunc(live.ManagedFields, func(e metav1.ManagedFieldsEntry) bool { return e.Manager == "scheduler" })
	if at < 0 || live.ManagedFields[at].Time == nil {
		t.Fatalf("the API server recorded %v", live.ManagedFields)
	}
	eventually(t, "both writes are cached", func() bool { return i.ClaimByUID(claim.UID).Labels["l"] == "1" })
	got := i.ClaimByUID(claim.UID)
	if selected := cluster.NodeSelected(got); !selected.Equal(live.ManagedFields[at].Time.Time) || len(got.ManagedFields) != 1 {
		t.Errorf("selected at %s, want %s; managed fields %v", selected, live.ManagedFields[at].Time, got.ManagedFields)
	}
	// Another node is another selection.
	patch("somebody", `{"metadata":{"annotations":{"`+wellknown.AnnSelectedNode+`":null}}}`)
	eventually(t, "the node is taken off", func() bool { return cluster.NodeSelected(i.ClaimByUID(claim.UID)).IsZero() })
}

// A claim is written whole from what is live, however trimmed the cache is, and against other writers.
func TestUpdateClaimKeepsWhatOthersWrite(t *testing.T) {
	t.Parallel()
	const keeper = "example.com/keeper" // one that no controller of another test takes off
	c := clients(t)
	ns := newNamespace(t, c.Core)
	claim := createClaim(t, c, fixture.Claim("c").Namespace(ns).For("other").Annotation("users", "data").Label("l", "m").Obj())
	name := types.NamespacedName{Namespace: ns, Name: "c"}
	interfered := false
	got, err := cluster.UpdateClaim(t.Context(), c.Core, name, claim.UID, func(live *corev1.PersistentVolumeClaim) bool {
		if !interfered {
			interfered = true
			// Controllers of the cluster may have written since, too: this writer tries until it has its way.
			if _, err := cluster.UpdateClaim(t.Context(), c.Core, name, claim.UID, func(other *corev1.PersistentVolumeClaim) bool {
				other.Annotations["meanwhile"] = "written"
				return true
			}); err != nil {
				t.Error(err)
			}
		}
		live.Finalizers, _ = cluster.AddFinalizer(live.Finalizers, keeper)
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	if got.Annotations["users"] != "data" || got.Annotations["meanwhile"] != "written" || got.Labels["l"] != "m" ||
		!slices.Contains(got.Finalizers, keeper) || len(got.Finalizers) != 2 {
		t.Errorf("claim after the write: %v", got.ObjectMeta)
	}
	_, err = cluster.UpdateClaim(t.Context(), c.Core, name, "another", func(*corev1.PersistentVolumeClaim) bool { return true })
	if !errors.Is(err, cluster.ErrGone) {
		t.Errorf("error %v for another UID, want %v", err, cluster.ErrGone)
	}
	// The API server refuses to protect what is already going away; that is not "gone".
	if err := c.Core.CoreV1().PersistentVolumeClaims(ns).Delete(t.Context(), "c", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = cluster.UpdateClaim(t.Context(), c.Core, name, claim.UID, func(live *corev1.PersistentVolumeClaim) bool {
		live.Finalizers, _ = cluster.AddFinalizer(live.Finalizers, "example.com/another")
		return true
	})
	if !apierrors.IsInvalid(err) || errors.Is(err, cluster.ErrGone) {
		t.Errorf("error %v, want the API server's refusal", err)
	}
	got, err = cluster.UpdateClaim(t.Context(), c.Core, name, claim.UID, func(live *corev1.PersistentVolumeClaim) bool {
		live.Finalizers, _ = cluster.RemoveFinalizer(live.Finalizers, keeper)
		return true
	})
	if err != nil {
		t.Fatal(err, got)
	}
}

// The patch of a finalizer touches nothing else, checks the UID, and bears other writers without a conflict.
func TestPatchPVFinalizer(t *testing.T) {
	t.Parallel()
	c := clients(t)
	name := newNamespace(t, c.Core) + "-pv"
	pvs := c.Core.CoreV1().PersistentVolumes()
	pv, err := pvs.Create(t.Context(), fixture.PV(name).Driver("driver").Class("nobody").Obj(), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	finalizers := func() []string {
		live, err := pvs.Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return slices.DeleteFunc(live.Finalizers, func(f string) bool { return f == "kubernetes.io/pv-protection" })
	}
	patch := func(uid types.UID, finalizer string, remove bool) error {
		return cluster.PatchPVFinalizer(t.Context(), c.Core, cluster.FinalizerPatch{PV: name, UID: uid, Finalizer: finalizer, Remove: remove})
	}
	const other = "example.com/other"
	if err := errors.Join(patch(pv.UID, other, false), patch(pv.UID, wellknown.FinalizerPV, false), patch(pv.UID, wellknown.FinalizerPV, false)); err != nil {
		t.Fatal(err)
	}
	if got := finalizers(); !slices.Contains(got, other) || !slices.Contains(got, wellknown.FinalizerPV) || len(got) != 2 {
		t.Errorf("finalizers after adding: %v", got)
	}
	if err := patch("another", wellknown.FinalizerPV, true); err != nil {
		t.Errorf("removal from another PersistentVolume of the name: %v", err)
	}
	if err := patch("another", "example.com/third", false); !errors.Is(err, cluster.ErrGone) {
		t.Errorf("error %v for another UID, want %v", err, cluster.ErrGone)
	}
	if got := finalizers(); len(got) != 2 {
		t.Errorf("another UID changed the finalizers to %v", got)
	}
	// Bound to a version, it changes no other.
	versioned := func(version string) error {
		return cluster.PatchPVFinalizer(t.Context(), c.Core, cluster.FinalizerPatch{PV: name, UID: pv.UID, Finalizer: "example.com/third", ResourceVersion: version})
	}
	if err := versioned(pv.ResourceVersion); !apierrors.IsConflict(err) {
		t.Errorf("error %v for an old version, want a conflict", err)
	}
	live, err := pvs.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(versioned(live.ResourceVersion), patch(pv.UID, "example.com/third", true)); err != nil {
		t.Error(err)
	}
	if got := finalizers(); len(got) != 2 {
		t.Errorf("finalizers after changes of one version: %v", got)
	}
	// Two removers and a writer of annotations at once: none loses.
	done := make(chan error, 3)
	go func() { done <- patch(pv.UID, wellknown.FinalizerPV, true) }()
	go func() { done <- patch(pv.UID, other, true) }()
	go func() {
		_, err := pvs.Patch(t.Context(), name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"a":"b"}}}`), metav1.PatchOptions{})
		done <- err
	}()
	for range cap(done) {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if got := finalizers(); len(got) != 0 {
		t.Errorf("finalizers after removing: %v", got)
	}
	if err := pvs.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "PersistentVolume gone", func() bool {
		_, err := pvs.Get(t.Context(), name, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
	if err := patch(pv.UID, wellknown.FinalizerPV, true); err != nil {
		t.Errorf("removal from what is gone: %v", err)
	}
	if err := patch(pv.UID, wellknown.FinalizerPV, false); !errors.Is(err, cluster.ErrGone) {
		t.Errorf("error %v for what is gone, want %v", err, cluster.ErrGone)
	}
}

var podSpec = corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "i"}}}

// The owner is found with the rights that are shipped, and what is missing is named.
func TestOwnerWithTheRightsOfAnInstallation(t *testing.T) {
	t.Parallel()
	c := clients(t)
	ns := newNamespace(t, c.Core)
	isController := true
	labels := map[string]string{"a": "b"}
	replicaSet, err := c.Core.AppsV1().ReplicaSets(ns).Create(t.Context(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "rs"},
		Spec: appsv1.ReplicaSetSpec{
			Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels}, Spec: podSpec},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	waitForServiceAccount(t, c.Core, ns)
	_, err = c.Core.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "p", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "rs", UID: replicaSet.UID, Controller: &isController},
		}},
		Spec: podSpec,
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	grant(t, c.Core, ns, rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}})
	config, err := controlplane.Shared(t).ServiceAccountConfig(t.Context(), ns, "default")
	if err != nil {
		t.Fatal(err)
	}
	own, err := cluster.NewClients(config, cluster.ClientConfig{Capacity: cluster.Limits{QPS: -1}})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the rights are in force", func() bool {
		_, err := own.Core.CoreV1().Pods(ns).Get(t.Context(), "p", metav1.GetOptions{})
		return err == nil
	})
	ask := func(level int) (*metav1.OwnerReference, error) {
		return cluster.Owner(t.Context(), cluster.OwnerConfig{
			Metadata: own.Metadata, Discovery: own.Core.Discovery(), Namespace: ns, Pod: "p", Level: level,
		})
	}
	if got, err := ask(0); err != nil || got.Kind != "Pod" || got.APIVersion != "v1" || got.UID == "" {
		t.Errorf("level 0: %v, %v", got, err)
	}
	if got, err := ask(1); err != nil || got.Kind != "ReplicaSet" || got.UID != replicaSet.UID || got.BlockOwnerDeletion != nil {
		t.Errorf("level 1: %v, %v", got, err)
	}
	if _, err := ask(2); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "get on replicasets.apps") {
		t.Errorf("level 2: %v, want the right that is missing", err)
	}
}

// grant gives the default service account of a namespace a right in it; it is in force a moment later.
func grant(t *testing.T, client kubernetes.Interface, ns string, rule rbacv1.PolicyRule) {
	t.Helper()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: "test"}, Rules: []rbacv1.PolicyRule{rule}}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "test"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: ns, Name: "default"}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "test"},
	}
	_, roleErr := client.RbacV1().Roles(ns).Create(t.Context(), role, metav1.CreateOptions{})
	_, bindingErr := client.RbacV1().RoleBindings(ns).Create(t.Context(), binding, metav1.CreateOptions{})
	if err := errors.Join(roleErr, bindingErr); err != nil {
		t.Fatal(err)
	}
}

func TestKindsOfTheAPIServer(t *testing.T) {
	t.Parallel()
	c := clients(t)
	for kind, want := range map[string]bool{
		"storage.k8s.io/v1 VolumeAttributesClass":              true,
		"storage.k8s.io/v1 CSIStorageCapacity":                 true,
		"snapshot.storage.k8s.io/v1 VolumeSnapshot":            true,
		"gateway.networking.k8s.io/v1beta1 ReferenceGrant":     true,
		"groupsnapshot.storage.k8s.io/v1 VolumeGroupSnapshot ": false,
	} {
		groupVersion, kind, _ := strings.Cut(kind, " ")
		if got, err := cluster.HasKind(t.Context(), c.Core.Discovery(), groupVersion, kind); err != nil || got != want {
			t.Errorf("%s %s: %v, %v, want %v", groupVersion, kind, got, err, want)
		}
	}
}

func TestGrantsOfANamespace(t *testing.T) {
	t.Parallel()
	c := clients(t)
	ns := newNamespace(t, c.Core)
	i := informers(t, c, "driver")
	_, err := c.Gateway.ReferenceGrants(ns).Create(t.Context(), &gatewayv1beta1.ReferenceGrant{
		ObjectMeta: metav1.ObjectMeta{Name: "g"},
		Spec: gatewayv1beta1.ReferenceGrantSpec{
			From: []gatewayv1beta1.ReferenceGrantFrom{{Group: "", Kind: "PersistentVolumeClaim", Namespace: "a"}},
			To:   []gatewayv1beta1.ReferenceGrantTo{{Group: "", Kind: "PersistentVolumeClaim"}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "grant cached", func() bool {
		grants, err := i.Grants(ns)
		return err == nil && len(grants) == 1 && grants[0].Spec.From[0].Namespace == "a"
	})
	if grants, err := i.Grants("elsewhere"); err != nil || len(grants) != 0 {
		t.Errorf("grants of another namespace: %v, %v", grants, err)
	}
}

// Events are written with the source that they were recorded with, and equal ones are counted by the API server's object.
func TestEventsReachTheAPIServer(t *testing.T) {
	t.Parallel()
	c := clients(t)
	ns := newNamespace(t, c.Core)
	claim := createClaim(t, c, fixture.Claim("c").Namespace(ns).For("other").Obj())
	for _, times := range []int{3, 2} { // a process, and the one after it
		ctx, cancel := context.WithCancel(t.Context())
		events := cluster.NewEvents(ctx, c.Events)
		ended := make(chan error, 1)
		go func() { ended <- events.Run(ctx) }()
		for range times {
			events.Recorder("us").Event(claim, corev1.EventTypeWarning, "ProvisioningFailed", "no room")
		}
		if err := events.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	list, err := c.Core.CoreV1().Events(ns).List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.uid=" + string(claim.UID) + ",source=us"})
	if err != nil || len(list.Items) != 1 {
		t.Fatalf("events: %v, %v", list, err)
	}
	if got := list.Items[0]; got.Count != 5 || got.Reason != "ProvisioningFailed" || got.Message != "no room" {
		t.Errorf("event: %+v", got)
	}
}

package integration

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	coordinationv1 "k8s.io/api/coordination/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2/ktesting"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/operations"
	controlplane "github.com/csi-sidecars/external-provisioner/test/cluster"
)

const operationsUser = "operations-user"

// recorder is one process that records operations, and what it has heard.
type recorder struct {
	*operations.Store
	stop func()

	mu        sync.Mutex
	recovered []operations.Operation
	reported  []error
}

func (r *recorder) Changed(types.UID) {}

func (r *recorder) Recovered(op operations.Operation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recovered = append(r.recovered, op)
}

func (r *recorder) Reported(_ *coordinationv1.Lease, reason error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reported = append(r.reported, reason)
}

// took returns the claims of the operations that were taken over.
func (r *recorder) took() (claims []types.UID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, op := range r.recovered {
		claims = append(claims, op.Claim.UID)
	}
	return claims
}

// recordingIn runs a process that records operations in a namespace, with the rights of operationsUser.
func recordingIn(t *testing.T, ns, identity string) *recorder {
	t.Helper()
	config := rest.CopyConfig(controlplane.Shared(t).Config())
	config.Impersonate = rest.ImpersonationConfig{UserName: operationsUser + "-" + ns, Groups: []string{"system:authenticated"}}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	r := &recorder{}
	r.Store, err = operations.New(operations.Config{
		Leases: client.CoordinationV1().Leases(ns), Rights: cluster.NewNamespacedAccess(client, coordinationv1.Resource("leases"), ns),
		LeaseName: "csi-example-com", Driver: "csi.example.com", Identity: identity, Exclusive: true, Listener: r,
	})
	if err != nil {
		t.Fatal(err)
	}
	_, base := ktesting.NewTestContext(t)
	ctx, cancel := context.WithCancel(base)
	var running sync.WaitGroup
	running.Go(func() { r.Run(ctx) })
	r.stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(r.stop)
	return r
}

// grantLeases gives operationsUser these verbs on Leases.
func grantLeases(t *testing.T, client kubernetes.Interface, ns string, verbs ...string) {
	t.Helper()
	meta := metav1.ObjectMeta{Name: operationsUser, Namespace: ns}
	_, err := client.RbacV1().Roles(ns).Create(t.Context(), &rbacv1.Role{
		ObjectMeta: meta, Rules: []rbacv1.PolicyRule{{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: verbs}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.RbacV1().RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: operationsUser},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, Name: operationsUser + "-" + ns}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func operationOf(claim types.UID) operations.Operation {
	name := "pvc-" + string(claim)
	return operations.Operation{
		Claim: operations.Object{Namespace: "team", Name: "data", UID: claim}, Class: operations.Object{Name: "fast", UID: "class"},
		VolumeName: name, Request: &csi.CreateVolumeRequest{Name: name, Parameters: map[string]string{"tier": "gold"}},
		PersistentVolume: operations.PersistentVolume{Provisioner: "csi.example.com"},
	}
}

// The rights of leader election are enough to record operations and to take them over, and a Lease that was restored from
// a backup is reported and left alone.
func TestOperationLeases(t *testing.T) {
	admin := clients(t).Core
	ns := newNamespace(t, admin)
	grantLeases(t, admin, ns, "get", "create", "update")
	first := recordingIn(t, ns, "first")
	for _, claim := range []types.UID{"a", "b"} {
		eventually(t, "the operation is recorded", func() bool { return first.Begin(operationOf(claim)).State == operations.Recorded })
	}
	first.End("b")
	first.Flush(t.Context())
	first.stop()
	leases := admin.CoordinationV1().Leases(ns)
	list, err := leases.List(t.Context(), metav1.ListOptions{})
	if err != nil || len(list.Items) != 2 {
		t.Fatalf("%d Leases, %v; want 2", len(list.Items), err)
	}

	second := recordingIn(t, ns, "second")
	eventually(t, "the operation is taken over", func() bool { return second.Begin(operationOf("a")).State == operations.Recovered })
	if got := second.took(); len(got) != 1 || got[0] != "a" {
		t.Errorf("took over %v, want a", got)
	}
	if err := second.Check(t.Context(), "a"); err != nil {
		t.Errorf("Check: %v", err)
	}
	second.stop()

	name := "csi-example-com-op-0"
	restored, err := leases.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if err := leases.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	restored.UID, restored.ResourceVersion = "", ""
	restored, err = leases.Create(t.Context(), restored, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	third := recordingIn(t, ns, "third")
	eventually(t, "the operation is recorded in another Lease", func() bool { return third.Begin(operationOf("a")).State == operations.Recorded })
	third.mu.Lock()
	reported := errors.Join(third.reported...)
	third.mu.Unlock()
	if !errors.Is(reported, operations.ErrOtherLease) || len(third.took()) != 0 {
		t.Errorf("reported %v and took over %v, want it reported only", reported, third.took())
	}
	after, err := leases.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil || after.ResourceVersion != restored.ResourceVersion {
		t.Errorf("the restored Lease was written: %v", err)
	}
	if err := leases.Delete(t.Context(), "csi-example-com-op-1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := third.Check(t.Context(), "a"); !errors.Is(err, operations.ErrForgotten) {
		t.Errorf("Check after the Lease was deleted: %v, want ErrForgotten", err)
	}
}

// Without the right the driver is called all the same, and the rule that is missing is named.
func TestOperationLeasesWithoutRights(t *testing.T) {
	admin := clients(t).Core
	ns := newNamespace(t, admin)
	r := recordingIn(t, ns, "me")
	eventually(t, "the operation goes on without a Lease", func() bool { return r.Begin(operationOf("a")).State == operations.Unprotected })
	want := `{apiGroups: ["coordination.k8s.io"], resources: [leases], verbs: [get]} to a Role in namespace ` + ns
	if err := r.Begin(operationOf("a")).Err; !errors.Is(err, cluster.ErrNotGranted) || !strings.Contains(err.Error(), want) {
		t.Errorf("%v does not name the rule %s", err, want)
	}
}

package e2e

import (
	"context"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	snapv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapclientset "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"
	gatewayclient "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned/typed/apis/v1beta1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/sidecar"
)

// stage is a world with a sidecar that has certain rights, and what plays need to make in it.
type stage struct {
	*sidecar.World
	t       *testing.T
	sidecar *sidecar.Sidecar
	// start starts another sidecar like that.
	start func(env ...string) *sidecar.Sidecar
	// all are those that were started.
	all []*sidecar.Sidecar
	// made is the class that class has made; "" for none.
	made string
	// reader is the kubeconfig that explain is run with; "" before that.
	reader string
}

func must[T any](t *testing.T) func(T, error) T {
	t.Helper()
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// cleanUp is for objects outside of the namespace.
func (s *stage) cleanUp(remove func(context.Context) error) {
	s.t.Cleanup(func() { _ = remove(context.WithoutCancel(s.t.Context())) }) // What is left harms nobody.
}

// says waits until the log says it.
func (s *stage) says(text string) { s.sidecar.Says(s.t, text, sidecar.Patience) }

// snapshots is a client of the admin's.
func (s *stage) snapshots() *snapclientset.Clientset {
	return must[*snapclientset.Clientset](s.t)(snapclientset.NewForConfig(s.Cluster.Config()))
}

// snapshotOf makes a snapshot of a claim's volume in the driver, and the objects that stand for it. The finalizers come
// last: while the snapshot has no content, any sidecar of any test may take ours off.
func (s *stage) snapshotOf(name, claim string, finalizers ...string) {
	s.t.Helper()
	_, pv := s.Bound(s.t, claim)
	connection := must[*grpc.ClientConn](s.t)(grpc.NewClient("unix://"+s.Driver.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials())))
	defer func() { _ = connection.Close() }()
	made := must[*csi.CreateSnapshotResponse](s.t)(csi.NewControllerClient(connection).CreateSnapshot(s.t.Context(),
		&csi.CreateSnapshotRequest{SourceVolumeId: pv.Spec.CSI.VolumeHandle, Name: name}))
	client, o := s.snapshots().SnapshotV1(), metav1.CreateOptions{}
	contentName := s.Namespace + "-" + name
	snapshot, err := client.VolumeSnapshots(s.Namespace).Create(s.t.Context(),
		fixture.Snapshot(name).Namespace(s.Namespace).Of(claim).Obj(), o)
	if err != nil {
		s.t.Fatal(err)
	}
	handle := made.GetSnapshot().GetSnapshotId()
	content, err := client.VolumeSnapshotContents().Create(s.t.Context(),
		fixture.Content(contentName).Driver(s.Driver.Name()).For(snapshot).Handle(handle).Obj(), o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.cleanUp(func(ctx context.Context) error {
		return client.VolumeSnapshotContents().Delete(ctx, contentName, metav1.DeleteOptions{})
	})
	content.Status = fixture.Content(contentName).Handle(handle).Obj().Status
	if _, err := client.VolumeSnapshotContents().UpdateStatus(s.t.Context(), content, metav1.UpdateOptions{}); err != nil {
		s.t.Fatal(err)
	}
	snapshots := client.VolumeSnapshots(s.Namespace)
	if err := cluster.Modify(s.t.Context(), name, snapshots.Get, snapshots.UpdateStatus, func(live *snapv1.VolumeSnapshot) {
		live.Status = fixture.Snapshot(name).Ready(contentName, "1Gi").Obj().Status
	}); err != nil {
		s.t.Fatal(err)
	}
	if len(finalizers) == 0 {
		return
	}
	if err := cluster.Modify(s.t.Context(), name, snapshots.Get, snapshots.Update, func(live *snapv1.VolumeSnapshot) {
		live.Finalizers = append(live.Finalizers, finalizers...)
	}); err != nil {
		s.t.Fatal(err)
	}
}

// node makes a Node on which the driver has the segment; nil leaves the driver out.
func (s *stage) node(name string, segment map[string]string) {
	s.t.Helper()
	must[*corev1.Node](s.t)(s.Client.CoreV1().Nodes().Create(s.t.Context(), fixture.Node(name, segment), metav1.CreateOptions{}))
	s.cleanUp(func(ctx context.Context) error {
		return s.Client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{})
	})
	if segment == nil {
		return
	}
	must[*storagev1.CSINode](s.t)(s.Client.StorageV1().CSINodes().Create(s.t.Context(), fixture.CSINode(name, s.Driver.Name(), segment), metav1.CreateOptions{}))
}

// annotated waits until a claim has the annotation, or has it no more.
func (s *stage) annotated(claim, annotation string, want bool) {
	s.t.Helper()
	sidecar.Eventually(s.t, claim+": "+annotation, func(ctx context.Context) (bool, error) {
		live, err := s.Client.CoreV1().PersistentVolumeClaims(s.Namespace).Get(ctx, claim, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		_, has := live.Annotations[annotation]
		return has == want, nil
	})
}

// attach makes a VolumeAttachment of the claim's volume and returns how to take it away.
func (s *stage) attach(claim string) (detach func()) {
	s.t.Helper()
	_, pv := s.Bound(s.t, claim)
	attachments := s.Client.StorageV1().VolumeAttachments()
	must[*storagev1.VolumeAttachment](s.t)(attachments.Create(s.t.Context(),
		fixture.Attachment(pv.Name, s.Driver.Name(), pv.Name, "some-node"), metav1.CreateOptions{}))
	return func() {
		if err := attachments.Delete(s.t.Context(), pv.Name, metav1.DeleteOptions{}); err != nil {
			s.t.Fatal(err)
		}
	}
}

// podOfDeployment makes a pod with the owners that one of a Deployment has, and returns its environment.
func podOfDeployment(t *testing.T, w *sidecar.World) []string {
	t.Helper()
	labels := map[string]string{"app": "a"}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	template := corev1.PodTemplateSpec{
		ObjectMeta: metav1.ObjectMeta{Labels: labels},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "a", Image: "none"}}},
	}
	apps, o := w.Client.AppsV1(), metav1.CreateOptions{}
	deployment := must[*appsv1.Deployment](t)(apps.Deployments(w.Namespace).Create(t.Context(), &appsv1.Deployment{
		ObjectMeta: metav1.ObjectMeta{Name: "a"}, Spec: appsv1.DeploymentSpec{Selector: selector, Template: template},
	}, o))
	set := must[*appsv1.ReplicaSet](t)(apps.ReplicaSets(w.Namespace).Create(t.Context(), &appsv1.ReplicaSet{
		ObjectMeta: metav1.ObjectMeta{Name: "a-1", OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(deployment, appsv1.SchemeGroupVersion.WithKind("Deployment")),
		}},
		Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template},
	}, o))
	w.Pod(t, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "a-1-x", Labels: labels, OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(set, appsv1.SchemeGroupVersion.WithKind("ReplicaSet")),
		}},
		Spec: template.Spec,
	})
	return []string{"NAMESPACE=" + w.Namespace, "POD_NAME=a-1-x"}
}

// grantTo lets claims of the namespace restore from snapshots of the stage's.
func (s *stage) grantTo(namespace string) {
	s.t.Helper()
	client := must[*gatewayclient.GatewayV1beta1Client](s.t)(gatewayclient.NewForConfig(s.Cluster.Config()))
	grant := &gatewayv1beta1.ReferenceGrant{
		ObjectMeta: metav1.ObjectMeta{Name: "grant"},
		Spec: gatewayv1beta1.ReferenceGrantSpec{
			From: []gatewayv1beta1.ReferenceGrantFrom{{Kind: wellknown.KindClaim, Namespace: gatewayv1beta1.Namespace(namespace)}},
			To:   []gatewayv1beta1.ReferenceGrantTo{{Group: wellknown.GroupSnapshot, Kind: wellknown.KindSnapshot}},
		},
	}
	must[*gatewayv1beta1.ReferenceGrant](s.t)(client.ReferenceGrants(s.Namespace).Create(s.t.Context(), grant, metav1.CreateOptions{}))
}

// otherNamespace makes one more namespace.
func (s *stage) otherNamespace() string {
	s.t.Helper()
	namespace := must[*corev1.Namespace](s.t)(s.Client.CoreV1().Namespaces().Create(s.t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: s.Namespace + "-"}}, metav1.CreateOptions{}))
	s.cleanUp(func(ctx context.Context) error {
		return s.Client.CoreV1().Namespaces().Delete(ctx, namespace.Name, metav1.DeleteOptions{})
	})
	return namespace.Name
}

// capacityObjects waits until exactly n CSIStorageCapacity objects are there, and returns them.
func (s *stage) capacityObjects(n int) []storagev1.CSIStorageCapacity {
	s.t.Helper()
	var items []storagev1.CSIStorageCapacity
	sidecar.Eventually(s.t, "capacity is published", func(ctx context.Context) (bool, error) {
		list, err := s.Client.StorageV1().CSIStorageCapacities(s.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		items = list.Items
		return len(items) == n, nil
	})
	return items
}

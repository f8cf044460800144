package cluster

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
)

func TestMain(m *testing.M) { os.Exit(Main(m, Options{Scheduler: true})) }

// eventually waits until done returns true; an error of it fails the test. It has patience: after a restart of the API
// server kube-controller-manager may look for it only once a minute.
func eventually(t *testing.T, what string, done func(ctx context.Context) (bool, error)) {
	t.Helper()
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 2*time.Minute, true, done); err != nil {
		t.Fatalf("wait until %s: %v", what, err)
	}
}

func namespace(t *testing.T, c *Cluster) string {
	t.Helper()
	ns, err := c.Client().CoreV1().Namespaces().Create(t.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "cluster-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "the namespace has its service account", func(ctx context.Context) (bool, error) {
		_, err := c.Client().CoreV1().ServiceAccounts(ns.Name).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, ignoreNotFound(err)
	})
	return ns.Name
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

func quantity(text string) corev1.ResourceList {
	return corev1.ResourceList{corev1.ResourceStorage: resource.MustParse(text)}
}

func TestAClaimIsBoundToAVolume(t *testing.T) {
	t.Parallel()
	c := Shared(t)
	ns := namespace(t, c)
	pv := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: ns},
		Spec: corev1.PersistentVolumeSpec{
			Capacity:               quantity("1Gi"),
			AccessModes:            []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: "example.com", VolumeHandle: "1"}},
			StorageClassName:       ns,
		},
	}
	if _, err := c.Client().CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Name: "claim"},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes:      pv.Spec.AccessModes,
			Resources:        corev1.VolumeResourceRequirements{Requests: quantity("1Gi")},
			StorageClassName: &ns,
		},
	}
	if _, err := c.Client().CoreV1().PersistentVolumeClaims(ns).Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the claim is bound", func(ctx context.Context) (bool, error) {
		claim, err := c.Client().CoreV1().PersistentVolumeClaims(ns).Get(ctx, "claim", metav1.GetOptions{})
		return err == nil && claim.Status.Phase == corev1.ClaimBound && claim.Spec.VolumeName == pv.Name, err
	})
}

func TestAPodIsScheduledToANodeThatATestMakes(t *testing.T) {
	t.Parallel()
	c := Shared(t)
	ns := namespace(t, c)
	allocatable := corev1.ResourceList{corev1.ResourcePods: resource.MustParse("10")}
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: ns, Labels: map[string]string{"for": ns}},
		Status: corev1.NodeStatus{
			Capacity: allocatable, Allocatable: allocatable,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
	if _, err := c.Client().CoreV1().Nodes().Create(t.Context(), node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "pod"},
		Spec: corev1.PodSpec{
			NodeSelector: node.Labels,
			Containers:   []corev1.Container{{Name: "c", Image: "none"}},
			Tolerations:  []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
	if _, err := c.Client().CoreV1().Pods(ns).Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the pod has its node", func(ctx context.Context) (bool, error) {
		pod, err := c.Client().CoreV1().Pods(ns).Get(ctx, "pod", metav1.GetOptions{})
		return err == nil && pod.Spec.NodeName == node.Name, err
	})
}

func TestAServiceAccountHasOnlyTheRightsItWasGiven(t *testing.T) {
	t.Parallel()
	c := Shared(t)
	ns := namespace(t, c)
	file, err := c.ServiceAccountKubeconfig(t.Context(), ns, "default")
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		t.Fatal(err)
	}
	client := kubernetes.NewForConfigOrDie(config)
	if _, err := client.CoreV1().Secrets(ns).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Fatalf("listing secrets without a right: want Forbidden, got %v", err)
	}
	role := &rbacv1.Role{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"secrets"}, Verbs: []string{"list"}}},
	}
	if _, err := c.Client().RbacV1().Roles(ns).Create(t.Context(), role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	binding := &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "reader"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "reader"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: "default"}},
	}
	if _, err := c.Client().RbacV1().RoleBindings(ns).Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the right is there", func(ctx context.Context) (bool, error) {
		_, err := client.CoreV1().Secrets(ns).List(ctx, metav1.ListOptions{})
		if apierrors.IsForbidden(err) {
			return false, nil
		}
		return err == nil, err
	})
}

func TestTheKindsOfDataSourcesAreServed(t *testing.T) {
	t.Parallel()
	c := Shared(t)
	if err := c.InstallCRDs(t.Context()); err != nil {
		t.Fatalf("a second time: %v", err)
	}
	client, err := dynamic.NewForConfig(c.Config())
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []schema.GroupVersionResource{
		{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshots"},
		{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshotcontents"},
		{Group: "snapshot.storage.k8s.io", Version: "v1", Resource: "volumesnapshotclasses"},
		{Group: "gateway.networking.k8s.io", Version: "v1beta1", Resource: "referencegrants"},
	} {
		if _, err := client.Resource(kind).List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Errorf("list %s: %v", kind.Resource, err)
		}
	}
}

func TestRestartAndStop(t *testing.T) {
	t.Parallel()
	c := StartForTest(t, Options{})
	ns := namespace(t, c)
	if err := c.StartAPIServer(t.Context()); err == nil {
		t.Error("starting the API server twice: want an error")
	}

	before := len(c.PIDs())
	c.StopAPIServer()
	if _, err := c.Client().CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{}); err == nil {
		t.Error("the API server answers after StopAPIServer")
	}
	if want, got := before-1, len(c.PIDs()); got != want {
		t.Errorf("processes after StopAPIServer: want %d, got %d", want, got)
	}
	if err := c.StartAPIServer(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Client().CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{}); err != nil {
		t.Errorf("the state after a restart: %v", err)
	}
	namespace(t, c) // The controllers have found the API server again.

	pids := c.PIDs()
	c.Stop()
	for _, pid := range pids {
		if syscall.Kill(pid, 0) == nil {
			t.Errorf("process %d is there after Stop", pid)
		}
	}
	if _, err := os.Stat(c.Dir()); !os.IsNotExist(err) {
		t.Errorf("folder after Stop: want none, got %v", err)
	}
}

func TestStartTellsWhyAComponentEnded(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "cluster")
	_, err := Start(t.Context(), Options{Dir: dir, APIServerArgs: []string{"--no-such-flag"}})
	if err == nil || !strings.Contains(err.Error(), "unknown flag: --no-such-flag") {
		t.Fatalf("want an error with the end of the log, got %v", err)
	}
}

func TestStartEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	var steps []string
	_, err := Start(ctx, Options{Logf: func(format string, args ...any) {
		steps = append(steps, format)
		cancel() // In the middle: etcd is ready, the API server is not.
	}})
	if err == nil || !strings.Contains(err.Error(), context.Canceled.Error()) {
		t.Fatalf("want the context's error, got %v", err)
	}
	if len(steps) != 1 {
		t.Errorf("want one step before the end, got %q", steps)
	}
}

func TestMissingBinariesAreNamed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, etcdBinary), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Start(t.Context(), Options{BinDir: dir})
	want := "no kube-apiserver, kube-controller-manager in " + dir + ": run `make cluster-binaries`, or set CLUSTER_BIN"
	if err == nil || err.Error() != want {
		t.Errorf("want %q, got %v", want, err)
	}
}

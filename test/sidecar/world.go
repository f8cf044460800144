package sidecar

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"

	"github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// World is what one test has for itself on a control plane that it shares: a namespace, a driver of its own name
// and the sidecar's service account.
type World struct {
	Cluster    *cluster.Cluster
	Client     kubernetes.Interface
	Namespace  string
	Driver     *memdriver.Driver
	Kubeconfig string
}

// NewWorld makes a world and removes it when the test ends. The sidecar's rights are those of Account.
func NewWorld(tb testing.TB, c *cluster.Cluster, cfg memdriver.Config, features ...string) *World {
	tb.Helper()
	w := &World{Cluster: c, Client: c.Client()}
	namespace, err := w.Client.CoreV1().Namespaces().Create(tb.Context(),
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "world-"}}, metav1.CreateOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	w.Namespace = namespace.Name
	tb.Cleanup(func() {
		_ = w.Client.CoreV1().Namespaces().Delete(context.WithoutCancel(tb.Context()), w.Namespace, metav1.DeleteOptions{})
	})
	if cfg.Name == "" {
		cfg.Name = w.Namespace + ".csi.example.com"
	}
	w.Driver = memdriver.Serve(tb, cfg)
	w.Kubeconfig = Account(tb, c, w.Namespace, features...)
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("calls of the driver:\n%s", lines(w.Driver.Calls()))
		}
	})
	return w
}

func lines(calls []memdriver.Call) string {
	var b strings.Builder
	for _, call := range calls {
		fmt.Fprintf(&b, "%s %4d %s\n", call.Begin.Format("15:04:05.000"), call.Seq, call)
	}
	return b.String()
}

// Options are those of a sidecar for this world that retries fast and is not throttled.
func (w *World) Options(args ...string) Options {
	return Options{
		Socket: w.Driver.Socket(), Kubeconfig: w.Kubeconfig,
		Args: append([]string{
			"--kube-api-qps=1000", "--kube-api-burst=1000", "--retry-interval-start=100ms", "--retry-interval-max=1s",
			"--leader-election-namespace=" + w.Namespace,
		}, args...),
	}
}

// Class creates the class for this world's driver under a name of its own and returns that.
func (w *World) Class(tb testing.TB, b *fixture.ClassBuilder) string {
	tb.Helper()
	class := b.Provisioner(w.Driver.Name()).Obj()
	class.Name += "-" + w.Namespace
	if _, err := w.Client.StorageV1().StorageClasses().Create(tb.Context(), class, metav1.CreateOptions{}); err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		_ = w.Client.StorageV1().StorageClasses().Delete(context.WithoutCancel(tb.Context()), class.Name, metav1.DeleteOptions{})
	})
	return class.Name
}

// Claim creates the claim in this world's namespace.
func (w *World) Claim(tb testing.TB, b *fixture.ClaimBuilder) *corev1.PersistentVolumeClaim {
	tb.Helper()
	claim, err := w.Client.CoreV1().PersistentVolumeClaims(w.Namespace).Create(tb.Context(), b.Namespace(w.Namespace).Obj(), metav1.CreateOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	return claim
}

// Pod creates the pod in this world's namespace, as soon as there is the service account that a pod needs.
func (w *World) Pod(tb testing.TB, pod *corev1.Pod) {
	tb.Helper()
	Eventually(tb, "there is a default service account", func(ctx context.Context) (bool, error) {
		_, err := w.Client.CoreV1().ServiceAccounts(w.Namespace).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, IgnoreNotFound(err)
	})
	if _, err := w.Client.CoreV1().Pods(w.Namespace).Create(tb.Context(), pod, metav1.CreateOptions{}); err != nil {
		tb.Fatal(err)
	}
}

// DeleteClaim asks for the deletion of a claim.
func (w *World) DeleteClaim(tb testing.TB, name string) {
	tb.Helper()
	if err := w.Client.CoreV1().PersistentVolumeClaims(w.Namespace).Delete(tb.Context(), name, metav1.DeleteOptions{}); err != nil {
		tb.Fatal(err)
	}
}

// Patience is how long the waiting methods wait. After a restart of the API server kube-controller-manager may look for
// it only once a minute.
const Patience = 2 * time.Minute

// Eventually waits until done; an error of it, and the end of patience, end the test.
func Eventually(tb testing.TB, what string, done func(ctx context.Context) (bool, error)) {
	tb.Helper()
	if err := wait.PollUntilContextTimeout(tb.Context(), pollEvery, Patience, true, done); err != nil {
		tb.Fatalf("wait until %s: %v", what, err)
	}
}

// Bound waits until the claim is bound and returns it with its volume.
func (w *World) Bound(tb testing.TB, name string) (claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) {
	tb.Helper()
	Eventually(tb, "claim "+name+" is bound", func(ctx context.Context) (done bool, err error) {
		claim, err = w.Client.CoreV1().PersistentVolumeClaims(w.Namespace).Get(ctx, name, metav1.GetOptions{})
		return err == nil && claim.Status.Phase == corev1.ClaimBound, err
	})
	pv, err := w.Client.CoreV1().PersistentVolumes().Get(tb.Context(), claim.Spec.VolumeName, metav1.GetOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	return claim, pv
}

// PVs returns the names of the PersistentVolumes of this world's driver, sorted.
func (w *World) PVs(ctx context.Context) ([]string, error) {
	list, err := w.Client.CoreV1().PersistentVolumes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var names []string
	for _, pv := range list.Items {
		if pv.Spec.CSI != nil && pv.Spec.CSI.Driver == w.Driver.Name() {
			names = append(names, pv.Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Empty waits until claims, PersistentVolumes and volumes are all gone.
func (w *World) Empty(tb testing.TB) {
	tb.Helper()
	var left string
	err := wait.PollUntilContextTimeout(tb.Context(), pollEvery, Patience, true, func(ctx context.Context) (bool, error) {
		claims, err := w.Client.CoreV1().PersistentVolumeClaims(w.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		pvs, err := w.PVs(ctx)
		if err != nil {
			return false, err
		}
		left = fmt.Sprintf("%d claims, PVs %v, volumes %v", len(claims.Items), pvs, w.Driver.Volumes())
		return len(claims.Items)+len(pvs)+len(w.Driver.Volumes()) == 0, nil
	})
	if err != nil {
		tb.Fatalf("wait until all is gone: %v; left are %s", err, left)
	}
}

// Event waits for an event of the reason about the object and returns its message.
func (w *World) Event(tb testing.TB, name, reason string) string {
	tb.Helper()
	var message string
	Eventually(tb, fmt.Sprintf("%s has an event %s", name, reason), func(ctx context.Context) (bool, error) {
		list, err := w.Client.CoreV1().Events(w.Namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err
		}
		for _, event := range list.Items {
			if event.InvolvedObject.Name == name && event.Reason == reason {
				message = event.Message
				return true, nil
			}
		}
		return false, nil
	})
	return message
}

// IgnoreNotFound returns nil for a NotFound error.
func IgnoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

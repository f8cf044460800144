package integration

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/controllers/cloneprotect"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// outstanding says of one source that a create reads it.
type outstanding struct{ key atomic.Pointer[string] }

func (o *outstanding) ForSource(key string) bool {
	current := o.key.Load()
	return current != nil && *current == key
}

// running runs a controller until the test ends.
func running(t *testing.T, run func(stop, work context.Context) error) {
	t.Helper()
	stop, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- run(stop, context.WithoutCancel(stop)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// protectClones runs a controller whose back-off is out of reach: only events wake it. Like any it serves the sources
// of all namespaces.
func protectClones(t *testing.T, c *cluster.Clients, driver string) *cluster.Informers {
	t.Helper()
	caches := informers(t, c, driver)
	controller, err := cloneprotect.New(cloneprotect.Config{
		Claims: caches, Client: c.Core, Grants: caches.Grants, Threads: 1,
		RetryStart: time.Hour, RetryMax: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	running(t, controller.Run)
	return caches
}

// cloned is a source that is protected, as the provision controller leaves it, and the clones of it.
type cloned struct {
	*testing.T
	clients *cluster.Clients
	ns      string
	source  *corev1.PersistentVolumeClaim
}

func newCloned(t *testing.T, c *cluster.Clients) *cloned {
	t.Helper()
	ns := newNamespace(t, c.Core)
	origin := fixture.Claim("src").Namespace(ns).Class(ns).For(ns).Finalizer(wellknown.FinalizerCloneSource).Obj()
	return &cloned{T: t, clients: c, ns: ns, source: createClaim(t, c, origin)}
}

func (w *cloned) remove(claim *corev1.PersistentVolumeClaim) {
	w.Helper()
	if err := w.clients.Core.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete(w.Context(), claim.Name, metav1.DeleteOptions{}); err != nil {
		w.Fatal(err)
	}
}

// gone says whether the source is not there any more.
func (w *cloned) gone() bool {
	live, err := w.clients.Core.CoreV1().PersistentVolumeClaims(w.ns).Get(w.Context(), "src", metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		w.Fatal(err)
	}
	return err != nil || live.UID != w.source.UID
}

// stays waits until the source has only our finalizer left, and fails if that goes as well.
func (w *cloned) stays() {
	w.Helper()
	eventually(w.T, "only our finalizer is left", func() bool {
		live, err := w.clients.Core.CoreV1().PersistentVolumeClaims(w.ns).Get(w.Context(), "src", metav1.GetOptions{})
		if err != nil {
			w.Fatalf("the source went while a clone needs it: %v", err)
		}
		return live.DeletionTimestamp != nil && slices.Equal(live.Finalizers, []string{wellknown.FinalizerCloneSource})
	})
	// Nothing tells that a controller does nothing; this is long enough to see one that is wrong.
	time.Sleep(200 * time.Millisecond)
	if w.gone() {
		w.Fatal("the source went while a clone needs it")
	}
}

// bind makes the volume that a claim waits for; Kubernetes binds the two.
func (w *cloned) bind(claim *corev1.PersistentVolumeClaim) {
	w.Helper()
	pv := fixture.PV("pv-" + string(claim.UID)).Driver("driver").Class(w.ns).BoundTo(claim).Obj()
	if _, err := w.clients.Core.CoreV1().PersistentVolumes().Create(w.Context(), pv, metav1.CreateOptions{}); err != nil {
		w.Fatal(err)
	}
}

// The source of a clone is deleted in mid-clone: it stays until the clone is bound, and goes with that event.
func TestASourceGoesWhenItsCloneIsBound(t *testing.T) {
	t.Parallel()
	c := clients(t)
	w := newCloned(t, c)
	protectClones(t, c, w.ns)
	clone := createClaim(t, c, fixture.Claim("clone").Namespace(w.ns).Class(w.ns).For(w.ns).FromClaim("src").Obj())
	w.remove(w.source)
	w.stays()
	w.bind(clone)
	eventually(t, "source gone", w.gone)
}

// Two clones, one of another driver: the source waits for the last of them, also when that is deleted instead of bound.
func TestASourceWaitsForItsLastClone(t *testing.T) {
	t.Parallel()
	c := clients(t)
	w := newCloned(t, c)
	protectClones(t, c, w.ns)
	first := createClaim(t, c, fixture.Claim("first").Namespace(w.ns).Class(w.ns).For(w.ns).FromClaim("src").Obj())
	second := createClaim(t, c, fixture.Claim("second").Namespace(w.ns).Class(w.ns).For("other").FromClaim("src").Obj())
	w.remove(w.source)
	w.stays()
	w.bind(first)
	w.stays()
	w.remove(second)
	eventually(t, "source gone", w.gone)
}

// A clone in another namespace keeps its source as well as one beside it, if it may use it.
func TestASourceWaitsForACloneInAnotherNamespace(t *testing.T) { //nolint:paralleltest // the controllers of other tests may not know of the grant yet
	c := clients(t)
	w := newCloned(t, c)
	elsewhere := newNamespace(t, c.Core)
	caches := protectClones(t, c, w.ns)
	(&ground{site: &site{T: t, clients: c, ns: w.ns}}).grantClaims(elsewhere)
	eventually(t, "grant cached", func() bool {
		grants, err := caches.Grants(w.ns)
		return err == nil && len(grants) == 1
	})
	clone := createClaim(t, c, fixture.Claim("src").Namespace(elsewhere).Class(w.ns).For(w.ns).FromAbroad("", wellknown.KindClaim, w.ns, "src").Obj())
	w.remove(w.source)
	w.stays()
	w.bind(clone)
	eventually(t, "source gone", w.gone)
}

// A controller that starts later, after a restart or as the next leader, finds the source that waits.
func TestASourceThatWaitedForAControllerGoes(t *testing.T) { //nolint:paralleltest // the controllers of other tests would release it
	c := clients(t)
	w := newCloned(t, c)
	w.remove(w.source)
	w.stays()
	protectClones(t, c, w.ns)
	eventually(t, "source gone", w.gone)
}

// The claim of a clone is gone while the driver may still copy: the source waits for the end of that.
func TestASourceWaitsForACreateWithoutAClaim(t *testing.T) { //nolint:paralleltest // the controllers of other tests know nothing of the create
	c := clients(t)
	w := newCloned(t, c)
	creates := &outstanding{}
	key := source.ClaimKey(w.ns, "src")
	creates.key.Store(&key)
	caches := informers(t, c, w.ns)
	controller, err := cloneprotect.New(cloneprotect.Config{
		Claims: caches, Client: c.Core, Outstanding: creates, Grants: caches.Grants, Threads: 1,
		RetryStart: 10 * time.Millisecond, RetryMax: 100 * time.Millisecond,
	})
	if err != nil {
		t.Fatal(err)
	}
	running(t, controller.Run)
	w.remove(w.source)
	w.stays()
	creates.key.Store(nil)
	eventually(t, "source gone", w.gone)
}

// Other finalizers stay, and so does a source that nobody deletes.
func TestOnlyOurFinalizerGoes(t *testing.T) {
	t.Parallel()
	c := clients(t)
	w := newCloned(t, c)
	protectClones(t, c, w.ns)
	held := createClaim(t, c, fixture.Claim("held").Namespace(w.ns).For(w.ns).Label("l", "m").
		Finalizer("example.com/other", wellknown.FinalizerCloneSource).Obj())
	w.remove(held)
	claims := c.Core.CoreV1().PersistentVolumeClaims(w.ns)
	eventually(t, "our finalizer gone", func() bool {
		live, err := claims.Get(t.Context(), "held", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return slices.Equal(live.Finalizers, []string{"example.com/other"}) && live.Labels["l"] == "m"
	})
	if live, err := claims.Get(t.Context(), "src", metav1.GetOptions{}); err != nil || !slices.Contains(live.Finalizers, wellknown.FinalizerCloneSource) {
		t.Errorf("the source that nobody deletes: %v, %v", live, err)
	}
}

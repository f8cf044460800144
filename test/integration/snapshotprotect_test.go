package integration

import (
	"errors"
	"slices"
	"testing"
	"time"

	snapv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/controllers/snapshotprotect"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	controlplane "github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// restored is a namespace with snapshots of a driver that has the namespace's name.
type restored struct {
	*testing.T
	clients *cluster.Clients
	ns      string
	grants  bool // a ReferenceGrant for sources of ns exists
}

func newRestored(t *testing.T, c *cluster.Clients) *restored {
	t.Helper()
	return &restored{T: t, clients: c, ns: newNamespace(t, c.Core)}
}

// snapshot makes a protected snapshot; driver "" leaves it without a content. Our finalizer comes last: without a content
// a snapshot is anybody's to strip, and other tests sweep all namespaces.
func (w *restored) snapshot(name, driver string) {
	w.Helper()
	content := w.ns + "-" + name
	snapshots := w.clients.Snapshot.SnapshotV1().VolumeSnapshots(w.ns)
	made, err := snapshots.Create(w.Context(), fixture.Snapshot(name).Namespace(w.ns).Of("origin").
		Finalizer("example.com/other").Obj(), metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	if driver != "" {
		_, err = w.clients.Snapshot.SnapshotV1().VolumeSnapshotContents().Create(w.Context(),
			fixture.Content(content).Driver(driver).For(made).Handle("h").Obj(), metav1.CreateOptions{})
		if err != nil {
			w.Fatal(err)
		}
	}
	ready := controlplane.Modify(w.Context(), name, snapshots.Get, snapshots.UpdateStatus, func(live *snapv1.VolumeSnapshot) {
		live.Status = fixture.Snapshot(name).Ready(content, "1Gi").Obj().Status
	})
	protected := controlplane.Modify(w.Context(), name, snapshots.Get, snapshots.Update, func(live *snapv1.VolumeSnapshot) {
		live.Finalizers = append(live.Finalizers, wellknown.FinalizerSnapshotSource)
	})
	if err := errors.Join(ready, protected); err != nil {
		w.Fatal(err)
	}
}

// protected says whether the snapshot has our finalizer; another one must be there in any case.
func (w *restored) protected(name string) bool {
	w.Helper()
	live, err := w.clients.Snapshot.SnapshotV1().VolumeSnapshots(w.ns).Get(w.Context(), name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	if !slices.Contains(live.Finalizers, "example.com/other") || live.Status == nil {
		w.Errorf("more than our finalizer went: %v", live)
	}
	return slices.Contains(live.Finalizers, wellknown.FinalizerSnapshotSource)
}

func (w *restored) remove(claim *corev1.PersistentVolumeClaim) {
	w.Helper()
	err := w.clients.Core.CoreV1().PersistentVolumeClaims(claim.Namespace).Delete(w.Context(), claim.Name, metav1.DeleteOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		w.Fatal(err)
	}
}

// sweep runs a controller that sweeps all the time.
func (w *restored) sweep(driver string, creates snapshotprotect.Outstanding) {
	w.Helper()
	caches := informers(w.T, w.clients, driver)
	if w.grants {
		eventually(w.T, "grant cached", func() bool {
			grants, err := caches.Grants(w.ns)
			return err == nil && len(grants) == 1
		})
	}
	controller, err := snapshotprotect.New(snapshotprotect.Config{
		Claims: caches, Client: w.clients.Core, Snapshots: w.clients.Snapshot,
		Discovery: w.clients.Core.Discovery(), Driver: driver, Grants: caches.Grants, Outstanding: creates,
		Interval: 50 * time.Millisecond,
	})
	if err != nil {
		w.Fatal(err)
	}
	running(w.T, controller.Run)
}

// What was left behind goes, what is in use or another driver's stays.
func TestLeftoverProtectionGoes(t *testing.T) {
	t.Parallel()
	w := newRestored(t, clients(t))
	elsewhere, ungranted := newNamespace(t, w.clients.Core), newNamespace(t, w.clients.Core)
	(&ground{site: &site{T: t, clients: w.clients, ns: w.ns}}).grantClaims(elsewhere)
	w.grants = true
	for _, name := range []string{"leftover", "used", "used-abroad", "named-abroad", "shared", "flying"} {
		w.snapshot(name, w.ns)
	}
	w.snapshot("foreign", "other")
	w.snapshot("contentless", "")
	claim := func(name, snapshot string) *corev1.PersistentVolumeClaim {
		return createClaim(t, w.clients, fixture.Claim(name).Namespace(w.ns).Class(w.ns).For(w.ns).FromSnapshot(snapshot).Obj())
	}
	used, first, second := claim("used", "used"), claim("first", "shared"), claim("second", "shared")
	abroad := createClaim(t, w.clients, fixture.Claim("abroad").Namespace(elsewhere).Class(w.ns).For("other").
		FromAbroad(wellknown.GroupSnapshot, wellknown.KindSnapshot, w.ns, "used-abroad").Obj())
	createClaim(t, w.clients, fixture.Claim("abroad").Namespace(ungranted).Class(w.ns).For("other").
		FromAbroad(wellknown.GroupSnapshot, wellknown.KindSnapshot, w.ns, "named-abroad").Obj())
	creates := &outstanding{}
	key := source.SnapshotKey(w.ns, "flying")
	creates.key.Store(&key)
	w.sweep(w.ns, creates)

	eventually(t, "leftover stripped", func() bool { return !w.protected("leftover") })
	eventually(t, "contentless stripped", func() bool { return !w.protected("contentless") })
	eventually(t, "snapshot that is named without a grant stripped", func() bool { return !w.protected("named-abroad") })
	// Two claims restore from one snapshot: it stays until both are bound.
	bind := (&cloned{T: t, clients: w.clients, ns: w.ns}).bind
	bind(first)
	eventually(t, "first claim bound", func() bool {
		live, err := w.clients.Core.CoreV1().PersistentVolumeClaims(w.ns).Get(t.Context(), "first", metav1.GetOptions{})
		return err == nil && live.Status.Phase == corev1.ClaimBound
	})
	// The next leftover shows that a whole sweep has passed since.
	w.snapshot("later", w.ns)
	eventually(t, "later stripped", func() bool { return !w.protected("later") })
	for _, name := range []string{"used", "used-abroad", "shared", "flying", "foreign"} {
		if !w.protected(name) {
			t.Errorf("snapshot %s was stripped", name)
		}
	}
	bind(second)
	w.remove(used)
	w.remove(abroad)
	creates.key.Store(nil)
	for _, name := range []string{"used", "used-abroad", "shared", "flying"} {
		eventually(t, name+" stripped", func() bool { return !w.protected(name) })
	}
	if !w.protected("foreign") {
		t.Error("the snapshot of another driver was stripped")
	}
}

// The snapshot of a restore is deleted in mid-restore: it stays until the claim is bound, then it goes.
func TestASnapshotGoesWhenItsRestoreIsOver(t *testing.T) {
	t.Parallel()
	w := newRestored(t, clients(t))
	w.snapshot("s", w.ns)
	claim := createClaim(t, w.clients, fixture.Claim("c").Namespace(w.ns).Class(w.ns).For(w.ns).FromSnapshot("s").Obj())
	if err := w.clients.Snapshot.SnapshotV1().VolumeSnapshots(w.ns).Delete(t.Context(), "s", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	w.sweep(w.ns, nil)
	w.snapshot("leftover", w.ns)
	eventually(t, "a sweep has passed", func() bool { return !w.protected("leftover") })
	if !w.protected("s") {
		t.Fatal("the snapshot was stripped in mid-restore")
	}
	(&cloned{T: t, clients: w.clients, ns: w.ns}).bind(claim)
	eventually(t, "stripped after the restore", func() bool { return !w.protected("s") })
}

package integration

import (
	"net/http"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	snapv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	controlplane "github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// sourceGround is a ground whose processes let go of sources, too.
func sourceGround(t *testing.T, mem memdriver.Config, edit ...func(*fixture.ClassBuilder)) *ground {
	t.Helper()
	g := newGround(t, mem, edit...)
	g.protects = true
	return g
}

// origin makes a claim with a volume, to be copied from.
func (g *ground) origin(name string) *corev1.PersistentVolume {
	g.Helper()
	g.create(g.ours(name))
	return g.bound(name)
}

// snapshot makes a snapshot of the volume of a claim, ready, of size.
func (g *ground) snapshot(name, claim, size string) {
	g.Helper()
	pv := g.bound(claim)
	connection, err := grpc.NewClient("unix://"+g.driver.Socket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		g.Fatal(err)
	}
	defer func() { _ = connection.Close() }()
	made, err := csi.NewControllerClient(connection).CreateSnapshot(g.Context(), &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: pv.Spec.CSI.VolumeHandle})
	if err != nil {
		g.Fatal(err)
	}
	snapshots := g.clients.Snapshot.SnapshotV1()
	snapshot, err := snapshots.VolumeSnapshots(g.ns).Create(g.Context(), fixture.Snapshot(name).Namespace(g.ns).Of(claim).Obj(), metav1.CreateOptions{})
	if err != nil {
		g.Fatal(err)
	}
	content := g.ns + "-" + name
	_, err = snapshots.VolumeSnapshotContents().Create(g.Context(),
		fixture.Content(content).Driver(g.ns).For(snapshot).Handle(made.GetSnapshot().GetSnapshotId()).Obj(), metav1.CreateOptions{})
	if err != nil {
		g.Fatal(err)
	}
	contents, namespaced := snapshots.VolumeSnapshotContents(), snapshots.VolumeSnapshots(g.ns)
	if err := controlplane.Modify(g.Context(), content, contents.Get, contents.UpdateStatus, func(live *snapv1.VolumeSnapshotContent) {
		live.Status = fixture.Content(content).Handle(made.GetSnapshot().GetSnapshotId()).Obj().Status
	}); err != nil {
		g.Fatal(err)
	}
	if err := controlplane.Modify(g.Context(), name, namespaced.Get, namespaced.UpdateStatus, func(live *snapv1.VolumeSnapshot) {
		live.Status = fixture.Snapshot(name).Ready(content, size).Obj().Status
	}); err != nil {
		g.Fatal(err)
	}
}

// liveSnapshot returns a snapshot as it is now, nil when it is gone.
func (g *ground) liveSnapshot(name string) *snapv1.VolumeSnapshot {
	g.Helper()
	snapshot, err := g.clients.Snapshot.SnapshotV1().VolumeSnapshots(g.ns).Get(g.Context(), name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		g.Fatal(err)
	}
	return snapshot
}

func (g *ground) removeSnapshot(name string) {
	g.Helper()
	if err := g.clients.Snapshot.SnapshotV1().VolumeSnapshots(g.ns).Delete(g.Context(), name, metav1.DeleteOptions{}); err != nil {
		g.Fatal(err)
	}
}

func (g *ground) snapshotProtected(name string) bool {
	g.Helper()
	snapshot := g.liveSnapshot(name)
	return snapshot != nil && slices.Contains(snapshot.Finalizers, wellknown.FinalizerSnapshotSource)
}

func (g *ground) claimProtected(name string) bool {
	g.Helper()
	claim := g.live(name)
	return claim != nil && slices.Contains(claim.Finalizers, wellknown.FinalizerCloneSource)
}

// blocked holds the next CreateVolume calls, after the one whose volume is made for want of another.
func (g *ground) blocked(times int) (release func()) {
	rule, release := memdriver.Block("CreateVolume")
	rule.Times = times
	g.driver.Add(rule)
	g.Cleanup(release)
	return release
}

// The source of a clone is deleted in mid-clone: it stays until the clone is bound. The clone has its content.
func TestTheSourceIsDeletedInMidClone(t *testing.T) {
	t.Parallel()
	g := sourceGround(t, memdriver.Config{})
	g.begin()
	pv := g.origin("src")
	release := g.blocked(1)
	g.create(g.ours("clone").FromClaim("src"))
	call := g.started("CreateVolume", 2)[1]
	if got := call.Create().GetVolumeContentSource().GetVolume().GetVolumeId(); got != pv.Spec.CSI.VolumeHandle {
		t.Errorf("content source %q", got)
	}
	if !g.claimProtected("src") {
		t.Error("the source was not protected before the call")
	}
	g.remove("src")
	if g.live("src") == nil {
		t.Fatal("the source is gone in mid-clone")
	}
	release()
	g.bound("clone")
	eventually(t, "the source is gone", func() bool { return g.live("src") == nil })
	g.remove("clone")
	g.clean()
}

// The same when the call goes unanswered and everything is deleted: source, clone and process.
func TestACloneAndItsSourceAreDeletedInMidClone(t *testing.T) {
	t.Parallel()
	g := sourceGround(t, memdriver.Config{})
	first := g.begin()
	g.origin("src")
	remove := g.driver.Add(memdriver.FailLate("CreateVolume", codes.DeadlineExceeded, 0))
	g.create(g.ours("clone").FromClaim("src"))
	eventually(t, "operation recorded", func() bool { return g.recorded("clone") })
	g.remove("src")
	g.remove("clone")
	calls := g.creates()
	g.started("CreateVolume", calls+2) // it goes on while the source is going
	first.kill()
	if g.live("src") == nil {
		t.Fatal("the source is gone while the create is unanswered")
	}
	remove()
	g.begin()
	g.clean()
}

// A snapshot is deleted in mid-restore, and so is the claim: the restore is finished, the snapshot goes after it.
func TestTheSnapshotIsDeletedInMidRestore(t *testing.T) {
	t.Parallel()
	g := sourceGround(t, memdriver.Config{})
	g.begin()
	g.origin("src")
	g.snapshot("snap", "src", "1Gi")
	remove := g.driver.Add(memdriver.FailLate("CreateVolume", codes.DeadlineExceeded, 0))
	g.create(g.ours("restored").FromSnapshot("snap"))
	g.ended("CreateVolume", 2)
	if !g.snapshotProtected("snap") {
		t.Error("the snapshot was not protected before the call")
	}
	g.removeSnapshot("snap")
	calls := g.creates()
	g.started("CreateVolume", calls+2)
	if g.liveSnapshot("snap") == nil {
		t.Fatal("the snapshot is gone in mid-restore")
	}
	remove()
	g.bound("restored")
	eventually(t, "the snapshot is gone", func() bool { return g.liveSnapshot("snap") == nil })
	for _, call := range g.driver.Calls("CreateVolume")[2:] {
		if diff := cmp.Diff(g.driver.Calls("CreateVolume")[1].Request, call.Request, protocmp.Transform()); diff != "" {
			t.Fatalf("requests (-first +later):\n%s", diff)
		}
	}
	g.remove("restored")
	g.remove("src")
	g.clean()
}

// R14: two claims restore from one snapshot; it stays protected until the second is done, too.
func TestTwoClaimsFromOneSnapshot(t *testing.T) {
	t.Parallel()
	g := sourceGround(t, memdriver.Config{})
	g.begin()
	g.origin("src")
	g.snapshot("snap", "src", "1Gi")
	slow := g.create(g.ours("slow").FromSnapshot("other")) // waits for a snapshot that comes later
	release := g.blocked(1)
	second := g.create(g.ours("second").FromSnapshot("snap"))
	g.started("CreateVolume", 2)
	g.create(g.ours("first").FromSnapshot("snap"))
	g.bound("first")
	g.removeSnapshot("snap")
	if !g.snapshotProtected("snap") {
		t.Fatal("the snapshot is not protected while a claim is restored from it")
	}
	release()
	g.bound("second")
	eventually(t, "the snapshot is gone", func() bool { return g.liveSnapshot("snap") == nil })
	g.saying(g.ns, second.UID, "ProvisioningSucceeded", "pvc-"+string(second.UID))
	g.saying(g.ns, slow.UID, "ProvisioningFailed", "other", "not found")
	for _, name := range []string{"first", "second", "slow", "src"} {
		g.remove(name)
	}
	g.clean()
}

// grantClaims lets claims of the namespace from copy claims and snapshots of the site.
func (g *ground) grantClaims(from string) {
	g.Helper()
	_, err := g.clients.Gateway.ReferenceGrants(g.ns).Create(g.Context(), &gatewayv1beta1.ReferenceGrant{
		ObjectMeta: metav1.ObjectMeta{Name: "grant"},
		Spec: gatewayv1beta1.ReferenceGrantSpec{
			From: []gatewayv1beta1.ReferenceGrantFrom{{Kind: "PersistentVolumeClaim", Namespace: gatewayv1beta1.Namespace(from)}},
			To: []gatewayv1beta1.ReferenceGrantTo{
				{Kind: "PersistentVolumeClaim"}, {Group: wellknown.GroupSnapshot, Kind: wellknown.KindSnapshot},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		g.Fatal(err)
	}
}

// A clone and a restore across namespaces: refused without a grant, served with one. R15: the snapshot loses its
// protection at the end. R10: a grant that is withdrawn while the driver is at work ends nothing.
func TestSourcesInAnotherNamespace(t *testing.T) {
	t.Parallel()
	g := sourceGround(t, memdriver.Config{})
	g.begin()
	abroad := newNamespace(t, g.clients.Core)
	pv := g.origin("src")
	g.snapshot("snap", "src", "1Gi")
	from := func(name string) *fixture.ClaimBuilder { return g.ours(name).Namespace(abroad) }
	clone := g.create(from("clone").FromAbroad("", wellknown.KindClaim, g.ns, "src"))
	restore := g.create(from("restore").FromAbroad(wellknown.GroupSnapshot, wellknown.KindSnapshot, g.ns, "snap"))
	g.saying(abroad, clone.UID, "ProvisioningFailed", g.ns+"/src", "PersistentVolumeClaim", abroad+"/clone", "ReferenceGrant")
	g.saying(abroad, restore.UID, "ProvisioningFailed", g.ns+"/snap", "VolumeSnapshot", abroad+"/restore")
	if got := g.creates(); got != 1 {
		t.Fatalf("%d CreateVolume calls without a grant", got)
	}
	if g.claimProtected("src") || g.snapshotProtected("snap") {
		t.Error("a source was protected without a grant")
	}
	remove := g.driver.Add(memdriver.FailLate("CreateVolume", codes.DeadlineExceeded, 0))
	g.grantClaims(abroad)
	eventually(t, "both are unanswered", func() bool {
		names := map[string]bool{}
		for _, call := range g.driver.Calls("CreateVolume")[1:] {
			names[call.Key] = true
		}
		return len(names) == 2
	})
	if err := g.clients.Gateway.ReferenceGrants(g.ns).Delete(t.Context(), "grant", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	calls := g.creates()
	g.started("CreateVolume", calls+4)
	remove()
	there := &ground{site: &site{T: g.T, clients: g.clients, ns: abroad, events: g.events, traffic: g.traffic}, driver: g.driver}
	for _, name := range []string{"clone", "restore"} {
		there.bound(name)
	}
	eventually(t, "the snapshot is free", func() bool { return !g.snapshotProtected("snap") })
	for _, call := range g.driver.Calls("CreateVolume")[1:] {
		source := call.Create().GetVolumeContentSource()
		if source.GetVolume().GetVolumeId() != pv.Spec.CSI.VolumeHandle && source.GetSnapshot().GetSnapshotId() == "" {
			t.Errorf("request %s has the source %v", call.Key, source)
		}
	}
	there.remove("clone")
	there.remove("restore")
	g.remove("src")
	g.clean()
	eventually(t, "the claims abroad are gone", func() bool { return there.live("clone") == nil && there.live("restore") == nil })
}

// The process dies between the finalizer on the source and the call: the next one goes on, and when the claim is gone
// meanwhile nothing holds the source.
func TestAProcessDiesBetweenProtectionAndCall(t *testing.T) {
	t.Parallel()
	for name, claimGoes := range map[string]bool{"and the claim stays": false, "and the claim goes": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			g := sourceGround(t, memdriver.Config{})
			first := g.begin()
			g.origin("src")
			g.snapshot("snap", "src", "1Gi")
			first.afterwards(func(r *http.Request, response *http.Response) {
				if on(http.MethodPut, "volumesnapshots")(r) && response.StatusCode == http.StatusOK {
					first.dead.Store(true)
					first.killing()
				}
			})
			g.create(g.ours("restored").FromSnapshot("snap"))
			eventually(t, "the process is dead", first.dead.Load)
			first.kill()
			if !g.snapshotProtected("snap") || g.creates() != 1 {
				t.Fatalf("protected %v, %d calls: the process did not die in between", g.snapshotProtected("snap"), g.creates())
			}
			if claimGoes {
				g.remove("restored")
				eventually(t, "the claim is gone", func() bool { return g.live("restored") == nil })
			}
			g.begin()
			if !claimGoes {
				g.bound("restored")
				g.remove("restored")
			}
			eventually(t, "the snapshot is free", func() bool { return !g.snapshotProtected("snap") })
			g.removeSnapshot("snap")
			g.remove("src")
			g.clean()
			want := 2
			if claimGoes {
				want = 1
			}
			if got := g.creates(); got != want {
				t.Errorf("%d CreateVolume calls, want %d", got, want)
			}
		})
	}
}

// Without the right to update snapshots restores go on, unprotected.
func TestWithoutTheRightToProtectSnapshots(t *testing.T) {
	t.Parallel()
	g := sourceGround(t, memdriver.Config{})
	g.restricted("update", "volumesnapshots")()
	g.origin("src")
	g.snapshot("snap", "src", "1Gi")
	g.create(g.ours("restored").FromSnapshot("snap"))
	g.bound("restored")
	g.remove("restored")
	g.remove("src")
	g.clean()
}

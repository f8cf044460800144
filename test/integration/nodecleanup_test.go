package integration

import (
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/controllers/nodecleanup"
	"github.com/csi-sidecars/external-provisioner/pkg/topology"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	controlplane "github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// cleanUp runs the clean-up after nodes, with rounds and graces that a test can wait for.
func (s *site) cleanUp(edit ...func(*nodecleanup.Config)) {
	s.Helper()
	cfg := nodecleanup.Config{
		Cache: informers(s.T, s.clients, s.ns), Client: s.clients.Core, Recorder: s.events.Recorder(wellknown.EventComponent),
		Driver: s.ns, Interval: 50 * time.Millisecond, ClaimGrace: 100 * time.Millisecond, VolumeGrace: 200 * time.Millisecond,
	}
	for _, change := range edit {
		change(&cfg)
	}
	controller, err := nodecleanup.New(cfg)
	if err != nil {
		s.Fatal(err)
	}
	running(s.T, controller.Run)
}

// pass waits until what is hopeless only now has been ended: by then all else has been looked at as well.
func (s *site) pass(claim string) {
	s.Helper()
	gone := s.name("never-was")
	s.create(s.claim(claim).For(s.ns).SelectedNode(gone))
	// Where nodes compete for claims, another one may have it at once.
	eventually(s.T, "claim "+claim+" taken from its node", func() bool { return s.selected(claim) != gone })
}

// selected returns the node that a claim is for.
func (s *site) selected(claim string) string {
	s.Helper()
	live := s.live(claim)
	if live == nil {
		s.Fatalf("claim %s is gone", claim)
	}
	return live.Annotations[wellknown.AnnSelectedNode]
}

func late(class *fixture.ClassBuilder) { class.WaitForFirstConsumer() }

// P12: a claim that was placed where nobody can serve it is placed anew, all others are left alone.
func TestAClaimIsTakenFromANodeThatCannotServeIt(t *testing.T) {
	t.Parallel()
	s := newSite(t, late)
	up, bare, other, lost := s.name("up"), s.name("bare"), s.name("other"), s.name("lost")
	s.node(up, s.placed(up), s.ns, "another.driver")
	s.node(bare, nil)
	s.node(other, s.placed(other), "another.driver")
	onLost := s.create(s.claim("on-lost").For(s.ns).SelectedNode(lost))
	onBare := s.create(s.claim("on-bare").For(s.ns).SelectedNode(bare).Annotation("example.com/a", "b").Label("l", "m"))
	onOther := s.create(s.claim("on-other").For(s.ns).SelectedNode(other))
	s.create(s.claim("on-up").For(s.ns).SelectedNode(up))
	// Without a class, or Kubernetes would write the provisioner of that on it.
	s.create(fixture.Claim("foreign").Namespace(s.ns).For("another.driver").SelectedNode(lost))
	s.cleanUp()

	for _, name := range []string{"on-lost", "on-bare", "on-other"} {
		eventually(t, name+" unset", func() bool { return s.selected(name) == "" })
	}
	s.saying(s.ns, onLost.UID, "NodeGone", lost)
	s.saying(s.ns, onBare.UID, "NodeWithoutDriver", bare, s.ns)
	s.saying(s.ns, onOther.UID, "NodeWithoutDriver", other)
	if live := s.live("on-bare"); live.Annotations["example.com/a"] != "b" || live.Labels["l"] != "m" {
		t.Errorf("more than the node was taken off: %v", live)
	}
	s.pass("pass")
	for name, want := range map[string]string{"on-up": up, "foreign": lost} {
		if got := s.selected(name); got != want {
			t.Errorf("claim %s is for node %q, want %q", name, got, want)
		}
	}
}

// A node that loses the driver for a moment keeps its claims.
func TestAClaimStaysWithANodeWhoseDriverComesBack(t *testing.T) {
	t.Parallel()
	s := newSite(t, late)
	node := s.name("n")
	s.node(node, s.placed(node))
	s.create(s.claim("c").For(s.ns).SelectedNode(node))
	s.cleanUp(func(cfg *nodecleanup.Config) { cfg.ClaimGrace = time.Hour })
	reads := func(r request) bool { return r.verb == "GET" && r.path == "/apis/storage.k8s.io/v1/csinodes/"+node }
	seen := func() {
		before := s.traffic.count(reads)
		eventually(t, "node looked at", func() bool { return s.traffic.count(reads) >= before+3 })
	}
	seen()
	csiNodes := s.clients.Core.StorageV1().CSINodes()
	if err := controlplane.Modify(t.Context(), node, csiNodes.Get, csiNodes.Update, func(csiNode *storagev1.CSINode) {
		csiNode.Spec = fixture.CSINode(node, s.ns, s.placed(node)).Spec
	}); err != nil {
		t.Fatal(err)
	}
	seen()
	if got := s.selected("c"); got != node {
		t.Errorf("the claim is for node %q, want %q", got, node)
	}
}

// P13: what a node has left behind goes when it is gone.
func TestAVolumeGoesAfterItsNode(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	up, lost := s.name("up"), s.name("lost")
	s.node(up, s.placed(up), s.ns)
	s.node(lost, s.placed(lost), s.ns)
	there := s.instanceOn(lost, memdriver.Config{})
	s.create(s.claim("c"))
	pv := s.bound("c")
	there.stop()
	here := s.instanceOn(up, memdriver.Config{})
	s.cleanUp()
	s.remove("c")
	eventually(t, "released", func() bool { return s.pv(pv.Name).Status.Phase == corev1.VolumeReleased })
	s.pass("pass")
	if s.pv(pv.Name) == nil {
		t.Fatal("the PersistentVolume of a node that exists is gone")
	}
	s.dropNode(t.Context(), lost)
	eventually(t, "PersistentVolume gone", func() bool { return s.pv(pv.Name) == nil })
	s.saying("default", pv.UID, "NodeGone", pv.Spec.CSI.VolumeHandle, "not deleted")
	if n := len(here.Calls("DeleteVolume")); n != 0 {
		t.Errorf("a driver of another node was called %d times", n)
	}
	if n := len(there.Volumes()); n != 1 {
		t.Errorf("%d volumes on the lost node", n)
	}
}

// All other PersistentVolumes stay: of nodes that exist, in whatever way that can be seen; to be kept; of others.
func TestOtherVolumesStay(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	up, unlabelled, lost := s.name("up"), s.name("unlabelled"), s.name("lost")
	s.node(up, s.placed(up), s.ns)
	s.node(unlabelled, nil)
	gone := fixture.Claim("was").Namespace(s.ns).UID("00000000-0000-0000-0000-000000000001").Obj()
	save := func(name string, b *fixture.PVBuilder, identity string, hosts ...string) {
		t.Helper()
		pv := b.BoundTo(gone).Obj()
		pv.Name = s.name(name)
		var places []*csi.Topology
		for _, host := range hosts {
			places = append(places, &csi.Topology{Segments: s.placed(host)})
		}
		pv.Spec.NodeAffinity = topology.Affinity(places)
		pv.Spec.CSI.VolumeAttributes = map[string]string{wellknown.AttributeIdentity: identity}
		if _, err := s.clients.Core.CoreV1().PersistentVolumes().Create(t.Context(), pv, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	ours := func() *fixture.PVBuilder { return fixture.PV("pv").ProvisionedBy(s.ns) }
	save("kept", ours().Policy(corev1.PersistentVolumeReclaimRetain), "", lost)
	save("here", ours(), "", up)
	save("here-too", ours(), "", lost, up)
	save("anywhere", ours(), "")
	save("labels-missing", ours(), "1-2-"+s.ns+"-"+unlabelled, lost)
	save("foreign", fixture.PV("pv").ProvisionedBy("another.driver"), "", lost)
	save("attached", ours(), "", lost)
	attachment := fixture.Attachment(s.name("attached"), "attacher", s.name("attached"), up)
	if _, err := s.clients.Core.StorageV1().VolumeAttachments().Create(t.Context(), attachment, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"kept", "here", "here-too", "anywhere", "labels-missing", "foreign", "attached"} {
		eventually(t, name+" released", func() bool { return s.pv(s.name(name)).Status.Phase == corev1.VolumeReleased })
	}
	s.cleanUp()
	for _, name := range []string{"first", "second"} {
		save(name, ours(), "1-2-"+s.ns+"-"+lost, lost)
		eventually(t, name+" gone", func() bool { return s.pv(s.name(name)) == nil })
	}
	for _, name := range []string{"kept", "here", "here-too", "anywhere", "labels-missing", "foreign", "attached"} {
		if pv := s.pv(s.name(name)); pv == nil || pv.DeletionTimestamp != nil {
			t.Errorf("PersistentVolume %s was deleted", name)
		}
	}
}

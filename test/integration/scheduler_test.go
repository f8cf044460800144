package integration

import (
	"context"
	"fmt"
	"maps"
	"path"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/controllers/provision"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	controlplane "github.com/csi-sidecars/external-provisioner/test/cluster"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// segment makes a topology segment of a site: zone and rack are keys of its driver.
func (s *site) segment(pairs ...string) map[string]string {
	segment := map[string]string{}
	for i := 0; i < len(pairs); i += 2 {
		segment[s.ns+"/"+pairs[i]] = pairs[i+1]
	}
	return segment
}

// central starts a provisioner for all nodes.
func (s *site) central(edit ...func(*provision.Config)) *instance {
	s.Helper()
	// The topology of the node that the controller happens to run on is of no interest, but that there is one is.
	return s.start("", memdriver.Config{Topology: s.segment("zone", "controller")}, edit...)
}

// pool is the label of the nodes that the pods of a site may run on, besides those of the driver's topology.
func (s *site) pool() map[string]string { return map[string]string{"pool": s.ns} }

// poolNode makes a node for pods where the driver runs.
func (s *site) poolNode(name string, segment map[string]string) {
	s.Helper()
	s.node(name, segment, s.ns)
	// Last of all: from now on pods may come.
	s.relabel(name, func(labels map[string]string) { maps.Copy(labels, s.pool()) })
}

func (s *site) relabel(node string, change func(labels map[string]string)) {
	s.Helper()
	nodes := s.clients.Core.CoreV1().Nodes()
	if err := controlplane.Modify(s.Context(), node, nodes.Get, nodes.Update, func(live *corev1.Node) { change(live.Labels) }); err != nil {
		s.Fatal(err)
	}
}

// pod makes a pod that uses a claim, on a node with these labels.
func (s *site) pod(claim string, selector map[string]string) {
	s.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: s.ns, Name: "pod-" + claim},
		Spec: corev1.PodSpec{
			Containers:                    []corev1.Container{{Name: "c", Image: "none"}},
			NodeSelector:                  selector,
			TerminationGracePeriodSeconds: new(int64),
			// Nobody takes the taint of a new node away.
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
			Volumes: []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
			}}},
		},
	}
	waitForServiceAccount(s.T, s.clients.Core, s.ns)
	if _, err := s.clients.Core.CoreV1().Pods(s.ns).Create(s.Context(), pod, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		err := s.clients.Core.CoreV1().Pods(s.ns).Delete(context.WithoutCancel(s.Context()), pod.Name, metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			s.Error(err)
		}
	})
}

// landed waits until the pod of a claim is bound to a node, and returns that.
func (s *site) landed(claim string) string {
	s.Helper()
	node := ""
	eventually(s.T, "pod of "+claim+" lands", func() bool {
		pod, err := s.clients.Core.CoreV1().Pods(s.ns).Get(s.Context(), "pod-"+claim, metav1.GetOptions{})
		if err != nil {
			s.Fatal(err)
		}
		node = pod.Spec.NodeName
		return node != ""
	})
	return node
}

// segmentsOf returns what a PersistentVolume is accessible from.
func segmentsOf(pv *corev1.PersistentVolume) []map[string]string {
	var all []map[string]string
	if pv.Spec.NodeAffinity == nil {
		return nil
	}
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		segment := map[string]string{}
		for _, e := range term.MatchExpressions {
			segment[e.Key] = e.Values[0]
		}
		all = append(all, segment)
	}
	return all
}

// wantIn fails unless the volume is accessible from just that segment.
func (s *site) wantIn(pv *corev1.PersistentVolume, want map[string]string) {
	s.Helper()
	if got := segmentsOf(pv); len(got) != 1 || !maps.Equal(got[0], want) {
		s.Errorf("the volume is in %v, want %v", got, want)
	}
}

// preferred returns the first preferred segment of a call.
func preferred(call memdriver.Call) map[string]string {
	if all := call.Create().GetAccessibilityRequirements().GetPreferred(); len(all) > 0 {
		return all[0].GetSegments()
	}
	return nil
}

// A pod lands, and its claim is bound to a volume where the pod is.
func TestAPodLandsWithItsVolume(t *testing.T) {
	t.Parallel()
	s := newSite(t, late)
	for _, zone := range []string{"a", "b", "c"} {
		s.poolNode(s.name(zone), s.segment("zone", zone))
	}
	mem := s.central()
	s.create(s.claim("c"))
	s.pod("c", s.segment("zone", "b"))
	if got := s.landed("c"); got != s.name("b") {
		t.Errorf("the pod is on %s", got)
	}
	s.wantIn(s.bound("c"), s.segment("zone", "b"))
	calls := mem.Calls("CreateVolume")
	if len(calls) != 1 || len(calls[0].Create().GetAccessibilityRequirements().GetRequisite()) != 3 {
		t.Errorf("calls %v, want one with the three zones of the cluster", calls)
	}
}

// The first node that the scheduler thinks of has no room: the pod moves to the other, and the volume with it.
func TestAPodMovesWhenItsNodeIsFull(t *testing.T) {
	t.Parallel()
	s := newSite(t, late)
	for _, zone := range []string{"a", "b"} {
		s.poolNode(s.name(zone), s.segment("zone", zone))
		s.room(zone, "10Gi")
	}
	s.tellsCapacity()
	mem := s.central()
	var full map[string]string // where the first call wants to be; read and written under the driver's lock
	mem.Add(memdriver.Rule{Method: "CreateVolume", Code: codes.ResourceExhausted, When: func(call memdriver.Call) bool {
		if full == nil {
			full = preferred(call)
		}
		return maps.Equal(full, preferred(call))
	}})
	claim := s.create(s.claim("c"))
	s.pod("c", s.pool())
	calls, err := mem.WaitEnded(t.Context(), "CreateVolume", 1)
	if err != nil {
		t.Fatal(err)
	}
	first := preferred(calls[0])[s.ns+"/zone"]
	// What the capacity controller does; without it the scheduler might think of the same node for ever.
	s.room(first, "0")
	other := map[string]string{"a": "b", "b": "a"}[first]
	if got := s.landed("c"); got != s.name(other) {
		t.Errorf("the pod is on %s, want %s", got, s.name(other))
	}
	s.wantIn(s.bound("c"), s.segment("zone", other))
	s.saying(s.ns, claim.UID, "ProvisioningFailed", "told to fail")
	if n := len(mem.Volumes()); n != 1 {
		t.Errorf("%d volumes", n)
	}
}

// tellsCapacity makes the scheduler look at capacities.
func (s *site) tellsCapacity() {
	s.Helper()
	csiDriver := &storagev1.CSIDriver{ObjectMeta: metav1.ObjectMeta{Name: s.ns}, Spec: storagev1.CSIDriverSpec{StorageCapacity: new(true), AttachRequired: new(false)}}
	if _, err := s.clients.Core.StorageV1().CSIDrivers().Create(s.Context(), csiDriver, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.Cleanup(func() {
		_ = s.clients.Core.StorageV1().CSIDrivers().Delete(context.WithoutCancel(s.Context()), s.ns, metav1.DeleteOptions{}) // in nobody's way
	})
}

// room says how much room a zone has.
func (s *site) room(zone, size string) {
	s.Helper()
	capacities := s.clients.Core.StorageV1().CSIStorageCapacities(s.ns)
	object := &storagev1.CSIStorageCapacity{
		ObjectMeta: metav1.ObjectMeta{Name: zone}, StorageClassName: s.ns, Capacity: new(resource.MustParse(size)),
		NodeTopology: &metav1.LabelSelector{MatchLabels: s.segment("zone", zone)},
	}
	_, err := capacities.Create(s.Context(), object, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		err = controlplane.Modify(s.Context(), zone, capacities.Get, capacities.Update, func(live *storagev1.CSIStorageCapacity) {
			live.Capacity = object.Capacity
		})
	}
	if err != nil {
		s.Fatal(err)
	}
}

// P10: the node that a pod was to run on goes while its labels are not there yet. The claim is placed anew.
func TestAPodMovesWhenItsNodeIsDeleted(t *testing.T) {
	t.Parallel()
	s := newSite(t, late)
	bad, good := s.name("bad"), s.name("good")
	s.poolNode(bad, s.segment("zone", "a"))
	s.relabel(bad, func(labels map[string]string) { delete(labels, s.ns+"/zone") })
	mem := s.central()
	claim := s.create(s.claim("c"))
	s.pod("c", s.pool())
	s.saying(s.ns, claim.UID, "ProvisioningFailed", bad, s.ns+"/zone")
	s.poolNode(good, s.segment("zone", "b"))
	s.dropNode(t.Context(), bad)
	if got := s.landed("c"); got != good {
		t.Errorf("the pod is on %s, want %s", got, good)
	}
	s.wantIn(s.bound("c"), s.segment("zone", "b"))
	if n := len(mem.Calls("CreateVolume")); n != 1 {
		t.Errorf("%d calls of CreateVolume, want one", n)
	}
}

// P8: the class allows a provider and says nothing about zones. With --keep-node-topology the volume is made in the
// zone of the pod, whose node is preferred with all its keys.
func TestAVolumeIsMadeInTheZoneOfItsPod(t *testing.T) {
	t.Parallel()
	for _, keep := range []bool{false, true} {
		t.Run(fmt.Sprintf("keep-node-topology=%v", keep), func(t *testing.T) {
			t.Parallel()
			s := newSite(t, late)
			class := fixture.Class(s.ns+"-cloud").Provisioner(s.ns).WaitForFirstConsumer().Allow(s.ns+"/provider", "cloud").Obj()
			if _, err := s.clients.Core.StorageV1().StorageClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			for _, zone := range []string{"a", "b", "c"} {
				s.poolNode(s.name(zone), s.segment("provider", "cloud", "zone", zone))
			}
			s.poolNode(s.name("home"), s.segment("provider", "home", "zone", "b"))
			mem := s.central(func(cfg *provision.Config) { cfg.KeepNodeTopology = keep })
			s.create(s.claim("c").Class(class.Name))
			s.pod("c", s.segment("provider", "cloud", "zone", "b"))
			pv := s.bound("c")
			call := mem.Calls("CreateVolume")[0]
			if !keep {
				// As ever: the zone is lost, and the volume may be anywhere.
				want := s.segment("provider", "cloud")
				if got := preferred(call); !maps.Equal(got, want) {
					t.Errorf("preferred %v, want %v", got, want)
				}
				return
			}
			want := s.segment("provider", "cloud", "zone", "b")
			if got := preferred(call); !maps.Equal(got, want) {
				t.Errorf("preferred %v, want %v", got, want)
			}
			requisite := call.Create().GetAccessibilityRequirements().GetRequisite()
			if len(requisite) != 3 || slices.ContainsFunc(requisite, func(topology *csi.Topology) bool { return topology.GetSegments()[s.ns+"/provider"] != "cloud" }) {
				t.Errorf("requisite %v, want the three zones of the provider", requisite)
			}
			s.wantIn(pv, want)
			if got := s.landed("c"); got != s.name("b") {
				t.Errorf("the pod is on %s", got)
			}
		})
	}
}

// R1: a claim that is given another node before anything was made for it gets its volume there.
func TestAVolumeFollowsTheSelectedNode(t *testing.T) {
	t.Parallel()
	for _, strict := range []bool{false, true} {
		t.Run(fmt.Sprintf("strict-topology=%v", strict), func(t *testing.T) {
			t.Parallel()
			s := newSite(t, func(class *fixture.ClassBuilder) {
				class.WaitForFirstConsumer().Parameter(wellknown.ParamProvisionerSecretName, "late").Parameter(wellknown.ParamProvisionerSecretNamespace, "${pvc.namespace}")
			})
			for _, zone := range []string{"a", "b"} {
				s.node(s.name(zone), s.segment("zone", zone), s.ns)
			}
			// Only events wake the claim, so that it is known what each attempt has seen.
			mem := s.central(func(cfg *provision.Config) {
				cfg.StrictTopology, cfg.RetryStart, cfg.RetryMax = strict, time.Hour, time.Hour
			})
			claim := s.create(s.claim("c").SelectedNode(s.name("a")))
			s.saying(s.ns, claim.UID, "ProvisioningFailed", "secret")
			set := func(key, value string) {
				s.update("c", func(live *corev1.PersistentVolumeClaim) bool {
					live.Annotations[key] = value
					return true
				})
				eventually(t, "the update seen", func() bool { return mem.caches.Claim(s.ns, "c").Annotations[key] == value })
			}
			tries := func() int {
				return s.traffic.count(func(r request) bool { return path.Base(r.path) == "late" && r.verb == "GET" })
			}
			set(wellknown.AnnSelectedNode, s.name("b"))
			// Of what began before, this is the end.
			before := tries()
			set("example.com/again", "1")
			eventually(t, "another attempt without the secret", func() bool { return tries() > before })
			secret := fixture.Secret(s.ns, "late", map[string]string{"user": "u"})
			if _, err := s.clients.Core.CoreV1().Secrets(s.ns).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			set("example.com/again", "2")
			s.wantIn(s.bound("c"), s.segment("zone", "b"))
			calls := mem.Calls("CreateVolume")
			if len(calls) != 1 || !maps.Equal(preferred(calls[0]), s.segment("zone", "b")) {
				t.Errorf("calls %v, want one for zone b", calls)
			}
			if n := len(calls[0].Create().GetAccessibilityRequirements().GetRequisite()); strict && n != 1 {
				t.Errorf("%d requisite segments, want one", n)
			}
		})
	}
}

// P11: the driver is at work, the process restarts, and the node is deleted: the claim keeps its node, and the create
// goes on for the same place.
func TestACreateGoesOnWithoutItsNode(t *testing.T) {
	t.Parallel()
	s := newSite(t, late)
	for _, zone := range []string{"a", "b"} {
		s.node(s.name(zone), s.segment("zone", zone), s.ns)
	}
	first := s.central()
	first.Add(memdriver.Fail("CreateVolume", codes.Aborted, 0))
	s.create(s.claim("c").SelectedNode(s.name("b")))
	if _, err := first.WaitEnded(t.Context(), "CreateVolume", 1); err != nil {
		t.Fatal(err)
	}
	first.stop()
	asked := first.Calls("CreateVolume")[0].Create()
	s.dropNode(t.Context(), s.name("b"))
	second := s.central()
	s.wantIn(s.bound("c"), s.segment("zone", "b"))
	calls := second.Calls("CreateVolume")
	if len(calls) != 1 || calls[0].Key != asked.GetName() || !maps.Equal(preferred(calls[0]), s.segment("zone", "b")) {
		t.Errorf("calls %v, want one of the same name for zone b", calls)
	}
	if got := s.selected("c"); got != s.name("b") {
		t.Errorf("the claim is for node %q", got)
	}
}

// Some nodes register more keys than others: for claims that no scheduler places each node counts with its own keys, and
// a node without the driver, whatever its labels, does not.
func TestEachNodeCountsWithItsOwnKeys(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	for _, zone := range []string{"a", "b", "c"} {
		s.node(s.name(zone), s.segment("zone", zone), s.ns)
	}
	s.node(s.name("d"), s.segment("zone", "a", "rack", "r"), s.ns)
	s.node(s.name("e"), s.segment("zone", "e"), s.ns+".other")
	mem := s.central()
	for n := range 6 {
		s.create(s.claim(fmt.Sprintf("c-%d", n)))
	}
	calls, err := mem.WaitEnded(t.Context(), "CreateVolume", 6)
	if err != nil {
		t.Fatal(err)
	}
	for _, call := range calls {
		var got []string
		for _, topology := range call.Create().GetAccessibilityRequirements().GetRequisite() {
			got = append(got, fmt.Sprint(topology.GetSegments()))
		}
		want := []string{
			fmt.Sprint(s.segment("zone", "a")), fmt.Sprint(s.segment("zone", "b")), fmt.Sprint(s.segment("zone", "c")),
			fmt.Sprint(s.segment("zone", "a", "rack", "r")),
		}
		if !slices.Equal(got, want) {
			t.Errorf("requisite %v, want %v", got, want)
		}
	}
}

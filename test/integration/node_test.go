package integration

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/controllers/provision"
	"github.com/csi-sidecars/external-provisioner/pkg/nodelocal"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

func newRace(t *testing.T, base, limit time.Duration) *nodelocal.Race {
	t.Helper()
	race, err := nodelocal.NewRace(nodelocal.RaceConfig{Base: base, Max: limit, Random: rand.Float64})
	if err != nil {
		t.Fatal(err)
	}
	return race
}

// accessibleFrom returns the hosts in the affinity of a PersistentVolume.
func accessibleFrom(pv *corev1.PersistentVolume) []string {
	var hosts []string
	if pv.Spec.NodeAffinity == nil {
		return nil
	}
	for _, term := range pv.Spec.NodeAffinity.Required.NodeSelectorTerms {
		for _, e := range term.MatchExpressions {
			hosts = append(hosts, e.Values...)
		}
	}
	return hosts
}

// Twenty nodes compete for a hundred claims that any of them may have.
func TestManyNodesRaceForManyClaims(t *testing.T) {
	t.Parallel()
	const nodes, claims = 20, 100
	s := newSite(t)
	var instances []*instance
	for n := range nodes {
		instances = append(instances, s.instanceOn(s.name(fmt.Sprint(n)), memdriver.Config{}, func(cfg *provision.Config) {
			cfg.Node.Race = newRace(t, 2*time.Second, 6*time.Second)
		}))
	}
	want := map[string]string{} // volume name → claim
	for n := range claims {
		claim := s.create(s.claim(fmt.Sprintf("c-%d", n)))
		want["pvc-"+string(claim.UID)] = claim.Name
	}
	made := map[string]string{} // volume name → node
	for _, name := range want {
		pv := s.bound(name)
		if claim := s.live(name); len(accessibleFrom(pv)) != 1 || accessibleFrom(pv)[0] != claim.Annotations[wellknown.AnnSelectedNode] {
			t.Errorf("claim %s was taken by node %q, and its volume is in %v", name, claim.Annotations[wellknown.AnnSelectedNode], accessibleFrom(pv))
		}
	}
	busy := 0
	for _, i := range instances {
		volumes := i.Volumes()
		if len(volumes) > 0 {
			busy++
		}
		for _, volume := range volumes {
			if other, twice := made[volume.Name]; twice {
				t.Errorf("volume %s was made by %s and by %s", volume.Name, other, i.node)
			}
			made[volume.Name] = i.node
		}
		if calls := i.Calls("CreateVolume"); len(calls) != len(volumes) {
			t.Errorf("%s: %d calls for %d volumes:%s", i.node, len(calls), len(volumes), repeated(calls))
		}
	}
	if got, want := slices.Sorted(maps.Keys(made)), slices.Sorted(maps.Keys(want)); !slices.Equal(got, want) {
		t.Errorf("volumes %v, want %v", got, want)
	}
	conflicts, writes := s.traffic.count(onClaims("PUT", 409)), s.traffic.count(onClaims("PUT", 200))
	t.Logf("%d nodes raced for %d claims: %d conflicts, %d successful writes of claims, %d nodes got something", nodes, claims, conflicts, writes, busy)
	if writes != claims {
		t.Errorf("%d writes for %d claims: each is written once, by who wins it", writes, claims)
	}
}

// repeated returns the calls that were not the only ones for their volume, a line for each.
func repeated(calls []memdriver.Call) string {
	times := map[string]int{}
	for _, call := range calls {
		times[call.Key]++
	}
	var b strings.Builder
	for _, call := range calls {
		if times[call.Key] > 1 {
			b.WriteString("\n" + call.String())
		}
	}
	return b.String()
}

// The volume of a claim is deleted by its own node; the other one neither calls its driver nor counts anything.
func TestAVolumeIsDeletedByItsNode(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ours := s.instanceOn(s.name("a"), memdriver.Config{})
	s.create(s.claim("c"))
	pv := s.bound("c")
	other := s.instanceOn(s.name("b"), memdriver.Config{})
	deletion, release := memdriver.Block("DeleteVolume")
	ours.Add(deletion)
	defer release()
	s.remove("c")
	if _, err := ours.WaitStarted(t.Context(), "DeleteVolume", 1); err != nil {
		t.Fatal(err)
	}
	// The other one serves what came later: it has seen the PersistentVolume released.
	s.create(s.claim("later").SelectedNode(other.node))
	s.bound("later")
	release()
	eventually(t, "PersistentVolume gone", func() bool { return s.pv(pv.Name) == nil })
	if calls := other.Calls("DeleteVolume"); len(calls) != 0 {
		t.Errorf("the other node called its driver: %v", calls)
	}
	if got := counted(t, other, "controller_persistentvolume_delete_total"); got != 0 {
		t.Errorf("the other node counts %v deletions", got)
	}
	// It is counted a moment after the object has gone.
	eventually(t, "its own node counts one deletion", func() bool { return counted(t, ours, "controller_persistentvolume_delete_total") == 1 })
	if told := s.told("default", pv.UID); len(told) != 0 {
		t.Errorf("events about an ordinary deletion: %v", told)
	}
}

// counted returns the sum of a counter over all its labels.
func counted(t *testing.T, i *instance, metric string) float64 {
	t.Helper()
	families, err := i.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() == metric {
			for _, m := range family.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// A node that turns out to have no room gives the claim back, and another one takes it.
func TestAFullNodeGivesTheClaimBack(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	// GetCapacity says that there is room; CreateVolume knows better, and after that so does GetCapacity.
	full := s.instanceOn(s.name("full"), memdriver.Config{})
	full.Add(memdriver.Fail("CreateVolume", codes.ResourceExhausted, 0))
	claim := s.create(s.claim("c"))
	if _, err := full.WaitEnded(t.Context(), "CreateVolume", 1); err != nil {
		t.Fatal(err)
	}
	full.Change(func(cfg *memdriver.Config) { cfg.CapacityBytes = 1 })
	free := s.instanceOn(s.name("free"), memdriver.Config{})
	if got := accessibleFrom(s.bound("c")); !slices.Equal(got, []string{free.node}) {
		t.Errorf("the volume is in %v, want %s", got, free.node)
	}
	if n := len(full.Volumes()) + len(free.Volumes()); n != 1 {
		t.Errorf("%d volumes", n)
	}
	s.saying(s.ns, claim.UID, "ProvisioningFailed", "told to fail")
}

// No node has room: nothing is written and nobody is told anything, the source of the clone is not touched and the
// secret is not read, however often the driver is asked. Then there is room, and the claim is served without an event
// that would wake anybody.
func TestTheLookForRoomHasNoSideEffects(t *testing.T) {
	t.Parallel()
	s := newSite(t, func(class *fixture.ClassBuilder) {
		class.Parameter(wellknown.ParamProvisionerSecretName, "credentials").Parameter(wellknown.ParamProvisionerSecretNamespace, "${pvc.namespace}")
	})
	secret := fixture.Secret(s.ns, "credentials", map[string]string{"user": "u"})
	if _, err := s.clients.Core.CoreV1().Secrets(s.ns).Create(t.Context(), secret, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	node := s.instanceOn(s.name("a"), memdriver.Config{})
	s.create(s.claim("source"))
	s.bound("source")
	node.Change(func(cfg *memdriver.Config) { cfg.CapacityBytes = 1 })
	node.ForgetCalls()
	readsSecret := func(r request) bool { return strings.Contains(r.path, "/secrets/") && r.verb == "GET" }
	secrets, writes := s.traffic.count(readsSecret), s.traffic.count(onClaims("PUT", 200))

	clone := s.create(s.claim("clone").FromClaim("source"))
	calls, err := node.WaitEnded(t.Context(), "GetCapacity", 4)
	if err != nil {
		t.Fatal(err)
	}
	for _, call := range calls {
		if text := fmt.Sprint(call.Request); strings.Contains(text, "csi.storage.k8s.io/") {
			t.Errorf("GetCapacity got a reserved parameter: %s", text)
		}
	}
	if n := len(node.Calls("CreateVolume")); n != 0 {
		t.Errorf("%d calls of CreateVolume", n)
	}
	if slices.Contains(s.live("source").Finalizers, wellknown.FinalizerCloneSource) {
		t.Error("the source was given a finalizer")
	}
	if n := s.traffic.count(readsSecret) - secrets; n != 0 {
		t.Errorf("the secret was read %d times", n)
	}
	if n := s.traffic.count(onClaims("PUT", 200)) - writes; n != 0 {
		t.Errorf("%d writes of claims", n)
	}
	if told := s.told(s.ns, clone.UID); slices.ContainsFunc(told, func(line string) bool { return !strings.HasPrefix(line, "ExternalProvisioning") }) {
		t.Errorf("somebody was told: %v", told)
	}

	node.Change(func(cfg *memdriver.Config) { cfg.CapacityBytes = 1 << 40 })
	s.bound("clone")
	if !slices.Contains(s.live("source").Finalizers, wellknown.FinalizerCloneSource) {
		t.Error("the source of a clone that was made has no finalizer")
	}
}

// A claim whose class stands only in the old annotation is served like any other.
func TestAClaimWithTheOldClassAnnotationOnANode(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	node := s.instanceOn(s.name("a"), memdriver.Config{})
	s.create(fixture.Claim("c").Namespace(s.ns).Annotation(wellknown.AnnBetaStorageClass, s.ns))
	if got := accessibleFrom(s.bound("c")); !slices.Equal(got, []string{node.node}) {
		t.Errorf("the volume is in %v, want %s", got, node.node)
	}
	if claim := s.live("c"); claim.Spec.StorageClassName != nil {
		t.Errorf("the API server has set the class %q: this proves nothing", *claim.Spec.StorageClassName)
	}
}

// An operation is finished by the instance of its node, after a restart and whatever the claim says by then.
func TestAnOperationIsFinishedByItsNode(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	other := s.instanceOn(s.name("other"), memdriver.Config{})
	home := s.name("home")
	first := s.instanceOn(home, memdriver.Config{}, func(cfg *provision.Config) { cfg.RetryStart, cfg.RetryMax = time.Hour, time.Hour })
	first.Add(memdriver.Fail("CreateVolume", codes.DeadlineExceeded, 0))
	claim := s.create(s.claim("c").SelectedNode(home))
	if _, err := first.WaitEnded(t.Context(), "CreateVolume", 1); err != nil {
		t.Fatal(err)
	}
	first.stop()
	s.remove("c")
	second := s.instanceOn(home, memdriver.Config{})
	if _, err := second.WaitEnded(t.Context(), "DeleteVolume", 1); err != nil {
		t.Fatal(err)
	}
	eventually(t, "PersistentVolume gone", func() bool { return s.pv("pvc-"+string(claim.UID)) == nil })
	if calls := second.Calls("CreateVolume"); len(calls) != 1 || calls[0].Key != "pvc-"+string(claim.UID) {
		t.Errorf("calls of the second process: %v", calls)
	}
	if calls := other.Calls("CreateVolume"); len(calls) != 0 {
		t.Errorf("the other node made calls: %v", calls)
	}
}

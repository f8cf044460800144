package integration

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/controllers/capacity"
	"github.com/csi-sidecars/external-provisioner/pkg/segments"
	"github.com/csi-sidecars/external-provisioner/pkg/topology"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// A stop, a change of the world meanwhile, and a start: what is right stays untouched, the rest is made right.
func TestCapacityOverARestart(t *testing.T) {
	t.Parallel()
	s := lateSite(t)
	s.node(s.name("a"), s.zone("a"), s.ns)
	s.node(s.name("b"), s.zone("b"), s.ns)
	s.node(s.name("c"), s.zone("c"), s.ns)
	first := s.publish()
	before := s.becomes(first, "zone=a 10Gi", "zone=b 10Gi", "zone=c 10Gi")
	first.stop()

	s.dropNode(t.Context(), s.name("c"))
	s.node(s.name("d"), s.zone("d"), s.ns)
	second := s.publish()
	second.answers(s, "b", func(r *csi.GetCapacityResponse) { r.AvailableCapacity = 1 << 30 })
	after := s.becomes(second, "zone=a 10Gi", "zone=b 1Gi", "zone=d 10Gi")
	if diff := cmp.Diff(versions(before[:1]), versions(after[:1])); diff != "" {
		t.Errorf("the object that was right (-before +after):\n%s", diff)
	}
	if before[1].UID != after[1].UID {
		t.Error("the object whose capacity changed was made anew, want an update")
	}
	if posts, deletes := s.writes("POST"), s.writes("DELETE"); posts != 4 || deletes != 1 {
		t.Errorf("%d creates and %d deletes in all, want 4 and 1", posts, deletes)
	}
}

// Another pod takes over, with another owner: the objects stay and get the new controller, beside the references
// that somebody else put there.
func TestCapacityTakeover(t *testing.T) {
	t.Parallel()
	s := lateSite(t)
	s.node(s.name("a"), s.zone("a"), s.ns)
	reference := func(name string, controller bool) metav1.OwnerReference {
		object, err := s.clients.Core.CoreV1().ConfigMaps(s.ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		ref := metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: name, UID: object.UID}
		if controller {
			ref.Controller = new(true)
		}
		return ref
	}
	old, fresh, friend := reference("old", true), reference("fresh", true), reference("friend", false)
	first := s.publish(func(cfg *capacity.Config) { cfg.Owner = &old })
	before := s.becomes(first, "zone=a 10Gi")[0]
	first.stop()
	before.OwnerReferences = append(before.OwnerReferences, friend)
	if _, err := s.clients.Core.StorageV1().CSIStorageCapacities(s.ns).Update(t.Context(), &before, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	second := s.publish(func(cfg *capacity.Config) { cfg.Owner = &fresh })
	eventually(t, "the new owner", func() bool { return len(s.published()) == 1 && s.published()[0].OwnerReferences[0].UID != old.UID })
	after := s.becomes(second, "zone=a 10Gi")[0]
	if diff := cmp.Diff([]metav1.OwnerReference{friend, fresh}, after.OwnerReferences); diff != "" {
		t.Errorf("owners (-want +got):\n%s", diff)
	}
	if before.UID != after.UID {
		t.Error("the object was made anew")
	}
	// Without an owner of its own a third one leaves the references as they are.
	second.stop()
	third := s.publish()
	if diff := cmp.Diff(versions([]storagev1.CSIStorageCapacity{after}), versions(s.becomes(third, "zone=a 10Gi"))); diff != "" {
		t.Errorf("object of a publisher without owner (-before +after):\n%s", diff)
	}
}

// Two drivers publish in one namespace, and nodes of a third one in node deployment: nobody touches what is another's.
func TestCapacityOfManyInOneNamespace(t *testing.T) {
	t.Parallel()
	s := lateSite(t)
	other := s.ns + "-other"
	s.node(s.name("a"), s.zone("a"), s.ns, other)
	class := fixture.Class(other).Provisioner(other).WaitForFirstConsumer().Obj()
	if _, err := s.clients.Core.StorageV1().StorageClasses().Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	one := s.publish()
	s.becomes(one, "zone=a 10Gi")
	two := s.publishOf(other, memdriver.Config{CapacityBytes: 20 << 30, Topology: s.zone("a")})
	s.becomes(two, "-other zone=a 20Gi", "zone=a 10Gi")
	local := s.publishOf(s.ns, memdriver.Config{CapacityBytes: 30 << 30, Topology: s.zone("n")}, func(cfg *capacity.Config) {
		cfg.Segments = segments.NewFixed("n", &csi.Topology{Segments: s.zone("n")})
		cfg.Objects = s.objectsOf(s.ns, "external-provisioner-n")
	})
	before := s.becomes(local, "-other zone=a 20Gi", "zone=a 10Gi", "zone=n 30Gi")
	two.stop()
	one.polls(s, 5)
	s.dropNode(t.Context(), s.name("a"))
	after := s.becomes(local, "-other zone=a 20Gi", "zone=n 30Gi")
	if diff := cmp.Diff(versions([]storagev1.CSIStorageCapacity{before[0], before[2]}), versions(after)); diff != "" {
		t.Errorf("objects of others (-before +after):\n%s", diff)
	}
}

// A class is changed, deleted, made anew, and made anew as one that is not published for.
func TestCapacityFollowsClasses(t *testing.T) {
	t.Parallel()
	s := lateSite(t)
	s.node(s.name("a"), s.zone("a"), s.ns)
	s.node(s.name("b"), s.zone("b"), s.ns)
	classes := s.clients.Core.StorageV1().StorageClasses()
	p := s.publish()
	before := s.becomes(p, "zone=a 10Gi", "zone=b 10Gi")

	class, err := classes.Get(t.Context(), s.ns, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	class.Labels = map[string]string{"changed": "yes"}
	if _, err := classes.Update(t.Context(), class, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(versions(before), versions(s.becomes(p, "zone=a 10Gi", "zone=b 10Gi"))); diff != "" {
		t.Errorf("objects of a class that changed (-before +after):\n%s", diff)
	}
	replace := func(edit func(*fixture.ClassBuilder)) {
		t.Helper()
		if err := classes.Delete(t.Context(), s.ns, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		b := fixture.Class(s.ns).Provisioner(s.ns).Parameter("made", "anew")
		edit(b)
		if _, err := classes.Create(t.Context(), b.Obj(), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	replace(func(b *fixture.ClassBuilder) { b.WaitForFirstConsumer() })
	seq := len(p.Calls("GetCapacity"))
	s.becomes(p, "zone=a 10Gi", "zone=b 10Gi")
	last := p.Calls("GetCapacity")
	request, _ := last[len(last)-1].Request.(*csi.GetCapacityRequest)
	if len(last) == seq || request.GetParameters()["made"] != "anew" {
		t.Errorf("the driver was asked with parameters %v, want those of the new class", request.GetParameters())
	}
	replace(func(*fixture.ClassBuilder) {}) // binds at once
	eventually(t, "no object", func() bool { return len(s.published()) == 0 })
	replace(func(b *fixture.ClassBuilder) { b.WaitForFirstConsumer().Provisioner("somebody.else") })
	replace(func(b *fixture.ClassBuilder) { b.WaitForFirstConsumer() })
	s.becomes(p, "zone=a 10Gi", "zone=b 10Gi")
	if err := classes.Delete(t.Context(), s.ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "no object", func() bool { return len(s.published()) == 0 })
}

// A node loses its label and gets it back, and then another value.
func TestCapacityFollowsLabels(t *testing.T) {
	t.Parallel()
	s := lateSite(t)
	s.node(s.name("a"), s.zone("a"), s.ns)
	s.node(s.name("b"), s.zone("b"), s.ns)
	s.node(s.name("b2"), s.zone("b"), s.ns)
	p := s.publish()
	s.becomes(p, "zone=a 10Gi", "zone=b 10Gi")
	label := func(node string, value string) {
		t.Helper()
		patch := fmt.Sprintf(`{"metadata":{"labels":{%q:%s}}}`, s.ns+"/zone", value)
		if _, err := s.clients.Core.CoreV1().Nodes().Patch(t.Context(), s.name(node), types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	label("a", "null")
	s.becomes(p, "zone=b 10Gi")
	label("a", `"a"`)
	s.becomes(p, "zone=a 10Gi", "zone=b 10Gi")
	label("b", `"c"`)
	s.becomes(p, "zone=a 10Gi", "zone=b 10Gi", "zone=c 10Gi")
	label("b2", `"c"`)
	s.becomes(p, "zone=a 10Gi", "zone=c 10Gi")
}

// Somebody takes the labels off an object, gives them back, deletes one, and makes one that nobody wants.
func TestCapacityObjectsInOtherHands(t *testing.T) {
	t.Parallel()
	s := lateSite(t)
	s.node(s.name("a"), s.zone("a"), s.ns)
	api := s.clients.Core.StorageV1().CSIStorageCapacities(s.ns)
	p := s.publish()
	ours := s.becomes(p, "zone=a 10Gi")[0]

	stripped := ours.DeepCopy()
	stripped.Labels = nil
	stripped, err := api.Update(t.Context(), stripped, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	both := s.becomes(p, "zone=a 10Gi", "zone=a 10Gi")
	if !slices.Contains(versions(both), versions([]storagev1.CSIStorageCapacity{*stripped})[0]) {
		t.Error("the object without our labels was touched")
	}
	stripped.Labels = ours.Labels
	if _, err := api.Update(t.Context(), stripped, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	left := s.becomes(p, "zone=a 10Gi")[0]

	if err := api.Delete(t.Context(), left.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "another object", func() bool { now := s.published(); return len(now) == 1 && now[0].UID != left.UID })
	now := s.becomes(p, "zone=a 10Gi")[0]

	now.Capacity = resource.NewQuantity(7, resource.BinarySI)
	if _, err := api.Update(t.Context(), &now, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	unwanted := ours.DeepCopy()
	unwanted.ObjectMeta = metav1.ObjectMeta{GenerateName: "unwanted-", Labels: ours.Labels}
	unwanted.StorageClassName = "gone"
	if _, err := api.Create(t.Context(), unwanted, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s.becomes(p, "zone=a 10Gi")
}

// Whatever the driver answers for one zone: what is published for it stays until a good answer comes, and the
// other zone goes on.
func TestCapacityAnswersOfTheDriver(t *testing.T) {
	t.Parallel()
	s := lateSite(t)
	s.node(s.name("a"), s.zone("a"), s.ns)
	s.node(s.name("b"), s.zone("b"), s.ns)
	p := s.publish(func(cfg *capacity.Config) { cfg.Driver = impatient{cfg.Driver} })
	s.becomes(p, "zone=a 10Gi", "zone=b 10Gi")
	bytes := int64(10 << 30)
	for name, rule := range map[string]memdriver.Rule{
		"fails":         {Code: codes.Internal},
		"unimplemented": {Code: codes.Unimplemented},
		"hangs":         {Hang: true},
		"negative": {Edit: func(proto.Message) proto.Message {
			return &csi.GetCapacityResponse{AvailableCapacity: -1}
		}},
		"negative maximum": {Edit: func(proto.Message) proto.Message {
			return &csi.GetCapacityResponse{MaximumVolumeSize: wrapperspb.Int64(-1)}
		}},
	} {
		was := resource.NewQuantity(bytes, resource.BinarySI).String()
		bytes += 1 << 30
		now := bytes // older rules keep what they answer
		is := resource.NewQuantity(now, resource.BinarySI).String()
		more := func(r *csi.GetCapacityResponse) { r.AvailableCapacity = now }
		// The polls go on: first of all the driver stops to answer for the one zone.
		rule.Method, rule.When = "GetCapacity", s.about("b")
		remove := p.Add(rule)
		p.answers(s, "a", more)
		eventually(t, name+": the other zone goes on", func() bool { return s.says(s.published()[0]) == "zone=a "+is })
		if got := s.says(s.published()[1]); got != "zone=b "+was {
			t.Errorf("%s: %q is published, want %q still", name, got, "zone=b "+was)
		}
		p.answers(s, "b", more)
		remove()
		s.becomes(p, "zone=a "+is, "zone=b "+is)
	}
	p.answers(s, "a", func(r *csi.GetCapacityResponse) { r.AvailableCapacity = 0 })
	p.answers(s, "b", func(r *csi.GetCapacityResponse) {
		r.AvailableCapacity, r.MaximumVolumeSize = 7<<30, wrapperspb.Int64(1<<30)
	})
	s.becomes(p, "zone=a 0", "zone=b 7Gi at most 1Gi")
	// A node that is new while there is no room gets an object all the same.
	p.answers(s, "c", func(r *csi.GetCapacityResponse) { r.AvailableCapacity = 0 })
	s.node(s.name("c"), s.zone("c"), s.ns)
	s.becomes(p, "zone=a 0", "zone=b 7Gi at most 1Gi", "zone=c 0")
}

// The driver restarts while it is asked: its objects stay, and its new answers come through.
func TestCapacityOverARestartOfTheDriver(t *testing.T) {
	t.Parallel()
	s := lateSite(t)
	s.node(s.name("a"), s.zone("a"), s.ns)
	p := s.publish()
	before := s.becomes(p, "zone=a 10Gi")
	p.Stop()
	time.Sleep(500 * time.Millisecond) // long enough for some tries
	if diff := cmp.Diff(versions(before), versions(s.published())); diff != "" {
		t.Errorf("objects while the driver is away (-before +after):\n%s", diff)
	}
	p.Change(func(cfg *memdriver.Config) { cfg.CapacityBytes = 5 << 30 })
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	s.becomes(p, "zone=a 5Gi")
}

// A driver without topology has one object a class, for all nodes, and it stays as it is.
func TestCapacityWithoutTopology(t *testing.T) {
	t.Parallel()
	s := lateSite(t)
	s.node(s.name("a"), nil, s.ns)
	s.node(s.name("b"), nil, s.ns)
	p := s.publishOf(s.ns, memdriver.Config{CapacityBytes: 10 << 30})
	s.becomes(p, "10Gi")
	if got := s.writes("POST"); got != 1 {
		t.Errorf("%d creates, want one", got)
	}
}

// A volume takes room: what is published for its zone follows at once, long before the next poll.
func TestCapacityAfterAVolume(t *testing.T) {
	t.Parallel()
	s := lateSite(t)
	s.node(s.name("a"), s.zone("a"), s.ns)
	s.node(s.name("b"), s.zone("b"), s.ns)
	p := s.publish(func(cfg *capacity.Config) { cfg.PollInterval = time.Hour })
	eventually(t, "both objects", func() bool { return len(s.published()) == 2 })
	p.Change(func(cfg *memdriver.Config) { cfg.CapacityBytes = 8 << 30 })
	p.ForgetCalls()
	p.VolumeCreated(s.ns, topology.Affinity([]*csi.Topology{{Segments: s.zone("b")}}))
	eventually(t, "the zone of the volume is up to date", func() bool { return s.says(s.published()[1]) == "zone=b 8Gi" })
	if got := s.says(s.published()[0]); got != "zone=a 10Gi" || len(p.Calls("GetCapacity")) != 1 {
		t.Errorf("%q is published for the other zone after %d calls, want 10Gi and one call", got, len(p.Calls("GetCapacity")))
	}
	p.CreateFailed(s.ns)
	eventually(t, "both zones are up to date", func() bool { return s.says(s.published()[0]) == "zone=a 8Gi" })
}

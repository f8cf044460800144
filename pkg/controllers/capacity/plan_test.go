package capacity

import (
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/wrapperspb"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/topology"
)

var testIdentity = identity{driver: testDriver, managedBy: testManagedBy, namespace: testNamespace}

func controller(uid string) metav1.OwnerReference {
	yes := true
	return metav1.OwnerReference{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "owner-" + uid, UID: types.UID("uid-" + uid), Controller: &yes}
}

func TestPlan(t *testing.T) {
	t.Parallel()
	key := Key{Class: "fast", Segment: zone("a")}
	size := func(bytes int64) *int64 { return &bytes }
	owner := controller("own")
	there := func(edit func(*storagev1.CSIStorageCapacity)) *storagev1.CSIStorageCapacity {
		object := newObject(key, testIdentity, room{available: 1 << 30})
		object.Name, object.UID, object.ResourceVersion = "csisc-1", "uid-1", "7"
		object.Annotations = map[string]string{"somebody": "else"}
		edit(object)
		return object
	}
	same := func(*storagev1.CSIStorageCapacity) {}
	surplus := there(func(o *storagev1.CSIStorageCapacity) { o.Name = "csisc-2" })
	for name, tc := range map[string]struct {
		view  view
		owner *metav1.OwnerReference
		room  *room
		want  Changes
	}{
		"nothing there":                    {view: view{key: key, desired: true}, room: &room{available: 5}, want: Changes{Create: newObject(key, testIdentity, room{available: 5})}},
		"nothing there, and no room":       {view: view{key: key, desired: true}, room: &room{}, want: Changes{Create: newObject(key, testIdentity, room{})}},
		"nothing there, room is not known": {view: view{key: key, desired: true}},
		"nothing wanted":                   {view: view{key: key}, room: &room{}},
		"all is right":                     {view: view{key: key, desired: true, object: there(same)}, room: &room{available: 1 << 30}},
		"all is right, written differently": {view: view{key: key, desired: true, object: there(func(o *storagev1.CSIStorageCapacity) {
			q := resource.MustParse("1048576Ki")
			o.Capacity = &q
		})}, room: &room{available: 1 << 30}},
		"not wanted, and surplus": {view: view{key: key, surplus: []*storagev1.CSIStorageCapacity{surplus}},
			want: Changes{Delete: []*storagev1.CSIStorageCapacity{surplus}}},
		"surplus and another capacity": {
			view: view{key: key, desired: true, object: there(same), surplus: []*storagev1.CSIStorageCapacity{surplus}}, room: &room{available: 6},
			want: Changes{
				Update: there(func(o *storagev1.CSIStorageCapacity) { o.Capacity = resource.NewQuantity(6, resource.BinarySI) }),
				Delete: []*storagev1.CSIStorageCapacity{surplus},
			},
		},
		"a maximum appears": {view: view{key: key, desired: true, object: there(same)}, room: &room{available: 1 << 30, maxSize: size(0)},
			want: Changes{Update: there(func(o *storagev1.CSIStorageCapacity) {
				o.MaximumVolumeSize = resource.NewQuantity(0, resource.BinarySI)
			})}},
		"a maximum changes": {
			view: view{key: key, desired: true, object: there(func(o *storagev1.CSIStorageCapacity) {
				o.MaximumVolumeSize = resource.NewQuantity(1, resource.BinarySI)
			})},
			room: &room{available: 1 << 30, maxSize: size(2)},
			want: Changes{Update: there(func(o *storagev1.CSIStorageCapacity) {
				o.MaximumVolumeSize = resource.NewQuantity(2, resource.BinarySI)
			})},
		},
		"a maximum goes": {
			view: view{key: key, desired: true, object: there(func(o *storagev1.CSIStorageCapacity) {
				o.MaximumVolumeSize = resource.NewQuantity(1, resource.BinarySI)
			})},
			room: &room{available: 1 << 30},
			want: Changes{Update: there(same)},
		},
		"the owner is missing": {view: view{key: key, desired: true, object: there(same)}, room: &room{available: 1 << 30}, owner: &owner,
			want: Changes{Update: there(func(o *storagev1.CSIStorageCapacity) { o.OwnerReferences = []metav1.OwnerReference{owner} })}},
		"the owner is there": {
			view: view{key: key, desired: true, object: there(func(o *storagev1.CSIStorageCapacity) { o.OwnerReferences = []metav1.OwnerReference{owner} })},
			room: &room{available: 1 << 30}, owner: &owner,
		},
		"no owner is configured": {
			view: view{key: key, desired: true, object: there(func(o *storagev1.CSIStorageCapacity) { o.OwnerReferences = []metav1.OwnerReference{owner} })},
			room: &room{available: 1 << 30},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := testIdentity
			id.owner = tc.owner
			before := tc.view.object.DeepCopy()
			got := plan(tc.view, id, tc.room)
			if diff := cmp.Diff(tc.want, got, quantities); diff != "" {
				t.Errorf("changes (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tc.view.object); diff != "" {
				t.Errorf("the plan changed its facts (-before +after):\n%s", diff)
			}
			if diff := cmp.Diff(got, plan(tc.view, id, tc.room), quantities); diff != "" {
				t.Errorf("planning twice differs (-first +second):\n%s", diff)
			}
		})
	}
}

// quantities are equal when their values are and they look alike.
var quantities = cmp.Comparer(func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 && a.String() == b.String() })

func TestWithOwner(t *testing.T) {
	t.Parallel()
	own, other := controller("own"), controller("other")
	follower := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "p", UID: "uid-follower"}
	passive := own
	passive.Controller = nil
	for name, tc := range map[string]struct{ refs, want []metav1.OwnerReference }{
		"none":                           {nil, []metav1.OwnerReference{own}},
		"another controller is replaced": {[]metav1.OwnerReference{other}, []metav1.OwnerReference{own}},
		"what does not control stays":    {[]metav1.OwnerReference{follower, other}, []metav1.OwnerReference{follower, own}},
		"ours did not control":           {[]metav1.OwnerReference{passive, follower}, []metav1.OwnerReference{follower, own}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, withOwner(tc.refs, own)); diff != "" {
				t.Errorf("references (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRoomIn(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		answer  *csi.GetCapacityResponse
		want    string // of Capacity and MaximumVolumeSize
		wantErr string
	}{
		"room":                  {answer: &csi.GetCapacityResponse{AvailableCapacity: 10 << 30}, want: "10Gi <nil>"},
		"no room":               {answer: &csi.GetCapacityResponse{}, want: "0 <nil>"},
		"an odd number":         {answer: &csi.GetCapacityResponse{AvailableCapacity: 1001}, want: "1001 <nil>"},
		"a maximum":             {answer: &csi.GetCapacityResponse{MaximumVolumeSize: wrapperspb.Int64(1 << 20)}, want: "0 1Mi"},
		"a maximum of zero":     {answer: &csi.GetCapacityResponse{MaximumVolumeSize: wrapperspb.Int64(0)}, want: "0 0"},
		"the minimum is unused": {answer: &csi.GetCapacityResponse{MinimumVolumeSize: wrapperspb.Int64(5)}, want: "0 <nil>"},
		"no answer":             {wantErr: "the driver's answer to GetCapacity is empty"},
		"negative room":         {answer: &csi.GetCapacityResponse{AvailableCapacity: -3}, wantErr: "the driver reports a negative available capacity: -3"},
		"a negative maximum": {answer: &csi.GetCapacityResponse{MaximumVolumeSize: wrapperspb.Int64(-4)},
			wantErr: "the driver reports a negative maximum volume size: -4"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, err := roomIn(tc.answer)
			if tc.wantErr != "" {
				if err == nil || err.Error() != tc.wantErr {
					t.Errorf("error %v, want %q", err, tc.wantErr)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			object := newObject(Key{}, testIdentity, r)
			if got := object.Capacity.String() + " " + object.MaximumVolumeSize.String(); got != tc.want {
				t.Errorf("capacity and maximum %q, want %q", got, tc.want)
			}
		})
	}
}

func TestKeyOf(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		selector *metav1.LabelSelector
		want     Key
	}{
		"labels":      {&metav1.LabelSelector{MatchLabels: map[string]string{"zone": "a"}}, Key{Class: "c", Segment: zone("a")}},
		"empty map":   {&metav1.LabelSelector{MatchLabels: map[string]string{}}, Key{Class: "c"}},
		"absent map":  {&metav1.LabelSelector{}, Key{Class: "c"}},
		"no selector": {nil, Key{Class: "c", Object: "u"}},
		"expressions": {&metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: "zone"}}}, Key{Class: "c", Object: "u"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			object := &storagev1.CSIStorageCapacity{ObjectMeta: metav1.ObjectMeta{UID: "u"}, NodeTopology: tc.selector, StorageClassName: "c"}
			if got := keyOf(object); got != tc.want {
				t.Errorf("key %v, want %v", got, tc.want)
			}
		})
	}
}

func TestAllowed(t *testing.T) {
	t.Parallel()
	one := func(key string, values ...string) corev1.TopologySelectorLabelRequirement {
		return corev1.TopologySelectorLabelRequirement{Key: key, Values: values}
	}
	term := func(expressions ...corev1.TopologySelectorLabelRequirement) corev1.TopologySelectorTerm {
		return corev1.TopologySelectorTerm{MatchLabelExpressions: expressions}
	}
	for name, tc := range map[string]struct {
		terms   []corev1.TopologySelectorTerm
		segment topology.Segment
		want    bool
	}{
		"no terms":                                 {nil, zone("a"), true},
		"value is among them":                      {[]corev1.TopologySelectorTerm{term(one("zone", "b", "a"))}, zone("a"), true},
		"value is not among them":                  {[]corev1.TopologySelectorTerm{term(one("zone", "b", "c"))}, zone("a"), false},
		"one of two terms fits":                    {[]corev1.TopologySelectorTerm{term(one("zone", "b")), term(one("zone", "a"))}, zone("a"), true},
		"one of two expressions does not fit":      {[]corev1.TopologySelectorTerm{term(one("zone", "a"), one("host", "2"))}, place("a", "1"), false},
		"a key that the segment does not have":     {[]corev1.TopologySelectorTerm{term(one("rack", "7"))}, zone("a"), true},
		"such a key and a value that forbids":      {[]corev1.TopologySelectorTerm{term(one("rack", "7"), one("zone", "b"))}, zone("a"), false},
		"the segment of a driver without topology": {[]corev1.TopologySelectorTerm{term(one("zone", "b"))}, topology.Segment{}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := allowed(tc.terms, tc.segment); got != tc.want {
				t.Errorf("allowed: %v, want %v", got, tc.want)
			}
		})
	}
}

func TestEligible(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		provisioner   string
		mode          storagev1.VolumeBindingMode // "" means unset
		want, wantAll bool
	}{
		"late":                 {testDriver, storagev1.VolumeBindingWaitForFirstConsumer, true, true},
		"at once":              {testDriver, storagev1.VolumeBindingImmediate, false, true},
		"mode is not set":      {testDriver, "", true, true},
		"of another driver":    {"other", storagev1.VolumeBindingWaitForFirstConsumer, false, false},
		"of an in-tree plugin": {"kubernetes.io/aws-ebs", storagev1.VolumeBindingWaitForFirstConsumer, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			class := &storagev1.StorageClass{Provisioner: tc.provisioner, VolumeBindingMode: &tc.mode}
			if tc.mode == "" {
				class.VolumeBindingMode = nil
			}
			if got := eligible(class, testDriver, false); got != tc.want {
				t.Errorf("eligible: %v, want %v", got, tc.want)
			}
			if got := eligible(class, testDriver, true); got != tc.wantAll {
				t.Errorf("eligible with immediate binding: %v, want %v", got, tc.wantAll)
			}
		})
	}
}

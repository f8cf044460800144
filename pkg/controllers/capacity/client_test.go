package capacity

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
)

// The whole controller over a client: create, adopt, update, delete.
func TestObjectsThroughTheClient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		old := published("gone", zone("a"), 1)
		old.Name, old.UID, old.ManagedFields = "old", "uid-old", []metav1.ManagedFieldsEntry{{Manager: "somebody"}}
		adopted := published("fast", zone("a"), 1)
		adopted.Name, adopted.UID, adopted.Annotations = "adopted", "uid-adopted", map[string]string{"x": "y"}
		foreign := published("fast", zone("a"), 1)
		foreign.Name, foreign.UID, foreign.Labels = "foreign", "uid-foreign", map[string]string{"csi.storage.k8s.io/drivername": "other"}
		client := fake.NewSimpleClientset(old, adopted, foreign)
		client.PrependReactor("create", "csistoragecapacities", func(action clienttesting.Action) (bool, runtime.Object, error) {
			object := action.(clienttesting.CreateAction).GetObject().(metav1.Object)
			object.SetName(object.GetGenerateName() + "1")
			object.SetUID("uid-created")
			return false, nil, nil
		})
		s := newStage(t)
		objects, err := NewObjects(ObjectsConfig{Client: client, DriverName: testDriver, ManagedBy: testManagedBy, Namespace: testNamespace})
		if err != nil {
			t.Fatal(err)
		}
		s.objects = objects
		s.run()
		s.stop()
		checkRequests(t, client.Actions())
		var got []string
		list, err := client.StorageV1().CSIStorageCapacities(testNamespace).List(t.Context(), metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range list.Items {
			got = append(got, strings.Join([]string{o.Name, o.StorageClassName, keyOf(&o).Segment.String(), o.Capacity.String(), o.Annotations["x"]}, " "))
		}
		want := []string{"adopted fast zone=a 1Gi y", "csisc-1 fast zone=b 1Gi ", "foreign fast zone=a 1 "}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("objects (-want +got):\n%s", diff)
		}
	})
}

// checkRequests looks at what the fake clientset does not check: the version, the label selector, and the UID
// that a deletion is bound to.
func checkRequests(t *testing.T, actions []clienttesting.Action) {
	t.Helper()
	for _, action := range actions {
		if got := action.GetResource().Version; got != "v1" {
			t.Errorf("%s with version %s, want v1", action.GetVerb(), got)
		}
		switch action := action.(type) {
		case clienttesting.ListActionImpl:
			if got, want := action.GetListRestrictions().Labels.String(), "csi.storage.k8s.io/drivername=csi.example.com,csi.storage.k8s.io/managed-by=external-provisioner"; got != want {
				t.Errorf("list with selector %q, want %q", got, want)
			}
		case clienttesting.WatchActionImpl:
			if got := action.GetWatchRestrictions().Labels.String(); !strings.Contains(got, "managed-by=external-provisioner") {
				t.Errorf("watch with selector %q", got)
			}
		case clienttesting.DeleteActionImpl:
			if p := action.GetDeleteOptions().Preconditions; p == nil || *p.UID != types.UID("uid-"+action.GetName()) {
				t.Errorf("deletion of %s with preconditions %v, want its UID", action.GetName(), p)
			}
		}
	}
}

// Names, types and help of the metrics are API.
func TestMetricsAreAsEver(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	families, err := s.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := []string{}
	for _, family := range families {
		if strings.HasPrefix(family.GetName(), "csistoragecapacities_") {
			got = append(got, family.GetName()+" "+family.GetType().String()+" "+family.GetHelp())
		}
	}
	want := []string{
		"csistoragecapacities_desired_current GAUGE [ALPHA] Number of CSIStorageCapacity objects that exist and are supposed to be managed automatically.",
		"csistoragecapacities_desired_goal GAUGE [ALPHA] Number of CSIStorageCapacity objects that are supposed to be managed automatically.",
		"csistoragecapacities_obsolete GAUGE [ALPHA] Number of CSIStorageCapacity objects that exist and will be deleted automatically. Objects that exist and may need an update are not considered obsolete and therefore not included in this value.",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("metrics (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([3]float64{}, s.gauges()); diff != "" {
		t.Errorf("gauges of a replica that stands by (-want +got):\n%s", diff)
	}
	if _, err := NewMetrics(s.registry.Register); err == nil {
		t.Error("registering the metrics twice is no error")
	}
}

// What the watch missed comes late and in an envelope; what it confused comes as one update.
func TestWatchGaps(t *testing.T) {
	t.Parallel()
	inBubble(t, func(t *testing.T, s *stage) {
		s.run()
		object := s.server.get()[0]
		handler := s.controller.objectHandler()
		again := object.DeepCopy()
		again.UID, again.ResourceVersion = "uid-again", "100"
		s.driver.taken()
		handler.OnUpdate(object, again)
		s.settle()
		if _, known := s.controller.book.byUID[object.UID]; known {
			t.Error("the object that was replaced is still known")
		}
		handler.OnDelete(cache.DeletedFinalStateUnknown{Key: "storage/" + again.Name, Obj: again})
		handler.OnDelete(cache.DeletedFinalStateUnknown{Key: "storage/x"})
		handler.OnAdd("nonsense", false)
		handler.OnUpdate("nonsense", "nonsense")
		s.settle()
		if diff := cmp.Diff([]string{"fast zone=a", "fast zone=a"}, s.driver.taken()); diff != "" {
			t.Errorf("pairs that lost their object (-want +got):\n%s", diff)
		}
		s.checkBook()
	})
}

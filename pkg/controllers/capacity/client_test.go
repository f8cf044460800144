package capacity

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2/ktesting"
)

// serving is the discovery of a server with these versions of the API.
func serving(versions ...string) []*metav1.APIResourceList {
	lists := []*metav1.APIResourceList{
		{GroupVersion: "storage.k8s.io/v1", APIResources: []metav1.APIResource{{Name: "storageclasses", Kind: "StorageClass"}}},
		{GroupVersion: "storage.k8s.io/v1beta1", APIResources: []metav1.APIResource{{Name: "csinodes", Kind: "CSINode"}}},
	}
	for _, list := range lists {
		for _, version := range versions {
			if list.GroupVersion == "storage.k8s.io/"+version {
				list.APIResources = append(list.APIResources, metav1.APIResource{Name: "csistoragecapacities", Kind: "CSIStorageCapacity"})
			}
		}
	}
	return lists
}

func TestFindVersion(t *testing.T) {
	t.Parallel()
	group := schema.GroupResource{Group: "storage.k8s.io", Resource: "csistoragecapacities"}
	forbidden := apierrors.NewForbidden(group, "", errors.New("no role"))
	invalid := apierrors.NewInvalid(schema.GroupKind{Group: "storage.k8s.io", Kind: "CSIStorageCapacity"}, "x", nil)
	timeout := apierrors.NewTimeoutError("slow", 1)
	for name, tc := range map[string]struct {
		versions  []string
		discovery []error // of one call after the other; then none
		create    error   // nil: the object is accepted
		want      Version
		wantErr   string
		wantCalls int // of the probe
		wantTime  time.Duration
	}{
		"both":                          {versions: []string{"v1", "v1beta1"}, want: V1},
		"just v1":                       {versions: []string{"v1"}, want: V1},
		"just v1beta1":                  {versions: []string{"v1beta1"}, want: V1beta1},
		"neither":                       {wantErr: "neither storage.k8s.io/v1 nor v1beta1"},
		"after two errors that pass":    {versions: []string{"v1"}, discovery: []error{timeout, timeout}, want: V1, wantTime: 3 * time.Second},
		"errors that do not pass":       {discovery: []error{timeout, timeout, timeout, timeout, timeout, timeout}, wantErr: "slow", wantTime: 31 * time.Second},
		"discovery is forbidden, v1":    {discovery: []error{forbidden}, create: invalid, want: V1, wantCalls: 1},
		"discovery is forbidden, older": {discovery: []error{forbidden}, create: apierrors.NewNotFound(group, ""), want: V1beta1, wantCalls: 1},
		"discovery is forbidden, no namespace": {discovery: []error{forbidden},
			create: apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, testNamespace), wantErr: `namespaces "storage" not found`, wantCalls: 1},
		"all is forbidden":                     {discovery: []error{forbidden}, create: forbidden, wantErr: "the Role of the capacity feature", wantCalls: 1},
		"an invalid object is accepted":        {discovery: []error{forbidden}, wantErr: "accepted an invalid object", wantCalls: 1},
		"the probe meets an error that passes": {versions: []string{"v1"}, discovery: []error{forbidden}, create: timeout, want: V1, wantCalls: 1, wantTime: time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewSimpleClientset()
				client.Resources = serving(tc.versions...)
				failures := tc.discovery
				client.PrependReactor("get", "resource", func(clienttesting.Action) (bool, runtime.Object, error) {
					if len(failures) == 0 {
						return false, nil, nil
					}
					err := failures[0]
					failures = failures[1:]
					return true, nil, err
				})
				calls := 0
				client.PrependReactor("create", "csistoragecapacities", func(action clienttesting.Action) (bool, runtime.Object, error) {
					calls++
					object := action.(clienttesting.CreateAction).GetObject().(*storagev1.CSIStorageCapacity)
					if action.GetNamespace() != testNamespace || !strings.ContainsAny(object.Name, "#%") {
						t.Errorf("probe creates %q in namespace %q, want an illegal name in %q", object.Name, action.GetNamespace(), testNamespace)
					}
					return true, object, tc.create
				})
				begin := time.Now()
				_, ctx := ktesting.NewTestContext(t)
				got, err := FindVersion(ctx, client, testNamespace)
				if got != tc.want || (err == nil) != (tc.wantErr == "") || (err != nil && !strings.Contains(err.Error(), tc.wantErr)) {
					t.Errorf("version %q, error %v, want %q, %q", got, err, tc.want, tc.wantErr)
				}
				if calls != tc.wantCalls {
					t.Errorf("%d probes, want %d", calls, tc.wantCalls)
				}
				if took := time.Since(begin); took != tc.wantTime {
					t.Errorf("took %s, want %s", took, tc.wantTime)
				}
			})
		})
	}
}

func TestFindVersionEndsWithItsContext(t *testing.T) {
	t.Parallel()
	client := fake.NewSimpleClientset()
	client.PrependReactor("get", "resource", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, apierrors.NewTimeoutError("slow", 1)
	})
	ctx, cancel := context.WithCancelCause(t.Context())
	stopped := errors.New("stopped")
	cancel(stopped)
	if _, err := FindVersion(ctx, client, testNamespace); !errors.Is(err, stopped) {
		t.Errorf("error %v, want %v in it", err, stopped)
	}
}

// The whole controller over a client of each version: create, adopt, update, delete.
func TestBothVersions(t *testing.T) {
	t.Parallel()
	for _, version := range []Version{V1, V1beta1} {
		t.Run(string(version), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				old := published("gone", zone("a"), 1)
				old.Name, old.UID, old.ManagedFields = "old", "uid-old", []metav1.ManagedFieldsEntry{{Manager: "somebody"}}
				adopted := published("fast", zone("a"), 1)
				adopted.Name, adopted.UID, adopted.Annotations = "adopted", "uid-adopted", map[string]string{"x": "y"}
				foreign := published("fast", zone("a"), 1)
				foreign.Name, foreign.UID, foreign.Labels = "foreign", "uid-foreign", map[string]string{"csi.storage.k8s.io/drivername": "other"}
				client := fake.NewSimpleClientset(old, adopted, foreign, toBeta(old), toBeta(adopted), toBeta(foreign))
				client.PrependReactor("create", "csistoragecapacities", func(action clienttesting.Action) (bool, runtime.Object, error) {
					object := action.(clienttesting.CreateAction).GetObject().(metav1.Object)
					object.SetName(object.GetGenerateName() + "1")
					object.SetUID("uid-created")
					return false, nil, nil
				})
				s := newStage(t)
				objects, err := NewObjects(ObjectsConfig{
					Client: client, Version: version, DriverName: testDriver, ManagedBy: testManagedBy, Namespace: testNamespace,
				})
				if err != nil {
					t.Fatal(err)
				}
				s.objects = objects
				s.run()
				s.stop()
				checkRequests(t, client.Actions(), version)
				var got []string
				v1, _ := client.StorageV1().CSIStorageCapacities(testNamespace).List(t.Context(), metav1.ListOptions{})
				items := v1.Items
				if version == V1beta1 {
					beta, _ := client.StorageV1beta1().CSIStorageCapacities(testNamespace).List(t.Context(), metav1.ListOptions{})
					items = nil
					for _, item := range beta.Items {
						items = append(items, *fromBeta(&item))
					}
				}
				for _, o := range items {
					got = append(got, strings.Join([]string{o.Name, o.StorageClassName, keyOf(&o).Segment.String(), o.Capacity.String(), o.Annotations["x"]}, " "))
				}
				want := []string{"adopted fast zone=a 1Gi y", "csisc-1 fast zone=b 1Gi ", "foreign fast zone=a 1 "}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("objects (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// checkRequests looks at what the fake clientset does not check: the version, the label selector, and the UID
// that a deletion is bound to.
func checkRequests(t *testing.T, actions []clienttesting.Action, version Version) {
	t.Helper()
	for _, action := range actions {
		if got := action.GetResource().Version; got != string(version) {
			t.Errorf("%s with version %s, want %s", action.GetVerb(), got, version)
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

package capacity

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/metadata"
	metadatafake "k8s.io/client-go/metadata/fake"
	"k8s.io/client-go/rest"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/csi-sidecars/external-provisioner/pkg/nodelocal"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

func TestLeftovers(t *testing.T) {
	t.Parallel()
	long, longer := strings.Repeat("n", 48), strings.Repeat("n", 60)
	nodes := map[string]bool{}
	for _, node := range []string{"here", long + "here", longer + "here"} {
		nodes[nodelocal.ManagedBy(wellknown.ManagedByBase, node)] = true
	}
	for name, tc := range map[string]struct {
		managedBy string
		want      bool
	}{
		"a node that is there":             {nodelocal.ManagedBy(wellknown.ManagedByBase, "here"), false},
		"with a long name":                 {nodelocal.ManagedBy(wellknown.ManagedByBase, long+"here"), false},
		"with a longer name":               {nodelocal.ManagedBy(wellknown.ManagedByBase, longer+"here"), false},
		"a node that is gone":              {nodelocal.ManagedBy(wellknown.ManagedByBase, "gone"), true},
		"with a long name, and gone":       {nodelocal.ManagedBy(wellknown.ManagedByBase, long+"gone"), true},
		"with the longest short base":      {nodelocal.ManagedBy(wellknown.ManagedByBase, strings.Repeat("g", 52)), true},
		"with a longer name, and gone":     {nodelocal.ManagedBy(wellknown.ManagedByBase, longer+"gone"), true},
		"a central instance":               {wellknown.ManagedByBase, false},
		"no label":                         {"", false},
		"somebody else":                    {"my-operator", false},
		"somebody else with the same hash": {"my-" + baseHash + "-node", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			object := published("fast", zone("a"), 1)
			object.Labels[wellknown.LabelManagedBy] = tc.managedBy
			if got := len(leftovers([]storagev1.CSIStorageCapacity{*object}, nodes)) == 1; got != tc.want {
				t.Errorf("left over: %v, want %v", got, tc.want)
			}
		})
	}
}

// A node that is gone is missed twice before its objects go; errors and an empty list delete nothing.
func TestSweeper(t *testing.T) {
	t.Parallel()
	all := []string{"central", "gone", "here", "other-driver"}
	for name, tc := range map[string]struct {
		nodes   []string
		prepare func(client *fake.Clientset, metadata *metadatafake.FakeMetadataClient)
		// want after one sweep, after two, and after five.
		want1, want2, want5 []string
		wantErrors          int
	}{
		"a node is gone":          {nodes: []string{"here"}, want1: all, want2: []string{"central", "here", "other-driver"}, want5: []string{"central", "here", "other-driver"}},
		"no node is gone":         {nodes: []string{"here", "gone"}, want1: all, want2: all, want5: all},
		"there is no node at all": {want1: all, want2: all, want5: all, wantErrors: 5},
		"nodes cannot be listed": {nodes: []string{"here"}, prepare: func(_ *fake.Clientset, metadata *metadatafake.FakeMetadataClient) {
			metadata.PrependReactor("list", "nodes", func(clienttesting.Action) (bool, runtime.Object, error) {
				return true, nil, apierrors.NewForbidden(corev1.Resource("nodes"), "", errors.New("no role"))
			})
		}, want1: all, want2: all, want5: all, wantErrors: 5},
		"a deletion fails once": {nodes: []string{"here"}, prepare: func(client *fake.Clientset, _ *metadatafake.FakeMetadataClient) {
			failed := false
			client.PrependReactor("delete", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
				if failed {
					return false, nil, nil
				}
				failed = true
				return true, nil, apierrors.NewTimeoutError("slow", 1)
			})
		}, want1: all, want2: all, want5: []string{"central", "here", "other-driver"}, wantErrors: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client, nodes := sweepable(t, tc.nodes)
				if tc.prepare != nil {
					tc.prepare(client, nodes)
				}
				sweeper, err := NewSweeper(SweeperConfig{Client: client, Metadata: nodes, DriverName: testDriver, Namespace: testNamespace})
				if err != nil {
					t.Fatal(err)
				}
				logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
				stop, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
				var running sync.WaitGroup
				running.Go(func() {
					if err := sweeper.Run(stop, stop); err != nil {
						t.Error(err)
					}
				})
				for _, step := range []struct {
					sweeps time.Duration
					want   []string
				}{{0, tc.want1}, {1, tc.want2}, {3, tc.want5}} {
					time.Sleep(step.sweeps * defaultSweepEvery)
					synctest.Wait()
					if diff := cmp.Diff(step.want, namesOf(t, client)); diff != "" {
						t.Errorf("objects %d sweeps later (-want +got):\n%s", step.sweeps, diff)
					}
				}
				cancel()
				running.Wait()
				log := logger.GetSink().(ktesting.Underlier).GetBuffer().String()
				if got := strings.Count(log, "Could not look for"); got != tc.wantErrors {
					t.Errorf("%d errors in the log, want %d:\n%s", got, tc.wantErrors, log)
				}
			})
		})
	}
}

// The process may lose the lease and get it again long after: what the term before missed does not count.
func TestSweeperForgetsBetweenTerms(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client, nodes := sweepable(t, []string{"here"})
		sweeper, err := NewSweeper(SweeperConfig{Client: client, Metadata: nodes, DriverName: testDriver, Namespace: testNamespace})
		if err != nil {
			t.Fatal(err)
		}
		_, ctx := ktesting.NewTestContext(t)
		var running sync.WaitGroup
		for term := range 3 {
			stop, cancel := context.WithCancel(ctx)
			running.Go(func() {
				if err := sweeper.Run(stop, ctx); err != nil {
					t.Error(err)
				}
			})
			time.Sleep(defaultSweepEvery / 2)
			synctest.Wait()
			if got := namesOf(t, client); !slices.Contains(got, "gone") {
				t.Errorf("term %d, one sweep: %v is left, want all", term, got)
			}
			if term == 2 {
				time.Sleep(defaultSweepEvery)
				synctest.Wait()
				if got := namesOf(t, client); slices.Contains(got, "gone") {
					t.Errorf("two sweeps of one term: %v is left", got)
				}
			}
			cancel()
			running.Wait()
		}
	})
}

// roundTripper is a transport.
type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A stop cuts the lists: the next holder of the lease looks anew.
func TestStopCutsTheSweepersLists(t *testing.T) {
	t.Parallel()
	for _, resource := range []string{"csistoragecapacities", "nodes"} {
		t.Run(resource, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				stop, cancel := context.WithCancel(t.Context())
				defer cancel()
				config := &rest.Config{Host: "http://server", QPS: -1, Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
					if !strings.HasSuffix(r.URL.Path, "/"+resource) {
						body := `{"kind":"CSIStorageCapacityList","apiVersion":"storage.k8s.io/v1","metadata":{},"items":[]}`
						return &http.Response{
							StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r,
						}, nil
					}
					cancel()
					select {
					case <-r.Context().Done():
						return nil, r.Context().Err()
					case <-time.After(time.Minute):
						return nil, errors.New("the list was not cut")
					}
				})}
				client, err := kubernetes.NewForConfig(config)
				if err != nil {
					t.Fatal(err)
				}
				nodes, err := metadata.NewForConfig(config)
				if err != nil {
					t.Fatal(err)
				}
				sweeper, err := NewSweeper(SweeperConfig{Client: client, Metadata: nodes, DriverName: testDriver, Namespace: testNamespace})
				if err != nil {
					t.Fatal(err)
				}
				if err := sweeper.sweep(stop, t.Context()); !errors.Is(err, context.Canceled) {
					t.Errorf("error %v, want that of the stop", err)
				}
			})
		})
	}
}

// sweepable returns clients of a cluster with these nodes and one object each of a central instance, of the nodes
// "here" and "gone", and of another driver.
func sweepable(t *testing.T, nodes []string) (*fake.Clientset, *metadatafake.FakeMetadataClient) {
	t.Helper()
	var objects, metadata []runtime.Object
	for name, managedBy := range map[string]string{
		"central": wellknown.ManagedByBase, "here": wellknown.ManagedByBase + "-here",
		"gone": wellknown.ManagedByBase + "-gone", "other-driver": wellknown.ManagedByBase + "-gone",
	} {
		object := published("fast", zone("a"), 1)
		object.Name = name
		object.Labels[wellknown.LabelManagedBy] = managedBy
		if name == "other-driver" {
			object.Labels[wellknown.LabelDriverName] = "other"
		}
		objects = append(objects, object)
	}
	for _, node := range nodes {
		metadata = append(metadata, &metav1.PartialObjectMetadata{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Node"}, ObjectMeta: metav1.ObjectMeta{Name: node},
		})
	}
	scheme := metadatafake.NewTestScheme()
	if err := metav1.AddMetaToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	return fake.NewSimpleClientset(objects...), metadatafake.NewSimpleMetadataClient(scheme, metadata...)
}

func namesOf(t *testing.T, client *fake.Clientset) []string {
	t.Helper()
	sweeper := Sweeper{cfg: SweeperConfig{Client: client, Namespace: testNamespace}}
	var names []string
	for _, driver := range []string{testDriver, "other"} {
		sweeper.cfg.DriverName = driver
		objects, err := sweeper.objects(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		for _, object := range objects {
			names = append(names, object.Name)
		}
	}
	slices.Sort(names)
	return names
}

func TestNewSweeperNeedsItsConfig(t *testing.T) {
	t.Parallel()
	if _, err := NewSweeper(SweeperConfig{}); err == nil {
		t.Error("an empty config was accepted")
	}
}

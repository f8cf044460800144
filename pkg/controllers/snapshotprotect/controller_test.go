package snapshotprotect

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	snapv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapfake "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"

	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

const (
	driver  = "driver.test"
	foreign = "example.com/other"
)

// cacheOf is a cache with these claims.
type cacheOf []*corev1.PersistentVolumeClaim

func (c cacheOf) ClaimsBySource(key string) []*corev1.PersistentVolumeClaim {
	var found []*corev1.PersistentVolumeClaim
	for _, claim := range c {
		if source.Key(claim) == key {
			found = append(found, claim)
		}
	}
	return found
}

// creates are the keys of the sources that outstanding creates read.
type creates map[string]bool

func (c creates) ForSource(key string) bool { return c[key] }

// protectedSnapshot is "default/s" with our finalizer between two others, bound to content "content".
func protectedSnapshot() *fixture.SnapshotBuilder {
	return fixture.Snapshot("s").UID("s").Finalizer("a", wellknown.FinalizerSnapshotSource, foreign).Ready("content", "1Gi")
}

func content(driver string) *snapv1.VolumeSnapshotContent {
	return fixture.Content("content").Driver(driver).Obj()
}

// granted lets claims of the namespace "other" use all snapshots.
func granted(namespace string) ([]*gatewayv1beta1.ReferenceGrant, error) {
	return []*gatewayv1beta1.ReferenceGrant{{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace},
		Spec: gatewayv1beta1.ReferenceGrantSpec{
			From: []gatewayv1beta1.ReferenceGrantFrom{{Kind: wellknown.KindClaim, Namespace: "other"}},
			To:   []gatewayv1beta1.ReferenceGrantTo{{Group: wellknown.GroupSnapshot, Kind: wellknown.KindSnapshot}},
		},
	}}, nil
}

func noGrants(string) ([]*gatewayv1beta1.ReferenceGrant, error) { return nil, nil }

// world is a cluster and what a controller in it sees.
type world struct {
	cached    cacheOf // claims of the cache
	live      []*corev1.PersistentVolumeClaim
	snapshots []runtime.Object
	creates   creates
	grants    source.Grants

	client *fake.Clientset
	snap   *snapfake.Clientset
	disc   *fakediscovery.FakeDiscovery
}

func (w *world) controller(t *testing.T) *Controller {
	t.Helper()
	w.client, w.snap = fake.NewClientset(), snapfake.NewSimpleClientset(w.snapshots...) //nolint:staticcheck // the module has no other
	for _, claim := range w.live {
		if err := w.client.Tracker().Add(claim); err != nil {
			t.Fatal(err)
		}
	}
	w.disc = &fakediscovery.FakeDiscovery{Fake: &clienttesting.Fake{Resources: []*metav1.APIResourceList{
		{GroupVersion: groupVersion, APIResources: []metav1.APIResource{{Name: "volumesnapshots", Kind: wellknown.KindSnapshot}}},
	}}}
	c, err := New(Config{
		Claims: w.cached, Client: w.client, Snapshots: w.snap, Discovery: w.disc, Driver: driver,
		Grants: w.grants, Outstanding: w.creates, Interval: 5 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// failing makes requests of this verb and resource fail from the moment on at which an error is stored.
func failing(f *clienttesting.Fake, verb, resource string) *atomic.Pointer[error] {
	var failure atomic.Pointer[error]
	f.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) {
		if err := failure.Load(); err != nil {
			return true, nil, *err
		}
		return false, nil, nil
	})
	return &failure
}

// fail makes requests of this verb and resource fail.
func fail(f *clienttesting.Fake, verb, resource string, err error) {
	f.PrependReactor(verb, resource, func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, err })
}

// stripped returns the names of the snapshots that were written, and fails if more than our finalizer went.
func (w *world) stripped(t *testing.T) []string {
	t.Helper()
	var names []string
	for _, action := range w.snap.Actions() {
		if update, ok := action.(clienttesting.UpdateAction); ok {
			snapshot := update.GetObject().(*snapv1.VolumeSnapshot)
			names = append(names, snapshot.Name)
			if !slices.Equal(snapshot.Finalizers, []string{"a", foreign}) {
				t.Errorf("finalizers %v were written, want the others in their order", snapshot.Finalizers)
			}
		}
	}
	return names
}

// requests counts the requests of a client, as "verb resource namespace".
func requests(f *clienttesting.Fake) map[string]int {
	count := map[string]int{}
	for _, action := range f.Actions() {
		count[strings.TrimSpace(fmt.Sprintf("%s %s %s", action.GetVerb(), action.GetResource().Resource, action.GetNamespace()))]++
	}
	return count
}

func TestSweep(t *testing.T) {
	t.Parallel()
	type claims = []*corev1.PersistentVolumeClaim
	pending := fixture.Claim("c").FromSnapshot("s").Obj()
	abroad := fixture.Claim("c").Namespace("other").FromAbroad(wellknown.GroupSnapshot, wellknown.KindSnapshot, "default", "s").Obj()
	gone := protectedSnapshot().Obj()
	gone.Status = nil
	for name, tc := range map[string]struct {
		world
		want bool
	}{
		"nobody needs it": {world{snapshots: []runtime.Object{protectedSnapshot().Obj(), content(driver)}}, true},
		"a pending claim needs it, says the cache": {world{
			cached: cacheOf{pending}, snapshots: []runtime.Object{protectedSnapshot().Obj(), content(driver)},
		}, false},
		"a pending claim that the cache has not yet needs it": {world{
			live: claims{pending}, snapshots: []runtime.Object{protectedSnapshot().Obj(), content(driver)},
		}, false},
		"a bound claim does not need it": {world{
			cached: cacheOf{fixture.Claim("c").FromSnapshot("s").Bound("pv").Obj()}, live: claims{fixture.Claim("c").FromSnapshot("s").Bound("pv").Obj()},
			snapshots: []runtime.Object{protectedSnapshot().Obj(), content(driver)},
		}, true},
		"a claim being filled from another snapshot does not": {world{
			cached: cacheOf{fixture.Claim("c").FromSnapshot("other").Obj()}, live: claims{fixture.Claim("c").FromSnapshot("other").Obj()},
			snapshots: []runtime.Object{protectedSnapshot().Obj(), content(driver)},
		}, true},
		"one of another namespace needs it, says the cache": {world{
			cached: cacheOf{abroad}, grants: granted, snapshots: []runtime.Object{protectedSnapshot().Obj(), content(driver)},
		}, false},
		"one of another namespace that the cache has not yet needs it": {world{
			live: claims{abroad}, grants: granted, snapshots: []runtime.Object{protectedSnapshot().Obj(), content(driver)},
		}, false},
		"one of another namespace without a grant does not": {world{
			cached: cacheOf{abroad}, live: claims{abroad}, grants: noGrants, snapshots: []runtime.Object{protectedSnapshot().Obj(), content(driver)},
		}, true},
		"nor does one where the gate is off": {world{
			cached: cacheOf{abroad}, live: claims{abroad}, snapshots: []runtime.Object{protectedSnapshot().Terminating().Obj(), content(driver)},
		}, true},
		"a create whose claim is gone needs it": {world{
			creates: creates{source.SnapshotKey("default", "s"): true}, snapshots: []runtime.Object{protectedSnapshot().Obj(), content(driver)},
		}, false},
		"it belongs to another driver":            {world{snapshots: []runtime.Object{protectedSnapshot().Obj(), content("other.test")}}, false},
		"its content is gone":                     {world{snapshots: []runtime.Object{protectedSnapshot().Obj()}}, true},
		"it never had a content":                  {world{snapshots: []runtime.Object{gone}}, true},
		"it is not protected":                     {world{snapshots: []runtime.Object{fixture.Snapshot("s").Finalizer(foreign).Obj(), content(driver)}}, false},
		"it is being deleted and nobody needs it": {world{snapshots: []runtime.Object{protectedSnapshot().Terminating().Obj(), content(driver)}}, true},
		"made from a content that is another driver's": {world{snapshots: []runtime.Object{
			func() *snapv1.VolumeSnapshot {
				s := gone.DeepCopy()
				s.Spec.Source.VolumeSnapshotContentName = new("content")
				return s
			}(), content("other.test"),
		}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := tc.controller(t)
			if err := c.sweep(t.Context(), t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := len(tc.stripped(t)) == 1; got != tc.want {
				t.Errorf("stripped: %v, want %v", got, tc.want)
			}
		})
	}
}

// What the write of one snapshot may meet.
func TestStrip(t *testing.T) {
	t.Parallel()
	snapshots := schema.GroupResource{Group: wellknown.GroupSnapshot, Resource: "volumesnapshots"}
	for name, tc := range map[string]struct {
		err  error
		want string
	}{
		"other writers, again and again": {apierrors.NewConflict(snapshots, "s", errors.New("changed")), ""},
		"it is gone":                     {apierrors.NewNotFound(snapshots, "s"), ""},
		"no right to write":              {apierrors.NewForbidden(snapshots, "s", nil), "grant the verb update"},
		"no answer":                      {errors.New("connection refused"), "connection refused"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{snapshots: []runtime.Object{protectedSnapshot().Obj(), content(driver)}}
			c := w.controller(t)
			fail(&w.snap.Fake, "update", "volumesnapshots", tc.err)
			err := c.sweep(t.Context(), t.Context())
			if (err != nil) != (tc.want != "") || (err != nil && !strings.Contains(err.Error(), tc.want)) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
}

// Between the list and the write the snapshot is looked at again: it may be another one, or in use by now.
func TestTheLiveSnapshotDecides(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(live *snapv1.VolumeSnapshot){
		"another one has taken its name": func(live *snapv1.VolumeSnapshot) { live.UID = "other" },
		"it was stripped meanwhile":      func(live *snapv1.VolumeSnapshot) { live.Finalizers = []string{"a"} },
		"it got another content":         func(live *snapv1.VolumeSnapshot) { live.Status.BoundVolumeSnapshotContentName = new("new") },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{snapshots: []runtime.Object{protectedSnapshot().Obj(), content(driver)}}
			c := w.controller(t)
			w.snap.PrependReactor("get", "volumesnapshots", func(clienttesting.Action) (bool, runtime.Object, error) {
				live := protectedSnapshot().Obj()
				change(live)
				return true, live, nil
			})
			if err := c.sweep(t.Context(), t.Context()); err != nil {
				t.Fatal(err)
			}
			if got := w.stripped(t); len(got) != 0 {
				t.Errorf("stripped %v", got)
			}
		})
	}
	t.Run("a restore has begun meanwhile", func(t *testing.T) {
		t.Parallel()
		w := &world{creates: creates{}, snapshots: []runtime.Object{protectedSnapshot().Obj(), content(driver)}}
		c := w.controller(t)
		w.snap.PrependReactor("get", "volumesnapshots", func(clienttesting.Action) (bool, runtime.Object, error) {
			w.creates[source.SnapshotKey("default", "s")] = true
			return false, nil, nil
		})
		if err := c.sweep(t.Context(), t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := w.stripped(t); len(got) != 0 {
			t.Errorf("stripped %v", got)
		}
	})
}

// A sweep reads no more than it must: nothing but the list when no snapshot is left over, and the claims only of the
// namespaces in question.
func TestWhatASweepReads(t *testing.T) {
	t.Parallel()
	other := fixture.Snapshot("t").Namespace("other").Finalizer("a", wellknown.FinalizerSnapshotSource, foreign).Ready("content", "").Obj()
	for name, tc := range map[string]struct {
		world
		wantClaims, wantSnapshots map[string]int
	}{
		"nothing is protected": {
			world{snapshots: []runtime.Object{fixture.Snapshot("s").Obj()}},
			map[string]int{}, map[string]int{"list volumesnapshots": 1},
		},
		"all are in use": {
			world{cached: cacheOf{fixture.Claim("c").FromSnapshot("s").Obj()}, snapshots: []runtime.Object{protectedSnapshot().Obj()}},
			map[string]int{}, map[string]int{"list volumesnapshots": 1},
		},
		"two are left over": {
			world{snapshots: []runtime.Object{protectedSnapshot().Obj(), other, content(driver)}},
			map[string]int{"list persistentvolumeclaims default": 1, "list persistentvolumeclaims other": 1},
			map[string]int{
				"list volumesnapshots": 1, "get volumesnapshotcontents": 2, "get volumesnapshots default": 1, "get volumesnapshots other": 1,
				"update volumesnapshots default": 1, "update volumesnapshots other": 1,
			},
		},
		"claims may come from anywhere": {
			world{grants: noGrants, snapshots: []runtime.Object{protectedSnapshot().Obj(), content("other.test")}},
			map[string]int{"list persistentvolumeclaims": 1},
			map[string]int{"list volumesnapshots": 1, "get volumesnapshotcontents": 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := tc.controller(t)
			if err := c.sweep(t.Context(), t.Context()); err != nil {
				t.Fatal(err)
			}
			if got, want := fmt.Sprint(requests(&tc.client.Fake)), fmt.Sprint(tc.wantClaims); got != want {
				t.Errorf("requests about claims %s, want %s", got, want)
			}
			if got, want := fmt.Sprint(requests(&tc.snap.Fake)), fmt.Sprint(tc.wantSnapshots); got != want {
				t.Errorf("requests about snapshots %s, want %s", got, want)
			}
		})
	}
}

func TestNewNamesEveryMistake(t *testing.T) {
	t.Parallel()
	_, err := New(Config{})
	for _, want := range []string{"snapshotprotect", "Claims", "no Driver", "Interval"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not mention %q", err, want)
		}
	}
}

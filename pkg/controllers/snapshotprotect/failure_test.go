package snapshotprotect

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	snapv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clienttesting "k8s.io/client-go/testing"
	gatewayv1beta1 "sigs.k8s.io/gateway-api/apis/v1beta1"

	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// Nothing is concluded from a read that fails.
func TestAFailedReadKeepsTheFinalizer(t *testing.T) {
	t.Parallel()
	broken, unread := errors.New("broken"), errors.New("grants are not in sync")
	for name, tc := range map[string]struct {
		prepare func(w *world)
		want    error
	}{
		"of the grants, for a claim of the cache": {func(w *world) {
			w.cached[0] = fixture.Claim("c").Namespace("other").FromAbroad(wellknown.GroupSnapshot, wellknown.KindSnapshot, "default", "s").Obj()
		}, unread},
		"of the grants, for a claim that the cache has not yet": {func(w *world) {
			claim := fixture.Claim("c").Namespace("other").FromAbroad(wellknown.GroupSnapshot, wellknown.KindSnapshot, "default", "s").Obj()
			if err := w.client.Tracker().Add(claim); err != nil {
				panic(err)
			}
		}, unread},
		"of the snapshots": {func(w *world) { fail(&w.snap.Fake, "list", "volumesnapshots", broken) }, broken},
		"of the claims":    {func(w *world) { fail(&w.client.Fake, "list", "persistentvolumeclaims", broken) }, broken},
		"of a content":     {func(w *world) { fail(&w.snap.Fake, "get", "volumesnapshotcontents", broken) }, broken},
		"of the snapshot":  {func(w *world) { fail(&w.snap.Fake, "get", "volumesnapshots", broken) }, broken},
		"of a content, forbidden": {func(w *world) {
			fail(&w.snap.Fake, "get", "volumesnapshotcontents", apierrors.NewForbidden(schema.GroupResource{}, "content", broken))
		}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{
				cached:    cacheOf{fixture.Claim("c").Obj()},
				snapshots: []runtime.Object{protectedSnapshot().Obj(), content(driver)},
				grants:    func(string) ([]*gatewayv1beta1.ReferenceGrant, error) { return nil, unread },
			}
			c := w.controller(t)
			tc.prepare(w)
			err := c.sweep(t.Context(), t.Context())
			if err == nil || (tc.want != nil && !errors.Is(err, tc.want)) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
			if got := w.stripped(t); len(got) != 0 {
				t.Errorf("stripped %v", got)
			}
		})
	}
}

// others are snapshots that nobody uses, one of each namespace.
func others(namespaces ...string) []runtime.Object {
	objects := []runtime.Object{content(driver)}
	for _, namespace := range namespaces {
		objects = append(objects, fixture.Snapshot("s").Namespace(namespace).UID(namespace).
			Finalizer("a", wellknown.FinalizerSnapshotSource, foreign).Ready("content", "1Gi").Obj())
	}
	return objects
}

// What goes wrong with one snapshot is reported, and does not keep the others.
func TestOneSnapshotDoesNotKeepTheOthers(t *testing.T) {
	t.Parallel()
	snapshots := schema.GroupResource{Group: wellknown.GroupSnapshot, Resource: "volumesnapshots"}
	ofB := func(action clienttesting.Action) bool { return action.GetNamespace() == "b" }
	for name, tc := range map[string]struct {
		verb, resource string
		on             func(action clienttesting.Action) bool
		err            error
		claims         bool // the client of claims fails, not that of snapshots
	}{
		"a webhook refuses the update":     {verb: "update", resource: "volumesnapshots", on: ofB, err: apierrors.NewForbidden(snapshots, "s", errors.New("denied by policy"))},
		"a webhook is away":                {verb: "update", resource: "volumesnapshots", on: ofB, err: apierrors.NewInternalError(errors.New("failed calling webhook"))},
		"it is invalid by a later schema":  {verb: "update", resource: "volumesnapshots", on: ofB, err: apierrors.NewInvalid(schema.GroupKind{Kind: "VolumeSnapshot"}, "s", nil)},
		"it cannot be read":                {verb: "get", resource: "volumesnapshots", on: ofB, err: errors.New("broken")},
		"the claims around cannot be read": {verb: "list", resource: "persistentvolumeclaims", on: ofB, err: errors.New("broken"), claims: true},
		"its content has an impossible name": {
			verb: "get", resource: "volumesnapshotcontents", err: errors.New(`invalid resource name "x/y": [may not contain '/']`),
			on: func(action clienttesting.Action) bool { return action.(clienttesting.GetAction).GetName() == "x/y" },
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := &world{snapshots: others("a", "b", "c")}
			w.snapshots[2].(*snapv1.VolumeSnapshot).Status.BoundVolumeSnapshotContentName = nil
			w.snapshots[2].(*snapv1.VolumeSnapshot).Spec.Source.VolumeSnapshotContentName = new("content")
			if strings.Contains(tc.resource, "contents") {
				w.snapshots[2].(*snapv1.VolumeSnapshot).Spec.Source.VolumeSnapshotContentName = new("x/y")
			}
			c := w.controller(t)
			client := &w.snap.Fake
			if tc.claims {
				client = &w.client.Fake
			}
			client.PrependReactor(tc.verb, tc.resource, func(action clienttesting.Action) (bool, runtime.Object, error) {
				return tc.on(action), nil, tc.err
			})
			err := c.sweep(t.Context(), t.Context())
			if err == nil || !strings.Contains(err.Error(), tc.err.Error()) {
				t.Errorf("error %v, want %v", err, tc.err)
			}
			if got := w.protectedIn(t); !slices.Equal(got, []string{"b"}) {
				t.Errorf("still protected: namespaces %v, want b", got)
			}
		})
	}
}

// protectedIn returns the namespaces whose snapshot has our finalizer.
func (w *world) protectedIn(t *testing.T) []string {
	t.Helper()
	list, err := w.snap.SnapshotV1().VolumeSnapshots("").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var namespaces []string
	for i := range list.Items {
		if protected(&list.Items[i]) {
			namespaces = append(namespaces, list.Items[i].Namespace)
		}
	}
	slices.Sort(namespaces)
	return namespaces
}

// The first page of a list that breaks off is used.
func TestAListOfSnapshotsBreaksOff(t *testing.T) {
	t.Parallel()
	w := &world{snapshots: others("a")}
	c := w.controller(t)
	pages := 0
	w.snap.PrependReactor("list", "volumesnapshots", func(clienttesting.Action) (bool, runtime.Object, error) {
		if pages++; pages > 1 {
			return true, nil, apierrors.NewResourceExpired("the continue token is too old")
		}
		page := &snapv1.VolumeSnapshotList{Items: []snapv1.VolumeSnapshot{*w.snapshots[1].(*snapv1.VolumeSnapshot)}}
		page.Continue = "more"
		return true, page, nil
	})
	if err := c.sweep(t.Context(), t.Context()); !apierrors.IsResourceExpired(err) {
		t.Errorf("error %v", err)
	}
	if got := w.stripped(t); len(got) != 1 {
		t.Errorf("stripped %v, want the one of the first page", got)
	}
}

// A claim that uses a snapshot counts also when another one is not known to, whichever comes first.
func TestUsage(t *testing.T) {
	t.Parallel()
	unread := errors.New("not in sync")
	grants := func(string) ([]*gatewayv1beta1.ReferenceGrant, error) { return nil, unread }
	own := *fixture.Claim("c").FromSnapshot("s").Obj()
	abroad := *fixture.Claim("c").Namespace("other").FromAbroad(wellknown.GroupSnapshot, wellknown.KindSnapshot, "default", "s").Obj()
	none := *fixture.Claim("d").Obj()
	key := source.SnapshotKey("default", "s")
	for name, tc := range map[string]struct {
		claims []corev1.PersistentVolumeClaim
		want   string
	}{
		"nobody":                   {nil, "map[]"},
		"without a source":         {[]corev1.PersistentVolumeClaim{none}, "map[]"},
		"one uses it":              {[]corev1.PersistentVolumeClaim{none, own}, "map[" + key + ":<nil>]"},
		"one uses it, one may":     {[]corev1.PersistentVolumeClaim{own, abroad}, "map[" + key + ":<nil>]"},
		"one may, one uses it":     {[]corev1.PersistentVolumeClaim{abroad, own}, "map[" + key + ":<nil>]"},
		"one may and nobody knows": {[]corev1.PersistentVolumeClaim{abroad}, "map[" + key + ":claim other/c may be using VolumeSnapshot default/s: not in sync]"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			used := usage{}
			used.add(tc.claims, grants)
			if got := fmt.Sprint(used); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

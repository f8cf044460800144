package provision

import (
	"errors"
	"testing"

	snapfake "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clienttesting "k8s.io/client-go/testing"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

var snapshots = schema.GroupResource{Group: wellknown.GroupSnapshot, Resource: "volumesnapshots"}

// A source claim is protected by the claim with the UID that was read. A request is made only when the cache does not show
// the finalizer on that claim, and only a new create depends on it.
func TestProtectAClaim(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		uid                  types.UID
		finalizer            bool // is there before
		fails, outstanding   bool
		wantErr, wantProtect bool
	}{
		"without the finalizer":                  {uid: "s", wantProtect: true},
		"with it, no request is made":            {uid: "s", finalizer: true, fails: true, wantProtect: true},
		"created anew, with the finalizer":       {uid: "old", finalizer: true, wantErr: true, wantProtect: true},
		"created anew":                           {uid: "old", wantErr: true},
		"the API server fails":                   {uid: "s", fails: true, wantErr: true},
		"the API server fails, call outstanding": {uid: "s", fails: true, outstanding: true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				b := fixture.Claim("src").UID("s")
				if tc.finalizer {
					b = b.Finalizer(wellknown.FinalizerCloneSource)
				}
				w.put(b.Obj())
				if tc.fails {
					w.api.failing(func(string, string, string) error { return errors.New("no connection") })
				}
				plan := &Plan{Source: source.Reference{Kind: source.Claim, KindName: wellknown.KindClaim, Namespace: "default", Name: "src"}, SourceUID: tc.uid}
				if err := w.c.protectSource(t.Context(), plan, nil, tc.outstanding); (err != nil) != tc.wantErr {
					t.Errorf("error %v, want one: %v", err, tc.wantErr)
				}
				if got := has(w.live("src").Finalizers, wellknown.FinalizerCloneSource); got != tc.wantProtect {
					t.Errorf("protected: %v", got)
				}
			})
		})
	}
}

// A snapshot that was just read is not read again unless somebody else has written it since. Without the right to update
// snapshots, a restore goes on without protection.
func TestProtectASnapshot(t *testing.T) {
	t.Parallel()
	conflict, forbidden, broken := apierrors.NewConflict(snapshots, "snap", nil), apierrors.NewForbidden(snapshots, "snap", nil), errors.New("no connection")
	for name, tc := range map[string]struct {
		read, finalizer      bool // before
		err                  error
		times                int // so often
		outstanding          bool
		gets, updates        int
		wantErr, wantProtect bool
	}{
		"not read":                         {gets: 1, updates: 1, wantProtect: true},
		"just read":                        {read: true, updates: 1, wantProtect: true},
		"just read, with the finalizer":    {read: true, finalizer: true, wantProtect: true},
		"not read, with the finalizer":     {finalizer: true, gets: 1, wantProtect: true},
		"just read, and written meanwhile": {read: true, err: conflict, times: 1, gets: 1, updates: 2, wantProtect: true},
		"just read, and it fails":          {read: true, err: broken, times: 1, updates: 1, wantErr: true},
		"it fails, call outstanding":       {read: true, err: broken, times: 1, updates: 1, outstanding: true},
		"just read, and forbidden":         {read: true, err: forbidden, times: 9, updates: 1},
		"not read, and forbidden":          {err: forbidden, times: 9, gets: 1, updates: 1},
	} {
		t.Run(name, func(t *testing.T) {
			var client *snapfake.Clientset
			inWorld(t, func(cfg *Config) { client = withSnapshot(cfg) }, func(t *testing.T, w *world) {
				snapshot, err := client.SnapshotV1().VolumeSnapshots("default").Get(t.Context(), "snap", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				if tc.finalizer {
					snapshot.Finalizers = []string{wellknown.FinalizerSnapshotSource}
					if _, err := client.SnapshotV1().VolumeSnapshots("default").Update(t.Context(), snapshot, metav1.UpdateOptions{}); err != nil {
						t.Fatal(err)
					}
				}
				plan := &Plan{Source: source.Reference{Kind: source.Snapshot, KindName: wellknown.KindSnapshot, Namespace: "default", Name: "snap"}, SourceUID: "uid-of-snap"}
				failures := tc.times
				client.PrependReactor("update", "volumesnapshots", func(clienttesting.Action) (bool, runtime.Object, error) {
					failures--
					return failures >= 0, nil, tc.err
				})
				client.ClearActions()
				asRead := snapshot
				if !tc.read {
					asRead = nil
				}
				if err := w.c.protectSource(t.Context(), plan, asRead, tc.outstanding); (err != nil) != tc.wantErr {
					t.Errorf("error %v, want one: %v", err, tc.wantErr)
				}
				made := map[string]int{}
				for _, action := range client.Actions() {
					made[action.GetVerb()]++
				}
				if made["get"] != tc.gets || made["update"] != tc.updates {
					t.Errorf("%d GET and %d UPDATE requests, want %d and %d", made["get"], made["update"], tc.gets, tc.updates)
				}
				if got := protects(t, client); got != tc.wantProtect {
					t.Errorf("protected: %v", got)
				}
			})
		})
	}
}

// A snapshot is released once, when that is due. What cannot be read or written now is tried again; what is gone, or may
// not be written, is forgotten.
func TestReleaseASnapshot(t *testing.T) {
	t.Parallel()
	name := types.NamespacedName{Namespace: "default", Name: "snap"}
	for test, tc := range map[string]struct {
		due  types.UID // "" for not due
		err  error     // of the update
		want loop.Verdict
		kept bool // the finalizer is still there
		left bool // it is still due
	}{
		"due":                     {due: "uid-of-snap", want: loop.Done()},
		"not due":                 {want: loop.Done(), kept: true},
		"created anew":            {due: "old", want: loop.Done(), kept: true},
		"the API server fails":    {due: "uid-of-snap", err: errors.New("no connection"), want: loop.Again(), kept: true, left: true},
		"it may not be written":   {due: "uid-of-snap", err: apierrors.NewForbidden(snapshots, "snap", nil), want: loop.Done(), kept: true},
		"it is gone by the write": {due: "uid-of-snap", err: apierrors.NewNotFound(snapshots, "snap"), want: loop.Done(), kept: true},
	} {
		t.Run(test, func(t *testing.T) {
			var client *snapfake.Clientset
			inWorld(t, func(cfg *Config) { client = withSnapshot(cfg) }, func(t *testing.T, w *world) {
				plan := &Plan{Source: source.Reference{Kind: source.Snapshot, KindName: wellknown.KindSnapshot, Namespace: "default", Name: "snap"}, SourceUID: "uid-of-snap"}
				if err := w.c.protectSource(t.Context(), plan, nil, false); err != nil {
					t.Fatal(err)
				}
				if tc.err != nil {
					client.PrependReactor("update", "volumesnapshots", func(clienttesting.Action) (bool, runtime.Object, error) { return true, nil, tc.err })
				}
				if tc.due != "" {
					w.c.releases.add(name, tc.due)
				}
				if got := w.c.syncRelease(t.Context(), name); got != tc.want {
					t.Errorf("got %s, want %s", got, tc.want)
				}
				if _, left := w.c.releases.get(name); left != tc.left || protects(t, client) != tc.kept {
					t.Errorf("due %v, protected %v", left, protects(t, client))
				}
			})
		})
	}
}

// A claim needs no volume when one of its own is known, wherever that stands.
func TestClaimsThatNeedAVolume(t *testing.T) {
	t.Parallel()
	claim := fixture.Claim("c").UID("uid-of-c").Obj()
	for name, tc := range map[string]struct {
		prepare func(w *world)
		bound   bool
		want    bool
	}{
		"nothing is known":                 {func(*world) {}, false, true},
		"it is bound":                      {func(*world) {}, true, false},
		"its PersistentVolume is saved":    {func(w *world) { w.c.creates.put(create{claim: claim, saved: "pvc-uid-of-c"}) }, false, false},
		"a create is remembered":           {func(w *world) { w.c.creates.put(create{claim: claim}) }, false, true},
		"its PersistentVolume is cached":   {func(w *world) { w.put(fixture.PV("pvc-uid-of-c").Driver(driverName).BoundTo(claim).Obj()) }, false, false},
		"another's PersistentVolume is so": {func(w *world) { w.put(fixture.PV("pvc-uid-of-c").Driver(driverName).Obj()) }, false, true},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				tc.prepare(w)
				asked := claim.DeepCopy()
				if tc.bound {
					asked.Spec.VolumeName = "pv"
				}
				if got := w.c.needsVolume(asked); got != tc.want {
					t.Errorf("got %v, want %v", got, tc.want)
				}
			})
		})
	}
}

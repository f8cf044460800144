package cluster

import (
	"errors"
	"slices"
	"testing"

	snapv1 "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	snapfake "github.com/kubernetes-csi/external-snapshotter/client/v8/clientset/versioned/fake"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

var (
	claimName  = types.NamespacedName{Namespace: "ns", Name: "c"}
	conflict   = apierrors.NewConflict(schema.GroupResource{Resource: "persistentvolumeclaims"}, "c", errors.New("changed"))
	forbidden  = apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumeclaims"}, "c", errors.New("no"))
	notFound   = apierrors.NewNotFound(schema.GroupResource{Resource: "persistentvolumeclaims"}, "c")
	invalid    = apierrors.NewInvalid(schema.GroupKind{Kind: "PersistentVolume"}, "pv", nil)
	liveObject = metav1.ObjectMeta{Namespace: "ns", Name: "c", UID: "u", Annotations: map[string]string{"users": "data"}}
)

// refuse makes the first n requests with this verb fail with err, and counts all of them.
func refuse(f *clienttesting.Fake, verb string, n int, err error) *int {
	count := 0
	f.PrependReactor(verb, "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		count++
		if count <= n {
			return true, nil, err
		}
		return false, nil, nil
	})
	return &count
}

func addX(claim *corev1.PersistentVolumeClaim) bool {
	finalizers, changed := AddFinalizer(claim.Finalizers, "x")
	claim.Finalizers = finalizers
	return changed
}

func TestUpdateClaim(t *testing.T) {
	t.Parallel()
	const always = 1000
	for name, tc := range map[string]struct {
		uid                types.UID
		finalizers         []string
		verb               string
		times              int
		err                error
		wantErr            error
		wantGets, wantPuts int
	}{
		"it is read and written once":             {uid: "u", wantGets: 1, wantPuts: 1},
		"any UID will do when none is asked for":  {uid: "", wantGets: 1, wantPuts: 1},
		"nothing to do writes nothing":            {uid: "u", finalizers: []string{"x"}, wantGets: 1},
		"another claim of that name is left":      {uid: "other", wantErr: ErrGone, wantGets: 1},
		"a conflict starts again with a read":     {uid: "u", verb: "update", times: 2, err: conflict, wantGets: 3, wantPuts: 3},
		"conflicts without end are an error":      {uid: "u", verb: "update", times: always, err: conflict, wantErr: conflict, wantGets: 5, wantPuts: 5},
		"gone at the read":                        {uid: "u", verb: "get", times: 1, err: notFound, wantErr: ErrGone, wantGets: 1},
		"gone at the write":                       {uid: "u", verb: "update", times: 1, err: notFound, wantErr: ErrGone, wantGets: 1, wantPuts: 1},
		"other errors are not tried again":        {uid: "u", verb: "update", times: 1, err: forbidden, wantErr: forbidden, wantGets: 1, wantPuts: 1},
		"a read that fails is not 'not there'":    {uid: "u", verb: "get", times: 1, err: forbidden, wantErr: forbidden, wantGets: 1},
		"a conflict at the read is like no other": {uid: "u", verb: "get", times: 1, err: conflict, wantGets: 2, wantPuts: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			claim := &corev1.PersistentVolumeClaim{ObjectMeta: *liveObject.DeepCopy()}
			claim.Finalizers = tc.finalizers
			client := fake.NewClientset(claim)
			gets, puts := refuse(&client.Fake, "get", 0, nil), refuse(&client.Fake, "update", 0, nil)
			switch tc.verb {
			case "get":
				gets = refuse(&client.Fake, "get", tc.times, tc.err)
			case "update":
				puts = refuse(&client.Fake, "update", tc.times, tc.err)
			}
			got, err := UpdateClaim(t.Context(), client, claimName, tc.uid, addX)
			if !errors.Is(err, tc.wantErr) {
				t.Fatalf("error %v, want %v", err, tc.wantErr)
			}
			if *gets != tc.wantGets || *puts != tc.wantPuts {
				t.Errorf("%d reads and %d writes, want %d and %d", *gets, *puts, tc.wantGets, tc.wantPuts)
			}
			if err == nil && (!slices.Contains(got.Finalizers, "x") || got.Annotations["users"] != "data") {
				t.Errorf("the result is not what is in the API server now: %v", got.ObjectMeta)
			}
			if err != nil && got != nil {
				t.Errorf("an object came with the error: %v", got)
			}
		})
	}
}

func TestUpdateSnapshot(t *testing.T) {
	t.Parallel()
	client := snapfake.NewSimpleClientset(&snapv1.VolumeSnapshot{ObjectMeta: *liveObject.DeepCopy()}) //nolint:staticcheck // the module has no other
	puts := refuse(&client.Fake, "update", 1, conflict)
	got, err := UpdateSnapshot(t.Context(), client, claimName, "u", func(s *snapv1.VolumeSnapshot) bool {
		s.Finalizers, _ = AddFinalizer(s.Finalizers, "x")
		return true
	})
	if err != nil || *puts != 2 || !slices.Contains(got.Finalizers, "x") {
		t.Errorf("got %v, %v after %d writes", got, err, *puts)
	}
	if _, err := UpdateSnapshot(t.Context(), client, claimName, "other", nil); !errors.Is(err, ErrGone) {
		t.Errorf("error %v, want %v", err, ErrGone)
	}
}

// The result is a slice of its own: the one that came in may belong to a cache.
func TestFinalizersAreNotChangedInPlace(t *testing.T) {
	t.Parallel()
	before := append(make([]string, 0, 8), "a", "b", "c")
	added, changed := AddFinalizer(before, "d")
	if want := []string{"a", "b", "c", "d"}; !changed || !slices.Equal(added, want) {
		t.Errorf("added: %v, want %v", added, want)
	}
	if got := before[:4][3]; got != "" {
		t.Errorf("adding wrote %q into the array of the argument", got)
	}
	removed, changed := RemoveFinalizer(before, "b")
	if want := []string{"a", "c"}; !changed || !slices.Equal(removed, want) {
		t.Errorf("removed: %v, want %v", removed, want)
	}
	if want := []string{"a", "b", "c"}; !slices.Equal(before, want) {
		t.Errorf("removing made %v of the argument, want %v", before, want)
	}
	if _, changed := AddFinalizer(before, "a"); changed {
		t.Error("a finalizer was added twice")
	}
	if _, changed := RemoveFinalizer(before, "d"); changed {
		t.Error("removing what is not there is a change")
	}
}

func TestPatchPVFinalizer(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		uid     types.UID
		remove  bool
		times   int
		err     error
		wantErr error
		want    int // patches
	}{
		"it is one request":                            {uid: "u", want: 1},
		"a removal of what is gone is done":            {uid: "u", remove: true, times: 1, err: notFound, want: 1},
		"an addition to what is gone is not":           {uid: "u", times: 1, err: notFound, wantErr: ErrGone, want: 1},
		"a conflict with another one's UID: gone":      {uid: "other", times: 1, err: conflict, wantErr: ErrGone, want: 1},
		"a UID that is invalid: gone":                  {uid: "other", times: 1, err: invalid, wantErr: ErrGone, want: 1},
		"any other thing invalid is an error":          {uid: "u", times: 1, err: invalid, wantErr: invalid, want: 1},
		"a removal from another one of that name":      {uid: "other", remove: true, times: 1, err: conflict, want: 1},
		"a conflict with other writers is tried again": {uid: "u", times: 2, err: conflict, want: 3},
		"a refusal is an error":                        {uid: "u", remove: true, times: 1, err: forbidden, wantErr: forbidden, want: 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := fake.NewClientset(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "u"}})
			patches := refuse(&client.Fake, "patch", tc.times, tc.err)
			err := PatchPVFinalizer(t.Context(), client, FinalizerPatch{PV: "pv", UID: tc.uid, Finalizer: "x", Remove: tc.remove})
			if !errors.Is(err, tc.wantErr) {
				t.Errorf("error %v, want %v", err, tc.wantErr)
			}
			if *patches != tc.want {
				t.Errorf("%d patches, want %d", *patches, tc.want)
			}
		})
	}
}

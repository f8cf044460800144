package cluster

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

// authorizer is what an API server with RBAC says about persistentvolumes.
type authorizer struct {
	*fake.Clientset
	mu       sync.Mutex
	granted  string           // verbs with blanks between them
	review   error            // of a review; nil for none
	evaluate string           // the evaluation error of a review that does not allow
	object   map[string]error // verb → what an admission plugin says to it
	requests []string         // "<verb>" or "review <verb>", in order
}

// newAuthorizer returns an API server with one PersistentVolume that grants these verbs.
func newAuthorizer(granted string) *authorizer {
	a := &authorizer{granted: granted, Clientset: fake.NewClientset(&corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "u", ResourceVersion: "7", Labels: map[string]string{"user": "data"}, Finalizers: []string{"other"}},
	})}
	a.PrependReactor("*", "persistentvolumes", func(action clienttesting.Action) (bool, runtime.Object, error) {
		verb := action.GetVerb()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.requests = append(a.requests, verb)
		if !a.grants(verb) {
			return true, nil, apierrors.NewForbidden(action.GetResource().GroupResource(), "pv", errors.New("cannot "+verb))
		}
		err := a.object[verb]
		return err != nil, nil, err
	})
	a.PrependReactor("create", "selfsubjectaccessreviews", func(action clienttesting.Action) (bool, runtime.Object, error) {
		create, ok := action.(clienttesting.CreateAction)
		if !ok {
			return false, nil, nil
		}
		review, ok := create.GetObject().DeepCopyObject().(*authorizationv1.SelfSubjectAccessReview)
		if !ok {
			return false, nil, nil
		}
		verb := review.Spec.ResourceAttributes.Verb
		a.mu.Lock()
		defer a.mu.Unlock()
		a.requests = append(a.requests, "review "+verb)
		review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: a.grants(verb)}
		if !review.Status.Allowed {
			review.Status.EvaluationError = a.evaluate
		}
		return true, review, a.review
	})
	return a
}

func (a *authorizer) grants(verb string) bool {
	return slices.Contains(strings.Fields(a.granted), verb)
}

func (a *authorizer) change(edit func(*authorizer)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	edit(a)
}

// asked returns the requests since it was last called.
func (a *authorizer) asked() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	requests := a.requests
	a.requests = nil
	return requests
}

func (a *authorizer) finalizers(t *testing.T) []string {
	t.Helper()
	object, err := a.Tracker().Get(corev1.SchemeGroupVersion.WithResource("persistentvolumes"), "", "pv")
	if err != nil {
		t.Fatal(err)
	}
	pv, ok := object.(*corev1.PersistentVolume)
	if !ok || pv.Labels["user"] != "data" {
		t.Errorf("the API server has %v", object)
	}
	return pv.Finalizers
}

func finalizersOf(a *authorizer) *PVFinalizers { return NewPVFinalizers(NewAccess(a, PVResource())) }

var addsX = FinalizerPatch{PV: "pv", UID: "u", Finalizer: "x"}

// Each role gets the change by the means that it grants. What is not granted is asked for once.
func TestFinalizersAreChangedByTheMeansThatAreGranted(t *testing.T) {
	t.Parallel()
	webhook := apierrors.NewForbidden(PVResource(), "pv", errors.New("admission webhook denied the request"))
	unavailable := apierrors.NewServiceUnavailable("starting")
	for name, tc := range map[string]struct {
		granted       string
		prepare       func(*authorizer)
		first, second []string // requests of the first and the second change
		wantErr       bool
		notGranted    bool // the error says so
		denied        bool
	}{
		"patch": {
			granted: "get patch update", first: []string{"patch"}, second: []string{"patch"},
		},
		"update": {
			granted: "get update", first: []string{"patch", "review patch", "review update", "review get", "get", "update"},
			second: []string{"get"}, // it is there
		},
		"neither": {
			granted: "get", first: []string{"patch", "review patch", "review update", "review get"},
			wantErr: true, notGranted: true, denied: true,
		},
		"update, but no get": {
			granted: "update", first: []string{"patch", "review patch", "review update", "review get"},
			wantErr: true, notGranted: true, denied: true,
		},
		"an admission plugin forbids the change of this object": {
			granted: "get patch update", prepare: func(a *authorizer) { a.object = map[string]error{"patch": webhook} },
			first: []string{"patch", "review patch"}, second: []string{"patch"}, wantErr: true,
		},
		"an admission plugin forbids the update of this object": {
			granted: "get update", prepare: func(a *authorizer) { a.object = map[string]error{"update": webhook} },
			first:  []string{"patch", "review patch", "review update", "review get", "get", "update"},
			second: []string{"get", "update"}, wantErr: true,
		},
		"the API server cannot review": {
			granted: "get", prepare: func(a *authorizer) { a.review = unavailable },
			first: []string{"patch", "review patch", "get", "update", "review update"}, wantErr: true, notGranted: true,
		},
		"an authorizer fails": {
			granted: "get update", prepare: func(a *authorizer) { a.evaluate = "webhook authorizer: timeout" },
			first: []string{"patch", "review patch", "get", "update"}, second: []string{"get"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := newAuthorizer(tc.granted)
				if tc.prepare != nil {
					tc.prepare(a)
				}
				f := finalizersOf(a)
				for i, want := range [][]string{tc.first, tc.second} {
					err := f.Write(t.Context(), a, addsX)
					if diff := cmp.Diff(want, a.asked()); diff != "" {
						t.Errorf("requests of change %d (-want +got):\n%s", i+1, diff)
					}
					if (err != nil) != tc.wantErr || errors.Is(err, ErrNotGranted) != tc.notGranted {
						t.Errorf("change %d: error %v", i+1, err)
					}
					if tc.notGranted && !strings.Contains(err.Error(), `add the rule {apiGroups: [""], resources: [persistentvolumes], verbs: [patch]}`) {
						t.Errorf("the error does not name the rule: %v", err)
					}
				}
				if got := f.Denied(); got != tc.denied {
					t.Errorf("denied: %v", got)
				}
				if got := f.Refusal() != nil; got != tc.notGranted {
					t.Errorf("refusal: %v", f.Refusal())
				}
				if got := slices.Contains(a.finalizers(t), "x"); got == tc.wantErr {
					t.Errorf("finalizers %v", a.finalizers(t))
				}
			})
		})
	}
}

// A refusal that no review has confirmed is remembered for a minute, one that is confirmed until the right is granted.
func TestARightThatIsGrantedLaterIsUsed(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		prepare func(*authorizer)
		asks    bool // reviews go on
	}{
		"denied":        {func(*authorizer) {}, true},
		"not confirmed": {func(a *authorizer) { a.review = errors.New("no connection") }, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				a := newAuthorizer("get")
				tc.prepare(a)
				f := finalizersOf(a)
				if err := f.Write(t.Context(), a, addsX); !errors.Is(err, ErrNotGranted) {
					t.Fatal(err)
				}
				a.change(func(a *authorizer) { a.granted = "get patch" })
				time.Sleep(AccessInterval - time.Nanosecond)
				if err := f.Write(t.Context(), a, addsX); !errors.Is(err, ErrNotGranted) {
					t.Errorf("error %v before the minute is over", err)
				}
				time.Sleep(time.Nanosecond)
				if tc.asks {
					f.access.AskAgain(t.Context())
				}
				if err := f.Write(t.Context(), a, addsX); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A refusal that was confirmed outlives reviews that fail: only an answer counts.
func TestAReviewThatFailsGrantsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAuthorizer("get")
		f := finalizersOf(a)
		f.Ask(t.Context())
		a.change(func(a *authorizer) { a.review = errors.New("no connection") })
		for range 10 {
			time.Sleep(AccessInterval)
			f.access.AskAgain(t.Context())
			if !f.Denied() {
				t.Fatal("the right is taken for granted")
			}
		}
	})
}

// At the start nothing is denied that nobody could ask for.
func TestNothingIsDeniedWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newAuthorizer("get")
		a.review = apierrors.NewForbidden(authorizationv1.Resource("selfsubjectaccessreviews"), "", errors.New("starting"))
		f := finalizersOf(a)
		f.Ask(t.Context())
		if f.Denied() || f.Refusal() != nil {
			t.Errorf("denied: %v, refusal %v", f.Denied(), f.Refusal())
		}
	})
}

// Run asks every minute and tells each change of what is granted once, with the rule.
func TestWhatIsGrantedIsLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
		ctx, cancel := context.WithCancel(klog.NewContext(t.Context(), logger))
		a := newAuthorizer("get")
		f := finalizersOf(a)
		f.Ask(ctx)
		asked := 0
		ended := make(chan struct{})
		go func() { defer close(ended); f.Run(ctx, func() { asked++ }) }()
		hour := func(granted string) {
			a.change(func(a *authorizer) { a.granted = granted })
			time.Sleep(time.Hour)
			synctest.Wait()
		}
		hour("get")
		hour("get update")
		hour("get patch")
		a.asked()
		hour("get patch")
		if requests := a.asked(); len(requests) != 0 {
			t.Errorf("nothing is missing, and there are the requests %v", requests)
		}
		cancel()
		<-ended
		if asked != 4*60 {
			t.Errorf("told %d times in four hours", asked)
		}
		underlier, ok := logger.GetSink().(ktesting.Underlier)
		if !ok {
			t.Fatal("the log cannot be read")
		}
		log := underlier.GetBuffer().String()
		for _, line := range []string{"new ones are created without", "are changed with the verb update", "is granted now"} {
			if n := strings.Count(log, line); n != 1 {
				t.Errorf("%q is logged %d times:\n%s", line, n, log)
			}
		}
		if n := strings.Count(log, `verbs: [patch]}`); n < 2 {
			t.Errorf("the rule is not logged:\n%s", log)
		}
	})
}

// An UPDATE changes nothing but the finalizer of what the API server has, and only of the object that is meant.
func TestTheUpdateOfAFinalizer(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		change    FinalizerPatch
		conflicts int
		wantErr   error
		conflict  bool
		want      []string // finalizers
		wantPuts  int
	}{
		"it is added":                         {change: addsX, want: []string{"other", "x"}, wantPuts: 1},
		"it is removed":                       {change: FinalizerPatch{PV: "pv", UID: "u", Finalizer: "other", Remove: true}, wantPuts: 1},
		"it is removed already":               {change: FinalizerPatch{PV: "pv", UID: "u", Finalizer: "x", Remove: true}, want: []string{"other"}},
		"of the version that was decided for": {change: FinalizerPatch{PV: "pv", UID: "u", Finalizer: "x", ResourceVersion: "7"}, want: []string{"other", "x"}, wantPuts: 1},
		"not of another version":              {change: FinalizerPatch{PV: "pv", UID: "u", Finalizer: "x", ResourceVersion: "6"}, conflict: true, want: []string{"other"}},
		"not of another one of the name":      {change: FinalizerPatch{PV: "pv", UID: "v", Finalizer: "x"}, wantErr: ErrGone, want: []string{"other"}},
		"a removal from another is done":      {change: FinalizerPatch{PV: "pv", UID: "v", Finalizer: "other", Remove: true}, want: []string{"other"}},
		"a removal of what is gone is done":   {change: FinalizerPatch{PV: "gone", UID: "u", Finalizer: "other", Remove: true}, want: []string{"other"}},
		"an addition to what is gone is not":  {change: FinalizerPatch{PV: "gone", UID: "u", Finalizer: "x"}, wantErr: ErrGone, want: []string{"other"}},
		"a conflict is tried again":           {change: addsX, conflicts: 2, want: []string{"other", "x"}, wantPuts: 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := newAuthorizer("get update")
			puts := refuse(&a.Fake, "update", tc.conflicts, conflict)
			err := finalizersOf(a).Write(t.Context(), a, tc.change)
			if apierrors.IsConflict(err) != tc.conflict || (!tc.conflict && !errors.Is(err, tc.wantErr)) {
				t.Errorf("error %v", err)
			}
			if got := a.finalizers(t); !slices.Equal(tc.want, got) {
				t.Errorf("finalizers %v, want %v", got, tc.want)
			}
			if *puts != tc.wantPuts {
				t.Errorf("%d updates, want %d", *puts, tc.wantPuts)
			}
		})
	}
}

// A patch for one version is not repeated for another.
func TestAPatchForOneVersion(t *testing.T) {
	t.Parallel()
	client := fake.NewClientset(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv", UID: "u"}})
	var body string
	patches := 0
	client.PrependReactor("patch", "*", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if patch, ok := action.(clienttesting.PatchAction); ok {
			body = string(patch.GetPatch())
		}
		patches++
		return true, nil, conflict
	})
	err := PatchPVFinalizer(t.Context(), client, FinalizerPatch{PV: "pv", UID: types.UID("u"), Finalizer: "x", ResourceVersion: "7"})
	if !apierrors.IsConflict(err) || patches != 1 {
		t.Errorf("error %v after %d patches", err, patches)
	}
	if !strings.Contains(body, `"resourceVersion":"7"`) {
		t.Errorf("the patch is %s", body)
	}
}

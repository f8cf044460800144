package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// written records what reaches the API server: "create message" or "patch".
type written struct {
	mu    sync.Mutex
	lines []string
	fail  func(n int) error // the answer to the n-th request; nil is success
	n     int
}

func (w *written) react(action clienttesting.Action) (bool, runtime.Object, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.n++
	if w.fail != nil {
		if err := w.fail(w.n); err != nil {
			return true, nil, err
		}
	}
	switch action := action.(type) {
	case clienttesting.CreateActionImpl:
		event := action.GetObject().(*corev1.Event)
		w.lines = append(w.lines, "create "+event.Message)
		return true, event, nil
	case clienttesting.PatchActionImpl:
		w.lines = append(w.lines, patched(action.GetPatch()))
		return true, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: action.GetName(), Namespace: action.GetNamespace()}, Count: 2}, nil
	}
	return false, nil, nil
}

// patched says what a patch of countOn is for, "patch" for those of client-go.
func patched(patch []byte) string {
	var change map[string]any
	switch err := json.Unmarshal(patch, &change); {
	case err != nil || len(change) != 1:
		return "patch"
	case change["count"] != nil:
		return fmt.Sprintf("patch count %v", change["count"])
	}
	return "patch time"
}

func (w *written) got() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return append([]string(nil), w.lines...)
}

// bubble is a bubble of time with a writer of events in it.
type bubble struct {
	*testing.T
	events *Events
	w      *written
	log    func() string
}

// flush waits until everything is written.
func (b bubble) flush() {
	b.Helper()
	if err := b.events.Flush(b.Context()); err != nil {
		b.Fatal(err)
	}
}

// eventTest runs test in a bubble; fail is the answer to the n-th request, nil is success for all.
func eventTest(t *testing.T, fail func(n int) error, test func(b bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client, w := fake.NewClientset(), &written{fail: fail}
		client.PrependReactor("*", "events", w.react)
		ctx, log := logged(t, 0)
		events := NewEvents(ctx, client)
		ctx, cancel := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() { ended <- events.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		test(bubble{t, events, w, log})
	})
}

func eventClaim(name string) *corev1.PersistentVolumeClaim {
	return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}}
}

func TestAnEventIsWrittenAndLogged(t *testing.T) {
	t.Parallel()
	eventTest(t, nil, func(b bubble) {
		b.events.Recorder("us").Eventf(eventClaim("c"), corev1.EventTypeNormal, "Provisioning", "try %d", 1)
		b.events.QuietRecorder("lease").Event(eventClaim("d"), corev1.EventTypeNormal, "LeaderElection", "100% quiet")
		b.flush()
		if got := strings.Join(b.w.got(), ","); got != "create try 1,create 100% quiet" && got != "create 100% quiet,create try 1" {
			b.Errorf("written: %s", got)
		}
		if !strings.Contains(b.log(), "try 1") || strings.Contains(b.log(), "quiet") {
			b.Errorf("log: %s", b.log())
		}
	})
}

func TestTheFieldsOfAnEvent(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewClientset()
		ctx, cancel := context.WithCancel(t.Context())
		events := NewEvents(ctx, client)
		ended := make(chan error, 1)
		go func() { ended <- events.Run(ctx) }()
		events.Recorder("us").AnnotatedEventf(eventClaim("c"), map[string]string{"a": "b"}, corev1.EventTypeWarning, "ProvisioningFailed", "no")
		events.Recorder("us").Event(&corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pv"}}, corev1.EventTypeWarning, "VolumeFailedDelete", "no")
		if err := events.Flush(ctx); err != nil {
			t.Fatal(err)
		}
		list, err := client.CoreV1().Events("ns").List(ctx, metav1.ListOptions{})
		if err != nil || len(list.Items) != 1 {
			t.Fatalf("events of the claim: %v, %v", list, err)
		}
		event := list.Items[0]
		if event.Source.Component != "us" || event.ReportingController != "us" || event.Type != corev1.EventTypeWarning || event.Count != 1 ||
			event.Reason != "ProvisioningFailed" || event.Message != "no" || event.Annotations["a"] != "b" || !strings.HasPrefix(event.Name, "c.") ||
			event.InvolvedObject.Kind != "PersistentVolumeClaim" || event.InvolvedObject.APIVersion != "v1" || event.InvolvedObject.UID != "c" ||
			!event.FirstTimestamp.Time.Equal(time.Now()) {
			t.Errorf("event: %+v", event)
		}
		if list, err = client.CoreV1().Events("default").List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 1 {
			t.Errorf("events of the PersistentVolume: %v, %v", list, err)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// Equal events are counted in one object, as client-go does.
func TestEqualEventsAreCounted(t *testing.T) {
	t.Parallel()
	eventTest(t, nil, func(b bubble) {
		for range 3 {
			b.events.Recorder("us").Event(eventClaim("c"), corev1.EventTypeNormal, "r", "same")
		}
		b.flush()
		if got, want := strings.Join(b.w.got(), ","), "create same,patch,patch"; got != want {
			b.Errorf("written %s, want %s", got, want)
		}
	})
}

// A flood of one object is cut off after 25; other objects do not suffer.
func TestAFloodIsCutOff(t *testing.T) {
	t.Parallel()
	eventTest(t, nil, func(b bubble) {
		for n := range 100 {
			b.events.Recorder("us").Event(eventClaim("c"), corev1.EventTypeNormal, fmt.Sprint("reason", n), "m")
		}
		b.events.Recorder("us").Event(eventClaim("d"), corev1.EventTypeNormal, "r", "other")
		b.flush()
		if got := b.w.got(); len(got) != 26 {
			b.Errorf("%d requests, want 25 and one", len(got))
		}
	})
}

// While the API server is away events wait, in order, and all are written in the end.
func TestEventsOutliveTheAPIServersAbsence(t *testing.T) {
	t.Parallel()
	away := true
	var mu sync.Mutex
	eventTest(t, func(int) error {
		mu.Lock()
		defer mu.Unlock()
		if away {
			return errors.New("connection refused")
		}
		return nil
	}, func(b bubble) {
		const objects, each = 300, 5
		for n := range each {
			for object := range objects {
				b.events.Recorder("us").Event(eventClaim(fmt.Sprint("c", object)), corev1.EventTypeNormal, fmt.Sprint("r", n), fmt.Sprintf("%d/%d", object, n))
			}
		}
		ctx, cancel := context.WithTimeout(b.Context(), 10*time.Minute)
		defer cancel()
		if err := b.events.Flush(ctx); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%d events", objects*each)) {
			b.Errorf("flush: %v, want all %d to wait", err, objects*each)
		}
		mu.Lock()
		away = false
		mu.Unlock()
		b.flush()
		got := b.w.got()
		if len(got) != objects*each {
			b.Errorf("%d events were written, want %d", len(got), objects*each)
		}
		last := map[string]int{}
		for _, line := range got {
			var object, n int
			if _, err := fmt.Sscanf(line, "create %d/%d", &object, &n); err != nil {
				b.Fatal(line)
			}
			key := fmt.Sprint(object)
			if n < last[key] {
				b.Errorf("event %d of object %d came after event %d", n, object, last[key])
			}
			last[key] = n
		}
	})
}

// What the API server refuses is given up, what it cannot do now is tried again.
func TestWhichAnswersAreTriedAgain(t *testing.T) {
	t.Parallel()
	terminating := apierrors.NewForbidden(corev1.Resource("events"), "e", errors.New("namespace is terminating"))
	terminating.ErrStatus.Details.Causes = []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}
	for name, tc := range map[string]struct {
		err     error
		want    bool
		wantLog bool
	}{
		"forbidden":             {apierrors.NewForbidden(corev1.Resource("events"), "e", nil), false, true},
		"namespace terminating": {terminating, false, false},
		"too many requests":     {apierrors.NewTooManyRequests("later", 1), true, false},
		"unavailable":           {apierrors.NewServiceUnavailable("later"), true, false},
		"internal":              {apierrors.NewInternalError(errors.New("etcd")), true, false},
		"unauthorized":          {apierrors.NewUnauthorized("the token has expired"), true, false},
		"no answer":             {errors.New("connection reset"), true, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eventTest(t, func(n int) error {
				if n <= 2 {
					return tc.err
				}
				return nil
			}, func(b bubble) {
				b.events.Recorder("us").Event(eventClaim("c"), corev1.EventTypeNormal, "r", "m")
				b.flush()
				if got := len(b.w.got()) == 1; got != tc.want {
					b.Errorf("written in the end: %v, want %v", got, tc.want)
				}
				if got := strings.Contains(b.log(), "refuses event"); got != tc.wantLog {
					b.Errorf("logged: %v, want %v: %s", got, tc.wantLog, b.log())
				}
			})
		})
	}
}

// An event that was counted and has expired in the API server is made anew.
func TestAnExpiredEventIsMadeAgain(t *testing.T) {
	t.Parallel()
	eventTest(t, func(n int) error {
		if n == 2 {
			return apierrors.NewNotFound(corev1.Resource("events"), "e")
		}
		return nil
	}, func(b bubble) {
		for range 2 {
			b.events.Recorder("us").Event(eventClaim("c"), corev1.EventTypeNormal, "r", "m")
		}
		b.flush()
		if got, want := strings.Join(b.w.got(), ","), "create m,create m"; got != want {
			b.Errorf("written %s, want %s", got, want)
		}
	})
}

// A process that was restarted counts on in the event of the one before it, also when that expires just then.
func TestARestartedProcessCountsOn(t *testing.T) {
	t.Parallel()
	exists, expired := apierrors.NewAlreadyExists(corev1.Resource("events"), "e"), apierrors.NewNotFound(corev1.Resource("events"), "e")
	for name, tc := range map[string]struct {
		answers []error // to the first requests
		want    string
	}{
		"it is there":        {[]error{exists}, "patch time,patch count 3"},
		"it expires at once": {[]error{exists, expired}, "create m"},
		"it expires later":   {[]error{exists, nil, expired}, "patch time,create m"},
		"it is sent again":   {[]error{apierrors.NewTooManyRequests("wait", 1), exists}, "patch time,patch count 3"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			eventTest(t, func(n int) error {
				if n <= len(tc.answers) {
					return tc.answers[n-1]
				}
				return nil
			}, func(b bubble) {
				b.events.Recorder("us").Event(eventClaim("c"), corev1.EventTypeNormal, "r", "m")
				b.flush()
				if got := strings.Join(b.w.got(), ","); got != tc.want {
					b.Errorf("written %s, want %s", got, tc.want)
				}
			})
		})
	}
}

// Recording never blocks: what is too much is dropped and said.
func TestTheQueueIsBounded(t *testing.T) {
	t.Parallel()
	ctx, log := logged(t, 0)
	events := NewEvents(ctx, fake.NewClientset())
	for n := range maxQueuedEvents + 1 {
		events.QuietRecorder("us").Event(eventClaim("c"), corev1.EventTypeNormal, "r", fmt.Sprint(n))
	}
	if events.queued() != maxQueuedEvents || strings.Count(log(), "dropped") != 1 {
		t.Errorf("%d events wait, want %d; log: %s", events.queued(), maxQueuedEvents, log())
	}
	stopped, cancel := context.WithCancel(ctx)
	cancel()
	if err := events.Run(stopped); err == nil {
		t.Error("Run does not tell of what was not written")
	}
}

func TestEventsNobodyCanWrite(t *testing.T) {
	t.Parallel()
	ctx, log := logged(t, 0)
	events := NewEvents(ctx, fake.NewClientset())
	events.Recorder("us").Event(nil, corev1.EventTypeNormal, "r", "no object")
	events.Recorder("us").Event(eventClaim("c"), "Strange", "r", "no type")
	if events.queued() != 0 || !strings.Contains(log(), "no object") || !strings.Contains(log(), "Strange") {
		t.Errorf("%d events wait; log: %s", events.queued(), log())
	}
}

// The component is the same after a restart, and differs by driver and by host.
func TestComponent(t *testing.T) {
	t.Parallel()
	got := Component("driver.test", "host")
	if want := "driver.test_host_764e312b-8267-8f05-bec7-0159861c24d8"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	suffix := func(s string) string { return s[strings.LastIndex(s, "_"):] }
	if suffix(got) == suffix(Component("driver.tes", "thost")) || suffix(got) == suffix(Component("driver.test", "other")) {
		t.Error("another driver or host gives the same UUID")
	}
}

// While the events of one namespace cannot be written, those of all others are; the former are dropped after some tries,
// also when they might be taken with another token.
func TestOneNamespaceHoldsNoOtherUp(t *testing.T) {
	t.Parallel()
	for name, refusal := range map[string]error{
		"a webhook fails": apierrors.NewInternalError(errors.New("failed calling webhook")),
		"unauthorized":    apierrors.NewUnauthorized("the token is not known"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			holdsNoOtherUp(t, refusal)
		})
	}
}

func holdsNoOtherUp(t *testing.T, refusal error) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		client, w, tries := fake.NewClientset(), &written{}, 0
		client.PrependReactor("*", "events", func(action clienttesting.Action) (bool, runtime.Object, error) {
			if action.GetNamespace() == "bad" {
				tries++
				return true, nil, refusal
			}
			return w.react(action)
		})
		ctx, log := logged(t, 0)
		ctx, cancel := context.WithCancel(ctx)
		events := NewEvents(ctx, client)
		ended := make(chan error, 1)
		go func() { ended <- events.Run(ctx) }()
		const objects = 20
		for n := range objects {
			bad := eventClaim(fmt.Sprint("c", n))
			bad.Namespace = "bad"
			events.QuietRecorder("us").Event(bad, corev1.EventTypeWarning, "ProvisioningFailed", "no")
		}
		time.Sleep(time.Second)
		for n := range objects {
			events.QuietRecorder("us").Event(eventClaim(fmt.Sprint("c", n)), corev1.EventTypeNormal, "ProvisioningSucceeded", fmt.Sprint(n))
		}
		time.Sleep(time.Second)
		synctest.Wait()
		if got := len(w.got()); got != objects {
			t.Errorf("%d of %d events of the other namespace are written", got, objects)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
		if tries != objects*eventTries || events.queued() != 0 || strings.Count(log(), "Event dropped") != objects {
			t.Errorf("%d tries, %d events wait; want %d and none, and each told once", tries, events.queued(), objects*eventTries)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// The flood of each object is cut off, also when very many are in trouble.
func TestManyFloodsAreCutOff(t *testing.T) {
	t.Parallel()
	eventTest(t, nil, func(b bubble) {
		const objects, rounds = 1400, 28
		for n := range rounds {
			for object := range objects {
				b.events.QuietRecorder("us").Event(eventClaim(fmt.Sprint("c", object)), corev1.EventTypeWarning, fmt.Sprint("r", n), "no")
			}
			b.flush()
		}
		if got := len(b.w.got()); got != objects*25 {
			b.Errorf("%d requests, want 25 for each of %d objects", got, objects)
		}
	})
}

// A message is cut at the boundary of a rune, also when it tells of several events.
func TestMessagesAreShort(t *testing.T) {
	t.Parallel()
	eventTest(t, nil, func(b bubble) {
		for n := range 12 {
			b.events.Recorder("us").Event(eventClaim("c"), corev1.EventTypeWarning, "r", fmt.Sprint(n)+"\xff"+strings.Repeat("€", 1<<20))
		}
		b.flush()
		for _, line := range b.w.got() {
			message := strings.TrimPrefix(line, "create ")
			if len(message) > maxEventBytes || !utf8.ValidString(message) || (message != "patch" && !strings.HasSuffix(message, "€...")) {
				b.Errorf("%d bytes: %.40q", len(message), message)
			}
		}
	})
}

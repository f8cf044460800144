package main

import (
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

func TestOperationOf(t *testing.T) {
	t.Parallel()
	for target, want := range map[string]operation{
		"GET /api/v1/persistentvolumes":                                            {"list", "persistentvolumes"},
		"GET /api/v1/persistentvolumes?watch=true":                                 {"watch", "persistentvolumes"},
		"GET /api/v1/persistentvolumes?allowWatchBookmarks=true&watch=1":           {"watch", "persistentvolumes"},
		"GET /api/v1/persistentvolumes/pv":                                         {"get", "persistentvolumes"},
		"PATCH /api/v1/persistentvolumes/pv":                                       {"patch", "persistentvolumes"},
		"PUT /api/v1/namespaces/ns/persistentvolumeclaims/c":                       {"update", "persistentvolumeclaims"},
		"PUT /api/v1/namespaces/ns/persistentvolumeclaims/c/status":                {"update", "persistentvolumeclaims/status"},
		"POST /api/v1/namespaces/ns/events":                                        {"create", "events"},
		"GET /api/v1/namespaces/ns":                                                {"get", "namespaces"},
		"DELETE /apis/storage.k8s.io/v1/namespaces/ns/csistoragecapacities/x":      {"delete", "csistoragecapacities"},
		"GET /apis/storage.k8s.io/v1/csinodes":                                     {"list", "csinodes"},
		"GET /apis/snapshot.storage.k8s.io/v1/namespaces/ns/volumesnapshots/s?a=b": {"get", "volumesnapshots"},
		"GET /apis/storage.k8s.io/v1":                                              {"get", "/apis/storage.k8s.io/v1"},
		"GET /version":                                                             {"get", "/version"},
	} {
		method, url, _ := strings.Cut(target, " ")
		if got := operationOf(httptest.NewRequest(method, url, nil)); got != want {
			t.Errorf("%s: %v, want %v", target, got, want)
		}
	}
}

// The proxy counts what passes, and passes it unchanged.
func TestProxyCounts(t *testing.T) {
	t.Parallel()
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Header.Get("Authorization") != "Bearer secret" {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		_, _ = w.Write(append([]byte("got "), body...))
	}))
	t.Cleanup(upstream.Close)
	file := t.TempDir() + "/kubeconfig"
	p, err := startProxy(t.Context(), &rest.Config{Host: upstream.URL, BearerToken: "secret"}, file)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stop)
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	before := p.snapshot()
	for range 2 {
		response, err := client.Post(config.Host+"/api/v1/namespaces/ns/events", "text/plain", strings.NewReader("hello"))
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if closeErr := response.Body.Close(); err != nil || closeErr != nil || string(body) != "got hello" || response.ProtoMajor != 2 {
			t.Errorf("answer %q over HTTP/%d, %v, want the body that was sent over HTTP/2", body, response.ProtoMajor, errors.Join(err, closeErr))
		}
	}
	want := map[operation]amount{{"create", "events"}: {Requests: 2, Sent: 10, Received: 18}}
	if diff := cmp.Diff(want, since(before, p.snapshot())); diff != "" {
		t.Errorf("traffic (-want +got):\n%s", diff)
	}
}

func TestQuantile(t *testing.T) {
	t.Parallel()
	var hundred []time.Duration
	for i := range 100 {
		hundred = append(hundred, time.Duration(100-i))
	}
	for name, tc := range map[string]struct {
		values []time.Duration
		q      float64
		want   time.Duration
	}{
		"of nothing":         {nil, 0.5, 0},
		"of one":             {[]time.Duration{7}, 0.99, 7},
		"the median":         {hundred, 0.5, 50},
		"the last but one":   {hundred, 0.99, 99},
		"the median of four": {[]time.Duration{4, 1, 3, 2}, 0.5, 2},
	} {
		if got := quantile(tc.values, tc.q); got != tc.want {
			t.Errorf("%s: %d, want %d", name, got, tc.want)
		}
	}
}

func TestProcFiles(t *testing.T) {
	t.Parallel()
	cpu, err := parseCPU("42 (a) b) S 1 2 3 4 5 6 7 8 9 10 150 25 0 0 20 0 7 0 99 1000 2000")
	if err != nil || cpu != 1750*time.Millisecond {
		t.Errorf("CPU time %s, %v, want 1.75s", cpu, err)
	}
	if _, err := parseCPU("42 (a) S 1"); err == nil {
		t.Error("a short line is no error")
	}
	const status = "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n"
	if got, err := parseMemory(status, "VmRSS"); err != nil || got != 1<<20 {
		t.Errorf("resident %d, %v, want 1 MiB", got, err)
	}
	if _, err := parseMemory(status, "RssAnon"); err == nil {
		t.Error("a line that is not there is no error")
	}
}

func TestWatcherFollowsVolumes(t *testing.T) {
	t.Parallel()
	w := newWatcher()
	pv := func(claim string, phase corev1.PersistentVolumePhase) *corev1.PersistentVolume {
		return &corev1.PersistentVolume{
			ObjectMeta: metav1.ObjectMeta{Name: "pv-" + claim},
			Spec:       corev1.PersistentVolumeSpec{ClaimRef: &corev1.ObjectReference{Name: claim}},
			Status:     corev1.PersistentVolumeStatus{Phase: phase},
		}
	}
	at := time.Unix(1, 0)
	w.see(pv("a", corev1.VolumePending), false, at)
	w.see(pv("a", corev1.VolumeBound), false, at.Add(time.Second))
	w.see(pv("a", corev1.VolumeBound), false, at.Add(time.Second))
	w.see(pv("b", corev1.VolumeAvailable), false, at)
	got := w.now()
	if len(got.saved) != 2 || !got.saved["a"].Equal(at) || got.bound != 1 {
		t.Errorf("saved %v, %d bound, want a since its first event and b, one bound", got.saved, got.bound)
	}
	w.see(pv("a", corev1.VolumeReleased), false, at)
	w.see(cache.DeletedFinalStateUnknown{Key: "pv-a", Obj: pv("a", corev1.VolumeReleased)}, true, at)
	if got := w.now(); len(got.saved) != 1 || got.bound != 0 {
		t.Errorf("saved %v, %d bound, want only b, which is not", got.saved, got.bound)
	}
}

func TestParallelStopsAtAnError(t *testing.T) {
	t.Parallel()
	var calls atomic.Int64
	if err := parallel(100, func(int) error { calls.Add(1); return nil }); err != nil || calls.Load() != 100 {
		t.Errorf("%d calls, %v, want 100", calls.Load(), err)
	}
	calls.Store(0)
	failed := errors.New("failed")
	if err := parallel(1_000_000, func(int) error { calls.Add(1); return failed }); !errors.Is(err, failed) || calls.Load() > writers {
		t.Errorf("%d calls, %v, want the error and no call after it", calls.Load(), err)
	}
}

func TestSizesGrow(t *testing.T) {
	t.Parallel()
	var s sizes
	if err := s.Set("0,5,20"); err != nil || !slices.Equal(s, sizes{0, 5, 20}) || s.String() != "0,5,20" {
		t.Errorf("sizes %v, %v", s, err)
	}
	if err := s.Set(""); err != nil || len(s) != 0 {
		t.Errorf("sizes %v, %v, want none", s, err)
	}
	for _, wrong := range []string{"5,5", "5,1", "-1", "x", "1,,2"} {
		if err := s.Set(wrong); err == nil {
			t.Errorf("%q is taken", wrong)
		}
	}
}

func someResults() []result {
	return []result{
		{Over: overClaims, Size: 100, Volumes: 100, CreateCPU: 2, DeleteCPU: 1, PeakBytes: 40 << 20, SyncedBytes: 30 << 20, RequestsPerVolume: 5},
		{Over: overClaims, Size: 1000, Volumes: 1000, CreateCPU: 2.5, DeleteCPU: 2, PeakBytes: 50 << 20, SyncedBytes: 30 << 20, RequestsPerVolume: 5},
		{Over: overForeign, Size: 0, Volumes: 200},
	}
}

// The plot is XML, has a column for each sweep, and its points lie inside.
func TestPlot(t *testing.T) {
	t.Parallel()
	svg := plot(someResults())
	decoder, count := xml.NewDecoder(strings.NewReader(svg)), map[string]int{}
	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if element, ok := token.(xml.StartElement); ok {
			count[element.Name.Local]++
		}
	}
	// Two sweeps with three panels each; five lines in each sweep, with as many points as it has sizes.
	if want := map[string]int{"g": 6, "polyline": 10, "circle": 15}; count["g"] != want["g"] || count["polyline"] != want["polyline"] || count["circle"] != want["circle"] {
		t.Errorf("elements %v, want %v", count, want)
	}
	if plot(someResults()) != svg {
		t.Error("another plot of the same results")
	}
	if strings.Contains(svg, "NaN") || strings.Contains(svg, "Inf") || strings.Contains(svg, `"-`) {
		t.Errorf("a point is outside:\n%s", svg)
	}
}

func TestCeiling(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]float64{0: 1, 1: 1, 2.4: 3, 5.05: 8, 81: 100, 0.2: 0.2} {
		if got := ceiling(v); got != want {
			t.Errorf("ceiling of %g is %g, want %g", v, got, want)
		}
	}
}

func TestTrafficIsCountedForAVolume(t *testing.T) {
	t.Parallel()
	r := result{Volumes: 10}
	r.countTraffic(map[operation]amount{
		{"watch", "persistentvolumes"}:  {Received: 1000},
		{"create", "persistentvolumes"}: {Requests: 10, Sent: 500, Received: 300},
		{"create", "events"}:            {Requests: 20, Sent: 100},
	})
	var order []operation
	for _, l := range r.Requests {
		order = append(order, l.operation)
	}
	want := []operation{{"create", "events"}, {"create", "persistentvolumes"}, {"watch", "persistentvolumes"}}
	if diff := cmp.Diff(want, order); diff != "" {
		t.Errorf("order (-want +got):\n%s", diff)
	}
	if r.RequestsPerVolume != 3 || r.BytesPerVolume != 190 {
		t.Errorf("%g requests and %g bytes a volume, want 3 and 190", r.RequestsPerVolume, r.BytesPerVolume)
	}
}

func TestReportNamesEachCase(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	report{Results: someResults()}.print(&out)
	for _, want := range []string{"1000 claims", "0 foreign claims", "peak MiB"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

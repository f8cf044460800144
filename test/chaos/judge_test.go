package chaos

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

func TestUnsettled(t *testing.T) {
	t.Parallel()
	pv := func() *fixture.PVBuilder {
		return fixture.PV("p").ProvisionedBy("d").Handle("v").Phase(corev1.VolumeBound)
	}
	volume := memdriver.Volume{ID: "v", Name: "p"}
	tests := map[string]struct {
		state state
		want  []string
	}{
		"nothing at all": {},
		"a bound claim with PV and volume": {state: state{
			claims:  []corev1.PersistentVolumeClaim{*fixture.Claim("c").Bound("p").Obj()},
			pvs:     []corev1.PersistentVolume{*pv().Obj()},
			volumes: []memdriver.Volume{volume},
		}},
		"an operation that goes on":   {state: state{leases: []coordinationv1.Lease{{ObjectMeta: metav1.ObjectMeta{Name: "l", Annotations: map[string]string{wellknown.AnnOperation: "{}"}}}}}, want: []string{"Lease l says an operation: {}"}},
		"a leaked volume":             {state: state{volumes: []memdriver.Volume{volume}}, want: []string{"volume v (p) has no PV"}},
		"a PV of nothing":             {state: state{pvs: []corev1.PersistentVolume{*pv().Obj()}}, want: []string{"PV p has no volume v"}},
		"a PV that is not bound":      {state: state{pvs: []corev1.PersistentVolume{*pv().Phase(corev1.VolumeReleased).Obj()}, volumes: []memdriver.Volume{volume}}, want: []string{"PV p is Released"}},
		"a PV that cannot go":         {state: state{pvs: []corev1.PersistentVolume{*pv().Terminating().Obj()}, volumes: []memdriver.Volume{volume}}, want: []string{"PV p is terminating with finalizers [" + wellknown.FinalizerPV + "]"}},
		"a claim that waits":          {state: state{claims: []corev1.PersistentVolumeClaim{*fixture.Claim("c").Obj()}}, want: []string{"claim c is "}},
		"a claim that cannot go":      {state: state{claims: []corev1.PersistentVolumeClaim{*fixture.Claim("c").Terminating().Finalizer("f").Obj()}}, want: []string{"claim c is terminating with finalizers [f]"}},
		"a finalizer that was left":   {state: state{claims: []corev1.PersistentVolumeClaim{*fixture.Claim("c").Bound("p").Finalizer(wellknown.FinalizerProvisioningInProgress).Obj()}}, want: []string{"claim c is bound and still marked"}},
		"an annotation that was left": {state: state{claims: []corev1.PersistentVolumeClaim{*fixture.Claim("c").Bound("p").Annotation(wellknown.AnnProvisioningInProgress, "").Obj()}}, want: []string{"claim c is bound and still marked"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, tc.state.unsettled()); diff != "" {
				t.Errorf("complaints (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDoubleDeletes(t *testing.T) {
	t.Parallel()
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	call := func(key string, second int, code codes.Code) memdriver.Call {
		at := start.Add(time.Duration(second) * time.Second)
		return memdriver.Call{Method: "DeleteVolume", Key: key, Code: code, Begin: at, End: at}
	}
	tests := map[string]struct {
		calls []memdriver.Call
		cuts  []time.Time
		want  int
	}{
		"once each":                        {calls: []memdriver.Call{call("a", 0, codes.OK), call("b", 1, codes.OK)}},
		"again after an error":             {calls: []memdriver.Call{call("a", 0, codes.Internal), call("a", 1, codes.OK)}},
		"again after a success":            {calls: []memdriver.Call{call("a", 0, codes.OK), call("a", 1, codes.OK)}, want: 1},
		"again when the deadline was over": {calls: []memdriver.Call{call("a", 0, codes.OK), call("a", int(callTimeout.Seconds()), codes.OK)}},
		"again after the sidecar died":     {calls: []memdriver.Call{call("a", 0, codes.OK), call("a", 1, codes.OK)}, cuts: []time.Time{start.Add(time.Second / 2)}},
		"a death long before is no tip":    {calls: []memdriver.Call{call("a", 10, codes.OK), call("a", 11, codes.OK)}, cuts: []time.Time{start}, want: 1},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := doubleDeletes(tc.calls, tc.cuts); len(got) != tc.want {
				t.Errorf("complaints %q, want %d", got, tc.want)
			}
		})
	}
}

func TestResourceOf(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/api/v1/persistentvolumes":                          "persistentvolumes",
		"/api/v1/persistentvolumes/p":                        "persistentvolumes",
		"/api/v1/namespaces/n/persistentvolumeclaims/c":      "persistentvolumeclaims",
		"/apis/coordination.k8s.io/v1/namespaces/n/leases/l": "leases",
		"/apis/storage.k8s.io/v1/storageclasses":             "storageclasses",
		"/api/v1/namespaces/n":                               "namespaces",
		"/apis/storage.k8s.io/v1":                            "",
		"/readyz":                                            "",
	} {
		if got := resourceOf(httptest.NewRequest(http.MethodGet, path, nil)); got != want {
			t.Errorf("%s is about %q, want %q", path, got, want)
		}
	}
}

func TestProxyLetsRequestsMeetTheirFate(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		fate       fate
		wantStatus int // 0: the connection breaks
		wantAsked  bool
	}{
		"a pass":             {wantStatus: http.StatusTeapot, wantAsked: true},
		"a refusal":          {fate: fate{status: http.StatusConflict, reason: metav1.StatusReasonConflict}, wantStatus: http.StatusConflict},
		"a request lost":     {fate: fate{loseRequest: true}},
		"an answer lost":     {fate: fate{loseAnswer: true}, wantAsked: true},
		"a look, and a pass": {fate: fate{after: func() {}}, wantStatus: http.StatusTeapot, wantAsked: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			asked := false
			backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked = r.Header.Get("Authorization") == "Bearer own"
				w.WriteHeader(http.StatusTeapot)
				_, _ = io.WriteString(w, "body")
			}))
			defer backend.Close()
			// The credentials of the configuration are not those of the client.
			p := newProxy(t, &rest.Config{Host: backend.URL, BearerToken: "admin"})
			p.judgeBy(func(*http.Request) fate { return tc.fate })
			request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, p.server.URL+"/api/v1/x", nil)
			if err != nil {
				t.Fatal(err)
			}
			request.Header.Set("Authorization", "Bearer own")
			response, err := p.server.Client().Do(request)
			status, body := 0, ""
			if err == nil {
				text, _ := io.ReadAll(response.Body)
				_ = response.Body.Close()
				status, body = response.StatusCode, string(text)
			}
			if status != tc.wantStatus || asked != tc.wantAsked {
				t.Errorf("status %d, API server asked %v, want %d, %v (%v)", status, asked, tc.wantStatus, tc.wantAsked, err)
			}
			if status == http.StatusTeapot && body != "body" {
				t.Errorf("body %q", body)
			}
		})
	}
}

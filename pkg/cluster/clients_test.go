package cluster

import (
	"context"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func TestNewClientsNamesEveryWrongLimit(t *testing.T) {
	t.Parallel()
	_, err := NewClients(&rest.Config{}, ClientConfig{
		Provisioning: Limits{QPS: 5}, Capacity: Limits{QPS: float32(math.NaN()), Burst: 1},
		Events: Limits{QPS: 1, Burst: -1},
	})
	if err == nil {
		t.Fatal("wrong limits were accepted")
	}
	for _, want := range []string{"provisioning client: burst", "capacity client: QPS", "event client: burst"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not mention %q", err, want)
		}
	}
	if _, err := NewClients(nil, ClientConfig{}); err == nil {
		t.Error("no configuration was accepted")
	}
	if _, err := NewClients(&rest.Config{}, ClientConfig{Provisioning: Limits{QPS: -1}}); err != nil {
		t.Errorf("no limit needs no burst: %v", err)
	}
}

func TestDefaultLimits(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ config, want ClientConfig }{
		"nothing set": {ClientConfig{}, ClientConfig{
			Provisioning: Limits{5, 10}, Capacity: Limits{1, 5}, Events: Limits{20, 100},
		}},
		"zero QPS means client-go's default": {ClientConfig{Provisioning: Limits{0, 7}}, ClientConfig{
			Provisioning: Limits{5, 7}, Capacity: Limits{1, 5}, Events: Limits{20, 100},
		}},
		"events follow higher limits": {ClientConfig{Provisioning: Limits{200, 400}}, ClientConfig{
			Provisioning: Limits{200, 400}, Capacity: Limits{1, 5}, Events: Limits{200, 400},
		}},
		"no limit is no limit for events either": {ClientConfig{Provisioning: Limits{QPS: -1}}, ClientConfig{
			Provisioning: Limits{QPS: -1}, Capacity: Limits{1, 5}, Events: Limits{QPS: -1},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, tc.config.withDefaults()); diff != "" {
				t.Errorf("limits (-want +got):\n%s", diff)
			}
		})
	}
}

// Every client says who it is and speaks the right format, and the configuration that came in stays as it is.
func TestClientsSpeakTheRightFormat(t *testing.T) { //nolint:tparallel // the requests go to one server, one by one
	t.Parallel()
	heads := make(chan http.Header, 1)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		heads <- r.Header
		http.Error(w, "no", http.StatusTeapot)
	}))
	t.Cleanup(server.Close)
	config := &rest.Config{Host: server.URL, QPS: 77, UserAgent: "before"}
	clients, err := NewClients(config, ClientConfig{Version: "v9"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, options := t.Context(), metav1.GetOptions{}
	for name, tc := range map[string]struct {
		get    func() error
		accept string
	}{
		"core":       {func() error { _, err := clients.Core.CoreV1().Secrets("a").Get(ctx, "b", options); return err }, "protobuf"},
		"events":     {func() error { _, err := clients.Events.CoreV1().Events("a").Get(ctx, "b", options); return err }, "protobuf"},
		"lease":      {func() error { _, err := clients.Lease.CoordinationV1().Leases("a").Get(ctx, "b", options); return err }, "protobuf"},
		"background": {func() error { _, err := clients.Background.CoreV1().Secrets("a").Get(ctx, "b", options); return err }, "protobuf"},
		"capacity":   {func() error { _, err := clients.Capacity.CoreV1().Secrets("a").Get(ctx, "b", options); return err }, "protobuf"},
		"snapshot": {func() error {
			_, err := clients.Snapshot.SnapshotV1().VolumeSnapshots("a").Get(ctx, "b", options)
			return err
		}, "json"},
		"gateway": {func() error { _, err := clients.Gateway.ReferenceGrants("a").Get(ctx, "b", options); return err }, "json"},
	} {
		t.Run(name, func(t *testing.T) {
			if err := tc.get(); err == nil {
				t.Fatal("the server's refusal got lost")
			}
			head := <-heads
			if got := head.Get("User-Agent"); !strings.HasPrefix(got, "csi-provisioner/v9 (") {
				t.Errorf("user agent %q", got)
			}
			if got, _, _ := strings.Cut(head.Get("Accept"), ","); !strings.HasSuffix(got, tc.accept) {
				t.Errorf("accepts %q first, want %s", got, tc.accept)
			}
		})
	}
	if config.QPS != 77 || config.UserAgent != "before" || config.RateLimiter != nil {
		t.Errorf("the configuration was changed: %+v", config)
	}
}

// One client that has used up its bucket holds up no other; the one for the lease has no bucket, and that of the
// background client is not set by flags.
func TestClientsDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusTeapot) }))
	t.Cleanup(server.Close)
	slow := Limits{QPS: 0.001, Burst: 1}
	clients, err := NewClients(&rest.Config{Host: server.URL}, ClientConfig{Provisioning: slow, Capacity: slow, Events: slow})
	if err != nil {
		t.Fatal(err)
	}
	type request func(ctx context.Context) error
	secret := func(client kubernetes.Interface) request {
		return func(ctx context.Context) error {
			_, err := client.CoreV1().Secrets("a").Get(ctx, "b", metav1.GetOptions{})
			return err
		}
	}
	requests := map[string]request{
		"core": secret(clients.Core), "events": secret(clients.Events), "background": secret(clients.Background),
		"capacity": secret(clients.Capacity), "lease": secret(clients.Lease),
		"snapshot": func(ctx context.Context) error {
			_, err := clients.Snapshot.SnapshotV1().VolumeSnapshots("a").Get(ctx, "b", metav1.GetOptions{})
			return err
		},
	}
	// The limiter refuses at once when the wait would outlast the context.
	limited := func(name string) bool {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		return strings.Contains(requests[name](ctx).Error(), "rate limiter")
	}
	for name := range requests {
		if limited(name) {
			t.Errorf("the first request of the %s client waits for another client", name)
		}
	}
	for name := range requests {
		if got, want := limited(name), name != "lease" && name != "background"; got != want {
			t.Errorf("second request of the %s client: waits is %v, want %v", name, got, want)
		}
	}
}

// The writes of the core client are bounded, so that all find room on a connection.
func TestWritesAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var now atomic.Int64
		config := &rest.Config{Host: "http://api.test", Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
			now.Add(1)
			defer now.Add(-1)
			time.Sleep(time.Second)
			return &http.Response{StatusCode: http.StatusTeapot, Body: http.NoBody, Request: r}, nil
		})}
		clients, err := NewClients(config, ClientConfig{Provisioning: Limits{QPS: -1}})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 * maxWrites {
			go func() {
				claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "c"}}
				if _, err := clients.Core.CoreV1().PersistentVolumeClaims("a").Update(t.Context(), claim, metav1.UpdateOptions{}); err == nil {
					t.Error("the server's refusal got lost")
				}
			}()
		}
		synctest.Wait()
		if got := now.Load(); got != maxWrites {
			t.Errorf("%d writes are under way, want %d", got, maxWrites)
		}
		time.Sleep(time.Hour)
		synctest.Wait()
	})
}

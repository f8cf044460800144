package process

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
)

// gathererFunc is a source of metrics.
type gathererFunc func() ([]*dto.MetricFamily, error)

func (f gathererFunc) Gather() ([]*dto.MetricFamily, error) { return f() }

// eventually fails the test unless cond holds soon.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(30 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still not so: %s", what)
		}
	}
}

// Scrapes beyond the limit are refused at once, the health pages answer meanwhile, and scrapes go on when there is room.
func TestScrapesAreLimited(t *testing.T) {
	t.Parallel()
	h := serve(t, HTTPConfig{})
	var gathering atomic.Int32
	release := make(chan struct{})
	h.AddMetrics(gathererFunc(func() ([]*dto.MetricFamily, error) {
		gathering.Add(1)
		<-release
		return nil, nil
	}))
	var scrapes sync.WaitGroup
	for range maxInFlight {
		scrapes.Go(func() { wantAnswer(t, h, "/metrics", http.StatusOK, "promhttp_metric_handler") })
	}
	eventually(t, "all places are taken", func() bool { return gathering.Load() == maxInFlight })
	for range 3 {
		wantAnswer(t, h, "/metrics", http.StatusServiceUnavailable, "/metrics serves 5 requests at the same time")
	}
	for _, path := range []string{"/healthz", "/healthz/leader-election", "/readyz"} {
		wantAnswer(t, h, path, http.StatusOK, "ok")
	}
	close(release)
	scrapes.Wait()
	if got := gathering.Load(); got != maxInFlight {
		t.Errorf("metrics were gathered %d times, want %d", got, maxInFlight)
	}
	wantAnswer(t, h, "/metrics", http.StatusOK, `promhttp_metric_handler_requests_total{code="503"} 3`)
}

// Clients that do not read what they asked for take memory for a few answers and not for each of them.
func TestSlowReadersTakeOnlyTheirPlaces(t *testing.T) {
	t.Parallel()
	h := serve(t, HTTPConfig{})
	registry := prometheus.NewRegistry()
	large := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "large", Help: "test"}, []string{"value"})
	registry.MustRegister(large)
	for i := range 16 { // more than the sockets' buffers hold
		large.WithLabelValues(fmt.Sprint(i) + strings.Repeat("x", 1<<20)).Set(1)
	}
	var gathered atomic.Int32
	h.AddMetrics(gathererFunc(func() ([]*dto.MetricFamily, error) {
		gathered.Add(1)
		return registry.Gather()
	}))
	var refused atomic.Int32
	const clients = 50
	for range clients {
		var dialer net.Dialer
		conn, err := dialer.DialContext(t.Context(), "tcp", h.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		if _, err := conn.Write([]byte("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")); err != nil {
			t.Fatal(err)
		}
		go func() {
			if status, err := bufio.NewReaderSize(conn, 64).ReadString('\n'); err == nil && strings.Contains(status, "503") {
				refused.Add(1)
			}
		}()
	}
	eventually(t, "all but a few clients are refused", func() bool { return refused.Load() == clients-maxInFlight })
	if got := gathered.Load(); got != maxInFlight {
		t.Errorf("metrics were gathered %d times, want %d", got, maxInFlight)
	}
	wantAnswer(t, h, "/readyz", http.StatusOK, "ok")
}

// Each profile has a limit of its own.
func TestProfilesAreLimited(t *testing.T) {
	t.Parallel()
	h := serve(t, HTTPConfig{Pprof: true})
	ctx, cancel := context.WithCancel(t.Context())
	var profiles sync.WaitGroup
	defer profiles.Wait()
	defer cancel()
	for range maxInFlight {
		profiles.Go(func() {
			for ctx.Err() == nil { // until it has a place
				request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+h.Addr()+"/debug/pprof/goroutine?seconds=3600", nil)
				if err != nil {
					t.Error(err)
					return
				}
				if response, err := http.DefaultClient.Do(request); err == nil {
					_ = response.Body.Close()
				}
			}
		})
	}
	eventually(t, "the next one is refused", func() bool {
		status, body := get(t, h, "/debug/pprof/mutex")
		return status == http.StatusServiceUnavailable && strings.Contains(body, "/debug/pprof/ serves 5 requests at the same time")
	})
	wantAnswer(t, h, "/debug/pprof/cmdline", http.StatusOK, "")
	wantAnswer(t, h, "/metrics", http.StatusOK, "promhttp_metric_handler")
	wantAnswer(t, h, "/readyz", http.StatusOK, "ok")
}

// A profile may take longer than other answers, but not as long as it likes.
func TestProfilesAreBounded(t *testing.T) {
	t.Parallel()
	var left time.Duration
	bounded(func(_ http.ResponseWriter, r *http.Request) {
		deadline, _ := r.Context().Deadline()
		left = time.Until(deadline)
	}).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/debug/pprof/profile?seconds=3600", nil))
	if left < profileTimeout-time.Minute || left > profileTimeout {
		t.Errorf("the request ends in %s, want in %s", left, profileTimeout)
	}
}

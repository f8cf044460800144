package process

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"
)

func serve(t *testing.T, cfg HTTPConfig) *HTTP {
	t.Helper()
	cfg.Address = "127.0.0.1:0"
	if cfg.MetricsPath == "" {
		cfg.MetricsPath = "/metrics"
	}
	h, err := Listen(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background()) // it ends in the cleanup, after t.Context
	done := make(chan error, 1)
	go func() { done <- h.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run = %v, want nil after a stop", err)
		}
	})
	return h
}

func get(t *testing.T, h *HTTP, path string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+h.Addr()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(body)
}

func wantAnswer(t *testing.T, h *HTTP, path string, status int, phrase string) {
	t.Helper()
	got, body := get(t, h, path)
	if got != status || !strings.Contains(body, phrase) {
		t.Errorf("GET %s = %d %q, want %d with %q", path, got, body, status, phrase)
	}
}

func TestHealthPages(t *testing.T) {
	t.Parallel()
	h := serve(t, HTTPConfig{})
	if status, body := get(t, h, "/healthz/leader-election"); status != http.StatusOK || body != "ok" {
		t.Errorf("leader election before there is one: %d %q, want 200 ok", status, body)
	}
	if status, body := get(t, h, "/healthz"); status != http.StatusOK || body != "ok" {
		t.Errorf("healthz: %d %q, want 200 ok", status, body)
	}
	var sick error
	h.SetElection(func() error { return sick })
	wantAnswer(t, h, "/healthz/leader-election", http.StatusOK, "ok")
	sick = errors.New("failed to renew")
	wantAnswer(t, h, "/healthz/leader-election", http.StatusInternalServerError, "failed to renew")
	wantAnswer(t, h, "/healthz", http.StatusOK, "ok")
	wantAnswer(t, h, "/nothing", http.StatusNotFound, "")
}

func TestReadyListsWhatIsNot(t *testing.T) {
	t.Parallel()
	h := serve(t, HTTPConfig{})
	wantAnswer(t, h, "/readyz", http.StatusOK, "ok")
	h.AddReady("driver", func() error { return ErrNotYet })
	h.AddReady("caches", func() error { return errors.New("claims are not synced") })
	h.AddReady("fine", func() error { return nil })
	status, body := get(t, h, "/readyz")
	want := "not ready: caches: claims are not synced\nnot ready: driver: not yet\n"
	if status != http.StatusServiceUnavailable || body != want {
		t.Errorf("readyz %d %q, want 503 %q", status, body, want)
	}
	h.AddReady("driver", func() error { return nil })
	h.AddReady("caches", func() error { return nil })
	wantAnswer(t, h, "/readyz", http.StatusOK, "ok")
}

func TestMetricsComeFromAllSources(t *testing.T) {
	t.Parallel()
	h := serve(t, HTTPConfig{MetricsPath: "/m"})
	for _, name := range []string{"first_total", "second_total"} {
		registry := prometheus.NewRegistry()
		counter := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: "test"})
		registry.MustRegister(counter)
		counter.Inc()
		h.AddMetrics(registry)
	}
	_, body := get(t, h, "/m")
	for _, line := range []string{"\nfirst_total 1\n", "\nsecond_total 1\n", "\npromhttp_metric_handler_requests_in_flight 1\n", "\npromhttp_metric_handler_requests_total{code=\"200\"} 0\n"} {
		if strings.Count(body, line) != 1 {
			t.Errorf("not exactly one line %q in:\n%s", line, body)
		}
	}
	wantAnswer(t, h, "/metrics", http.StatusNotFound, "")
}

func TestAFailingSourceIsAnError(t *testing.T) {
	t.Parallel()
	h := serve(t, HTTPConfig{})
	registry := prometheus.NewRegistry()
	registry.MustRegister(brokenCollector{})
	h.AddMetrics(registry)
	wantAnswer(t, h, "/metrics", http.StatusInternalServerError, "no metrics today")
}

type brokenCollector struct{}

func (brokenCollector) Describe(chan<- *prometheus.Desc) {}

func (brokenCollector) Collect(metrics chan<- prometheus.Metric) {
	metrics <- prometheus.NewInvalidMetric(prometheus.NewDesc("broken", "test", nil, nil), errors.New("no metrics today"))
}

func TestPprofOnRequest(t *testing.T) {
	t.Parallel()
	wantAnswer(t, serve(t, HTTPConfig{}), "/debug/pprof/", http.StatusNotFound, "")
	h := serve(t, HTTPConfig{Pprof: true})
	wantAnswer(t, h, "/debug/pprof/", http.StatusOK, "goroutine")
	wantAnswer(t, h, "/debug/pprof/cmdline", http.StatusOK, "")
	wantAnswer(t, h, "/debug/pprof/symbol", http.StatusOK, "num_symbols")
	wantAnswer(t, h, "/debug/pprof/trace?seconds=0.01", http.StatusOK, "")
}

// The root as the metrics path catches everything that has no page of its own.
func TestMetricsAtTheRoot(t *testing.T) {
	t.Parallel()
	h := serve(t, HTTPConfig{MetricsPath: "/"})
	wantAnswer(t, h, "/anything", http.StatusOK, "promhttp_metric_handler")
	wantAnswer(t, h, "/readyz", http.StatusOK, "ok")
}

func TestListenFailsWhenThePortIsTaken(t *testing.T) {
	t.Parallel()
	h := serve(t, HTTPConfig{})
	_, err := Listen(t.Context(), HTTPConfig{Address: h.Addr(), MetricsPath: "/metrics"})
	if err == nil || !strings.Contains(err.Error(), h.Addr()) {
		t.Errorf("Listen = %v, want an error that names the address", err)
	}
}

// A client that sends or reads nothing does not hold a connection for ever.
func TestServerHasTimeouts(t *testing.T) {
	t.Parallel()
	for _, pprof := range []bool{false, true} {
		h := &HTTP{cfg: HTTPConfig{MetricsPath: "/metrics", Pprof: pprof}, own: prometheus.NewRegistry()}
		server := h.server(klog.Background())
		for name, limit := range map[string]time.Duration{
			"read": server.ReadTimeout, "header": server.ReadHeaderTimeout, "write": server.WriteTimeout,
		} {
			if limit <= 0 || limit > 30*time.Second {
				t.Errorf("%s timeout %s, want one of at most 30 seconds", name, limit)
			}
		}
		if server.IdleTimeout <= 0 || server.IdleTimeout > 5*time.Minute {
			t.Errorf("idle timeout %s, want one of at most 5 minutes", server.IdleTimeout)
		}
		if server.MaxHeaderBytes <= 0 || server.MaxHeaderBytes > 1<<20 {
			t.Errorf("headers of up to %d bytes", server.MaxHeaderBytes)
		}
	}
}

func TestCloseFreesTheAddress(t *testing.T) {
	t.Parallel()
	h, err := Listen(t.Context(), HTTPConfig{Address: "127.0.0.1:0", MetricsPath: "/metrics"})
	if err != nil {
		t.Fatal(err)
	}
	if err := h.Close(); err != nil {
		t.Fatal(err)
	}
	again, err := Listen(t.Context(), HTTPConfig{Address: h.Addr(), MetricsPath: "/metrics"})
	if err != nil {
		t.Fatalf("the address is still taken: %v", err)
	}
	_ = again.Close()
}

package process

import (
	"context"
	"errors"
	"fmt"
	"log"
	"maps"
	"net"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
)

// Limits of the diagnostics server, which anybody who reaches the pod can talk to.
const (
	readTimeout    = 10 * time.Second
	writeTimeout   = 30 * time.Second
	idleTimeout    = 2 * time.Minute
	profileTimeout = 5 * time.Minute // the longest profile or trace that is taken
	maxHeaderBytes = 64 << 10
	closeTimeout   = time.Second
)

// HTTPConfig describes the diagnostics server.
type HTTPConfig struct {
	// Address is host:port or :port. Required.
	Address string
	// MetricsPath is served with the metrics; it must begin with "/" and be none of the other paths. A path that
	// ends in "/" has all paths below it. Required.
	MetricsPath string
	// Pprof serves /debug/pprof/.
	Pprof bool
}

// HTTP is the diagnostics server. Checks and sources of metrics may be added at any time, also concurrently,
// since the server starts before they are known.
type HTTP struct {
	cfg      HTTPConfig
	listener net.Listener
	own      *prometheus.Registry // metrics of the metrics handler itself

	mu       sync.Mutex
	sources  prometheus.Gatherers    // guarded by mu
	election func() error            // guarded by mu; nil: there is no election
	ready    map[string]func() error // guarded by mu; what must be ready → nil when it is
}

// Listen binds the address. The error says that it is taken or wrong; requests are answered once Run does.
func Listen(ctx context.Context, cfg HTTPConfig) (*HTTP, error) {
	var listen net.ListenConfig
	listener, err := listen.Listen(ctx, "tcp", cfg.Address)
	if err != nil {
		return nil, fmt.Errorf("serve HTTP on %s: %w", cfg.Address, err)
	}
	return &HTTP{cfg: cfg, listener: listener, own: prometheus.NewRegistry(), ready: map[string]func() error{}}, nil
}

// Addr returns the address that is bound, with its port in numbers.
func (h *HTTP) Addr() string { return h.listener.Addr().String() }

// AddMetrics adds sources of metrics, gathered in the order in which they were added.
func (h *HTTP) AddMetrics(sources ...prometheus.Gatherer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sources = append(h.sources, sources...)
}

// AddReady makes /readyz ask check as well; it returns nil when the named thing is ready, and must not block.
// A later check of the same name takes the place of the earlier one.
func (h *HTTP) AddReady(name string, check func() error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ready[name] = check
}

// SetElection makes /healthz/leader-election answer with what check says; before that it is always well.
func (h *HTTP) SetElection(check func() error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.election = check
}

// Run answers requests until ctx ends; then it closes and gives those under way a second.
func (h *HTTP) Run(ctx context.Context) error {
	logger := klog.FromContext(ctx)
	server := h.server(logger)
	failed := make(chan error, 1)
	go func() { failed <- loop.Guard(ctx, "http", func() error { return server.Serve(h.listener) }) }()
	logger.Info("Serving HTTP", "address", h.Addr(), "metrics", h.cfg.MetricsPath, "pprof", h.cfg.Pprof)
	select {
	case err := <-failed:
		return fmt.Errorf("serve HTTP on %s: %w", h.cfg.Address, err)
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if server.Shutdown(closing) != nil {
		_ = server.Close()
	}
	if err := <-failed; !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve HTTP on %s: %w", h.cfg.Address, err)
	}
	return nil
}

func (h *HTTP) server(logger klog.Logger) *http.Server {
	return &http.Server{
		Handler:           h.handler(),
		ReadTimeout:       readTimeout,
		ReadHeaderTimeout: readTimeout,
		WriteTimeout:      writeTimeout, // net/http/pprof adds the time that a profile takes
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    maxHeaderBytes,
		ErrorLog:          log.New(logWriter{logger}, "", 0),
	}
}

// Close frees the address of a server that never ran.
func (h *HTTP) Close() error { return h.listener.Close() }

func (h *HTTP) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, "ok") })
	mux.HandleFunc("/healthz/leader-election", h.serveElection)
	mux.HandleFunc("/readyz", h.serveReady)
	if h.cfg.Pprof {
		for path, serve := range map[string]http.HandlerFunc{
			"/debug/pprof/": pprof.Index, "/debug/pprof/cmdline": pprof.Cmdline, "/debug/pprof/profile": pprof.Profile,
			"/debug/pprof/symbol": pprof.Symbol, "/debug/pprof/trace": pprof.Trace,
		} {
			mux.Handle(path, limited(path, bounded(serve)))
		}
	}
	mux.Handle(h.cfg.MetricsPath, promhttp.InstrumentMetricHandler(h.own, limited(h.cfg.MetricsPath, http.HandlerFunc(h.serveMetrics))))
	return mux
}

// serveMetrics answers 500 when a source fails: half of the metrics would look like all of them.
func (h *HTTP) serveMetrics(w http.ResponseWriter, r *http.Request) {
	h.mu.Lock()
	sources := append(slices.Clone(h.sources), h.own)
	h.mu.Unlock()
	promhttp.HandlerFor(sources, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

func (h *HTTP) serveElection(w http.ResponseWriter, _ *http.Request) {
	h.mu.Lock()
	check := h.election
	h.mu.Unlock()
	if check != nil {
		if err := check(); err != nil {
			answer(w, http.StatusInternalServerError, err.Error())
			return
		}
	}
	answer(w, http.StatusOK, "ok")
}

func (h *HTTP) serveReady(w http.ResponseWriter, _ *http.Request) {
	h.mu.Lock()
	checks := maps.Clone(h.ready)
	h.mu.Unlock()
	var missing []string
	for name, check := range checks {
		if err := check(); err != nil {
			missing = append(missing, "not ready: "+name+": "+err.Error())
		}
	}
	if len(missing) == 0 {
		answer(w, http.StatusOK, "ok")
		return
	}
	slices.Sort(missing)
	answer(w, http.StatusServiceUnavailable, strings.Join(missing, "\n")+"\n")
}

func answer(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write([]byte(body))
}

// logWriter takes what the HTTP server has to say, mostly of clients that hang up.
type logWriter struct{ logger klog.Logger }

func (w logWriter) Write(line []byte) (int, error) {
	w.logger.V(4).Info("HTTP server", "message", strings.TrimSpace(string(line)))
	return len(line), nil
}

// ErrNotYet is what a readiness check returns before the thing it watches has begun.
var ErrNotYet = errors.New("not yet")

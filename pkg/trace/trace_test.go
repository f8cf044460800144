package trace

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/uuid"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/test/collector"
)

const (
	claimUID   = "5f3c1a2e-9b7d-4e60-8a11-0c2f4d6e8b90"
	claimTrace = "5f3c1a2e9b7d4e608a110c2f4d6e8b90"
)

var subject = Subject{UID: claimUID, Namespace: "shop", Claim: "data", PV: "pvc-" + claimUID, Class: "fast", Driver: "d.example.com"}

// send does work with a tracer of cfg, stops it, and returns its log.
func send(t *testing.T, cfg Config, work func(*Tracer)) string {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true)))
	ctx, stop := context.WithCancel(klog.NewContext(t.Context(), logger))
	defer stop()
	tracer, err := New(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	work(tracer)
	stop()
	if err := tracer.Run(ctx); err != nil {
		t.Error(err)
	}
	return logger.GetSink().(ktesting.Underlier).GetBuffer().String()
}

// sent is send to a collector of its own, and returns what that has received.
func sent(t *testing.T, cfg Config, work func(*Tracer)) []collector.Span {
	t.Helper()
	c := collector.Serve(t)
	cfg.Endpoint.Target = c.Address()
	send(t, cfg, work)
	return c.Spans()
}

func TestASpanSaysWhatItIsAbout(t *testing.T) {
	t.Parallel()
	spans := sent(t, Config{Ratio: 1, Version: "v1", Instance: "pod-0"}, func(tracer *Tracer) {
		_, span := tracer.Start(t.Context(), "provision", subject)
		span.End()
	})
	if len(spans) != 1 {
		t.Fatalf("spans %v, want one", spans)
	}
	spans[0].ID = ""
	want := collector.Span{
		Trace: claimTrace, Name: "provision",
		Attributes: map[string]string{
			"csi.driver": "d.example.com", "csi.outcome": "Done", "k8s.namespace.name": "shop", "k8s.persistentvolumeclaim.name": "data",
			"k8s.persistentvolumeclaim.uid": claimUID, "k8s.persistentvolume.name": "pvc-" + claimUID, "k8s.storageclass.name": "fast",
		},
		Resource: map[string]string{"service.name": "csi-provisioner", "service.version": "v1", "service.instance.id": "pod-0"},
	}
	if diff := cmp.Diff(want, spans[0]); diff != "" {
		t.Errorf("span (-want +got):\n%s", diff)
	}
}

func TestTheEnvironmentHasTheLastWordAboutTheProcess(t *testing.T) {
	t.Setenv("OTEL_SERVICE_NAME", "storage")
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test,service.version=v2")
	spans := sent(t, Config{Ratio: 1, Version: "v1"}, func(tracer *Tracer) {
		_, span := tracer.Start(t.Context(), "provision", subject)
		span.End()
	})
	want := map[string]string{"service.name": "storage", "service.version": "v2", "deployment.environment.name": "test"}
	if len(spans) != 1 || cmp.Diff(want, spans[0].Resource) != "" {
		t.Errorf("spans %v, want one of %v", spans, want)
	}
}

// Attempts are spans of one trace, whichever process makes them; what is no UUID gets a trace of its own.
func TestTheTraceIsTheUID(t *testing.T) {
	t.Parallel()
	c := collector.Serve(t)
	for range 2 {
		send(t, Config{Endpoint: Endpoint{Target: c.Address()}, Ratio: 1}, func(tracer *Tracer) {
			for range 2 {
				ctx, span := tracer.Start(t.Context(), "provision", subject)
				_, child := Child(ctx, "plan")
				child.End()
				span.End()
			}
		})
	}
	parents := map[string]int{}
	for _, span := range c.Spans() {
		if span.Trace != claimTrace {
			t.Errorf("span %v is not in the claim's trace", span)
		}
		parents[span.Parent]++
	}
	if len(parents) != 5 || parents[""] != 4 {
		t.Errorf("parents %v, want four spans without, and each the parent of one", parents)
	}
	traces := map[string]bool{}
	for _, span := range sent(t, Config{Ratio: 1}, func(tracer *Tracer) {
		for _, uid := range []string{"", "", "uid-1", "uid-1", "00000000-0000-0000-0000-000000000000"} {
			_, span := tracer.Start(t.Context(), "delete", Subject{UID: uid})
			span.End()
		}
	}) {
		traces[span.Trace] = true
	}
	if len(traces) != 5 {
		t.Errorf("%d traces of five subjects without a UUID: %v", len(traces), traces)
	}
}

// Two bits of a UUID are fixed, and the sampler must not look at these.
func TestThePartThatIsKeptIsAsAsked(t *testing.T) {
	t.Parallel()
	const all = 4000
	for _, ratio := range []float64{0, 0.1, 0.5, 0.6, 0.9, 1} {
		sampler := evenly{sdktrace.TraceIDRatioBased(ratio)}
		kept := 0
		for range all {
			id := traceID(uuid.NewString())
			if sampler.ShouldSample(sdktrace.SamplingParameters{ParentContext: t.Context(), TraceID: id}).Decision == sdktrace.RecordAndSample {
				kept++
			}
		}
		// Six standard deviations.
		if got := float64(kept) / all; got < ratio-0.05 || got > ratio+0.05 {
			t.Errorf("%.2f of the traces are kept, want %.2f", got, ratio)
		}
	}
	if spans := sent(t, Config{Ratio: 0}, func(tracer *Tracer) {
		_, span := tracer.Start(t.Context(), "provision", subject)
		span.Fail(errors.New("bad"))
		span.End()
	}); len(spans) != 0 {
		t.Errorf("spans %v, want none", spans)
	}
}

func TestAFailureIsTold(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("é", 1000)
	for name, tc := range map[string]struct {
		err                      error
		wantMessage, wantOutcome string // no outcome: the span is not told
	}{
		"a plain error":                 {errors.New("no class"), "no class", "Unchanged"},
		"an outcome":                    {outcome.With(outcome.Background, errors.New("too slow")), "too slow", "Background"},
		"no error":                      {nil, "", "Done"},
		"somebody else's":               {outcome.With(outcome.NotOurs, errors.New("a populator's")), "", ""},
		"a long text":                   {errors.New(long), long[:1024], "Unchanged"},
		"a long text, cut in a letter":  {errors.New("x" + long), "x" + long[:1022] + "\uFFFD", "Unchanged"},
		"a text that is not valid UTF8": {errors.New("a\xffb"), "a\uFFFDb", "Unchanged"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			spans := sent(t, Config{Ratio: 1}, func(tracer *Tracer) {
				ctx, span := tracer.Start(t.Context(), "provision", subject)
				Fail(ctx, tc.err)
				span.End()
			})
			if tc.wantOutcome == "" {
				if len(spans) != 0 {
					t.Errorf("spans %v, want none", spans)
				}
				return
			}
			if len(spans) != 1 || spans[0].Attributes["csi.outcome"] != tc.wantOutcome || spans[0].Message != tc.wantMessage || spans[0].Failed != (tc.err != nil) {
				t.Errorf("spans %v, want one of outcome %q and message %q", spans, tc.wantOutcome, tc.wantMessage)
			}
		})
	}
}

func TestACallOfTheDriverIsASpanAndTheDriverHearsOfIt(t *testing.T) {
	t.Parallel()
	var parents []string
	answer := func(err error) grpc.UnaryInvoker {
		return func(ctx context.Context, method string, _, _ any, _ *grpc.ClientConn, _ ...grpc.CallOption) error {
			if method != "/csi.v1.Controller/CreateVolume" {
				t.Errorf("called %s", method)
			}
			md, _ := metadata.FromOutgoingContext(ctx)
			parents = append(parents, strings.Join(md.Get("traceparent"), " "))
			return err
		}
	}
	bad := status.Error(codes.DeadlineExceeded, "too slow")
	spans := sent(t, Config{Ratio: 1}, func(tracer *Tracer) {
		ctx, span := tracer.Start(t.Context(), "provision", subject)
		for _, err := range []error{nil, bad} {
			got := tracer.Intercept(ctx, "/csi.v1.Controller/CreateVolume", nil, nil, nil, answer(err))
			if !errors.Is(got, err) {
				t.Errorf("error %v, want %v", got, err)
			}
		}
		span.End()
		// Without a span around it, as when the driver is probed.
		if err := tracer.Intercept(t.Context(), "/csi.v1.Controller/CreateVolume", nil, nil, nil, answer(nil)); err != nil {
			t.Error(err)
		}
	})
	if len(spans) != 3 {
		t.Fatalf("spans %v, want two calls and the attempt", spans)
	}
	wantParents := []string{"00-" + claimTrace + "-" + spans[0].ID + "-01", "00-" + claimTrace + "-" + spans[1].ID + "-01", ""}
	if diff := cmp.Diff(wantParents, parents); diff != "" {
		t.Errorf("metadata traceparent (-want +got):\n%s", diff)
	}
	for i, want := range []string{"OK", "DEADLINE_EXCEEDED"} {
		got := spans[i]
		wantAttributes := map[string]string{"rpc.system.name": "grpc", "rpc.method": "csi.v1.Controller/CreateVolume", "rpc.response.status_code": want}
		if diff := cmp.Diff(wantAttributes, got.Attributes); diff != "" || got.Name != "csi.v1.Controller/CreateVolume" || got.Parent != spans[2].ID {
			t.Errorf("span %v of parent %s, attributes (-want +got):\n%s", got, spans[2].ID, diff)
		}
	}
	if spans[0].Failed || !spans[1].Failed || spans[1].Message != "too slow" {
		t.Errorf("errors %q and %q, want none and the driver's", spans[0].Message, spans[1].Message)
	}
}

func TestARequestToTheAPIServerIsASpan(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			w.WriteHeader(http.StatusConflict)
		}
	}))
	defer server.Close()
	get := func(ctx context.Context, transport http.RoundTripper, method, url string) {
		request, err := http.NewRequestWithContext(ctx, method, url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if response, err := transport.RoundTrip(request); err == nil {
			_ = response.Body.Close()
		}
	}
	spans := sent(t, Config{Ratio: 1}, func(tracer *Tracer) {
		transport := tracer.Transport(http.DefaultTransport)
		get(t.Context(), transport, http.MethodGet, server.URL+"/api/v1/persistentvolumes?watch=true")
		ctx, span := tracer.Start(t.Context(), "provision", subject)
		get(ctx, transport, http.MethodGet, server.URL+"/api/v1/namespaces/shop/secrets/key?x=y")
		get(ctx, transport, http.MethodPost, server.URL+"/api/v1/persistentvolumes")
		get(ctx, transport, http.MethodPut, "http://127.0.0.1:1/api/v1/namespaces/shop/persistentvolumeclaims/data")
		span.End()
	})
	if len(spans) != 4 {
		t.Fatalf("spans %v, want three requests and the attempt", spans)
	}
	for i, want := range []collector.Span{
		{Name: "GET secrets", Attributes: map[string]string{"http.request.method": "GET", "url.path": "/api/v1/namespaces/shop/secrets/key", "http.response.status_code": "200"}},
		{Name: "POST persistentvolumes", Failed: true, Message: "409 Conflict", Attributes: map[string]string{"http.request.method": "POST", "url.path": "/api/v1/persistentvolumes", "http.response.status_code": "409"}},
		{Name: "PUT persistentvolumeclaims", Failed: true, Message: spans[2].Message, Attributes: map[string]string{"http.request.method": "PUT", "url.path": "/api/v1/namespaces/shop/persistentvolumeclaims/data"}},
	} {
		want.Trace, want.ID, want.Parent, want.Resource = claimTrace, spans[i].ID, spans[3].ID, spans[i].Resource
		if diff := cmp.Diff(want, spans[i]); diff != "" {
			t.Errorf("span (-want +got):\n%s", diff)
		}
	}
	if !strings.Contains(spans[2].Message, "connection refused") {
		t.Errorf("message %q, want the error", spans[2].Message)
	}
}

func TestResource(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/api/v1/persistentvolumes":                                          "persistentvolumes",
		"/api/v1/persistentvolumes/pv-1":                                     "persistentvolumes",
		"/api/v1/persistentvolumes/pv-1/status":                              "persistentvolumes/status",
		"/api/v1/namespaces/shop/persistentvolumeclaims":                     "persistentvolumeclaims",
		"/api/v1/namespaces/shop/persistentvolumeclaims/d":                   "persistentvolumeclaims",
		"/api/v1/namespaces/shop":                                            "namespaces",
		"/apis/storage.k8s.io/v1/storageclasses/fast":                        "storageclasses",
		"/apis/snapshot.storage.k8s.io/v1/namespaces/shop/volumesnapshots/s": "volumesnapshots",
		"/apis/apps/v1": "/apis/apps/v1",
		"/api":          "/api",
		"/version":      "/version",
		"":              "",
	} {
		if got := resource(path); got != want {
			t.Errorf("resource(%q) = %q, want %q", path, got, want)
		}
	}
}

// Nothing is made on the way of a claim while tracing is off.
func TestOffCostsNothing(t *testing.T) {
	var tracer *Tracer
	ctx, err := context.WithValue(t.Context(), uidKey{}, "some value"), errors.New("bad")
	if got := testing.AllocsPerRun(100, func() {
		ctx, span := tracer.Start(ctx, "provision", subject)
		defer span.End()
		_, child := Child(ctx, "plan")
		child.Fail(err)
		child.End()
		Fail(ctx, err)
		PutOff(ctx)
	}); got != 0 {
		t.Errorf("%v allocations, want none", got)
	}
}

// A collector that is away costs spans and a word in the log, and nobody's time.
func TestNobodyWaitsForTheCollector(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0") // accepts, and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
	begin := time.Now()
	log := send(t, Config{Endpoint: Endpoint{Target: listener.Addr().String()}, Ratio: 1}, func(tracer *Tracer) {
		for range 5000 { // more than are kept for the collector
			_, span := tracer.Start(t.Context(), "provision", subject)
			span.End()
		}
	})
	if took := time.Since(begin); took > 30*time.Second {
		t.Errorf("it took %s to get past a collector that does not answer", took)
	}
	if !strings.Contains(log, "The last spans are lost") {
		t.Errorf("log %q, want a word about the spans", log)
	}
}

func TestARefusalIsLogged(t *testing.T) {
	t.Parallel()
	c := collector.Serve(t)
	c.Refuse("too many")
	log := send(t, Config{Endpoint: Endpoint{Target: c.Address()}, Ratio: 1}, func(tracer *Tracer) {
		for range 3 {
			_, span := tracer.Start(t.Context(), "provision", subject)
			span.End()
			if err := tracer.provider.ForceFlush(t.Context()); err != nil {
				t.Error(err)
			}
		}
	})
	if got := strings.Count(log, "Spans are lost"); got != 1 {
		t.Errorf("%d words about lost spans, want one:\n%s", got, log)
	}
	if !strings.Contains(log, "the collector has refused 1 spans: too many") {
		t.Errorf("log %q, want the reason", log)
	}
}

func TestHeadersGoAlong(t *testing.T) {
	t.Parallel()
	c := collector.Serve(t)
	send(t, Config{Endpoint: Endpoint{Target: c.Address()}, Ratio: 1, Version: "v1", Headers: map[string]string{"api-key": "hush"}}, func(tracer *Tracer) {
		_, span := tracer.Start(t.Context(), "provision", subject)
		span.End()
	})
	got := c.Metadata()
	if strings.Join(got.Get("api-key"), " ") != "hush" || !strings.HasPrefix(strings.Join(got.Get("user-agent"), " "), "csi-provisioner/v1 ") {
		t.Errorf("metadata %v, want the header and the user agent", got)
	}
}

func TestTheCollectorMustProveItsName(t *testing.T) {
	t.Parallel()
	certificate, file := selfSigned(t)
	c := collector.Serve(t, grpc.Creds(credentials.NewServerTLSFromCert(&certificate)))
	work := func(tracer *Tracer) {
		_, span := tracer.Start(t.Context(), "provision", subject)
		span.End()
	}
	send(t, Config{Endpoint: Endpoint{Target: c.Address(), TLS: true}, Ratio: 1}, work)
	send(t, Config{Endpoint: Endpoint{Target: c.Address()}, Ratio: 1}, work)
	if spans := c.Spans(); len(spans) != 0 {
		t.Errorf("spans %v went to a stranger", spans)
	}
	send(t, Config{Endpoint: Endpoint{Target: c.Address(), TLS: true}, Ratio: 1, CAFile: file}, work)
	if spans := c.Spans(); len(spans) != 1 {
		t.Errorf("spans %v, want one", spans)
	}
}

func TestNewRefuses(t *testing.T) {
	tls := Endpoint{Target: "localhost:4317", TLS: true}
	empty := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(empty, []byte("nothing"), 0o600); err != nil {
		t.Fatal(err)
	}
	for want, cfg := range map[string]Config{
		"no such file":        {Endpoint: tls, CAFile: "/nonexistent"},
		"has no certificates": {Endpoint: tls, CAFile: empty},
	} {
		if _, err := New(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "no-value")
	if _, err := New(t.Context(), Config{Endpoint: tls}); err == nil || !strings.Contains(err.Error(), "OTEL_RESOURCE_ATTRIBUTES") {
		t.Errorf("error %v, want the name of the variable", err)
	}
}

// selfSigned makes a certificate for 127.0.0.1, and a file with it.
func selfSigned(t *testing.T) (tls.Certificate, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, file
}

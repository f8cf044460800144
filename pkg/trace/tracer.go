package trace

import (
	"context"
	"fmt"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	sdkresource "go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	oteltrace "go.opentelemetry.io/otel/trace"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
	"github.com/csi-sidecars/external-provisioner/pkg/text"
)

// flushLimit is how long a stop waits for the collector to take the last spans.
const flushLimit = 2 * time.Second

// Config describes a Tracer.
type Config struct {
	// Endpoint is the collector; --otlp-endpoint. Required.
	Endpoint Endpoint
	// Ratio is which part of the traces is kept, 0 to 1; see ParseRatio.
	Ratio float64
	// Headers, optional, go along with each request to the collector; see ParseHeaders.
	Headers map[string]string
	// CAFile has the certificates that the collector's must be signed by. Default: those of the system.
	CAFile string
	// Version of this program, and Instance, which tells its processes apart. May be empty.
	Version, Instance string
}

// Tracer makes spans and sends them. Make it with New and run it; nil does nothing. It may be used concurrently.
type Tracer struct {
	sender   *sender
	exporter *exporter
	provider *sdktrace.TracerProvider
	tracer   oteltrace.Tracer
}

// New makes a tracer; the collector need not be there. The SDK reads what it knows of the variables OTEL_*.
func New(ctx context.Context, cfg Config) (*Tracer, error) {
	attributes := []attribute.KeyValue{semconv.ServiceName("csi-provisioner"), semconv.ServiceVersion(cfg.Version)}
	if cfg.Instance != "" {
		attributes = append(attributes, semconv.ServiceInstanceID(cfg.Instance))
	}
	about, err := sdkresource.New(ctx, sdkresource.WithAttributes(attributes...), sdkresource.WithFromEnv())
	if err != nil {
		return nil, fmt.Errorf("traces: read OTEL_RESOURCE_ATTRIBUTES: %w", err)
	}
	s, err := dial(cfg)
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	sending, err := otlptrace.New(ctx, s)
	if err != nil {
		return nil, fmt.Errorf("traces: %w", err)
	}
	logger := klog.FromContext(ctx)
	e := &exporter{SpanExporter: sending, logger: logger, ended: make(chan struct{})}
	logger.Info("Sending traces", "collector", cfg.Endpoint.Target, "tls", cfg.Endpoint.TLS, "ratio", cfg.Ratio)
	provider := sdktrace.NewTracerProvider(
		sdktrace.WithResource(about),
		sdktrace.WithIDGenerator(ids{}),
		sdktrace.WithSampler(evenly{sdktrace.TraceIDRatioBased(cfg.Ratio)}),
		sdktrace.WithBatcher(e),
	)
	return &Tracer{sender: s, exporter: e, provider: provider, tracer: provider.Tracer("github.com/csi-sidecars/external-provisioner")}, nil
}

// Run waits for the end of ctx and then sends what is left, within two seconds. Spans that end later are lost.
func (t *Tracer) Run(ctx context.Context) error {
	<-ctx.Done()
	flushing, cancel := context.WithTimeout(context.WithoutCancel(ctx), flushLimit)
	defer cancel()
	if err := t.provider.Shutdown(flushing); err != nil {
		_ = t.sender.Stop(ctx) // ends what is being sent
		<-t.exporter.ended
		klog.FromContext(ctx).Info("The last spans are lost", "lost", t.exporter.lost, "err", err)
	}
	return nil
}

// Subject is the volume that a piece of work is about. What is empty is left out.
type Subject struct {
	// UID is that of the claim, or of the PersistentVolume that has none, and makes the trace: all work with the same
	// UID is in one. What is no UUID makes a trace of its own.
	UID string
	// Namespace and Claim are the names of the claim, PV and Class those of its PersistentVolume and StorageClass.
	Namespace, Claim, PV, Class string
	// Driver is the name of the CSI driver.
	Driver string
}

// Start begins the span of an attempt, without a parent, in the trace of its subject. Its outcome is Done unless
// Fail says otherwise. End must follow.
func (t *Tracer) Start(ctx context.Context, name string, s Subject) (context.Context, *Span) {
	if t == nil {
		return ctx, nil
	}
	attributes := make([]attribute.KeyValue, 0, 7)
	for _, one := range []attribute.KeyValue{
		driverKey.String(s.Driver), semconv.K8SNamespaceName(s.Namespace), semconv.K8SPersistentvolumeclaimName(s.Claim),
		semconv.K8SPersistentvolumeName(s.PV), semconv.K8SStorageclassName(s.Class),
		outcomeKey.String(outcome.Done.String()),
	} {
		if one.Value.AsString() != "" {
			// Users choose names; one that is no valid UTF-8 would keep the whole batch from being sent.
			one.Value = attribute.StringValue(text.Cut(one.Value.AsString(), maxErrorBytes))
			attributes = append(attributes, one)
		}
	}
	if s.Claim != "" {
		attributes = append(attributes, semconv.K8SPersistentvolumeclaimUID(s.UID))
	}
	return start(context.WithValue(ctx, uidKey{}, s.UID), t.tracer, name, oteltrace.WithNewRoot(), oteltrace.WithAttributes(attributes...))
}

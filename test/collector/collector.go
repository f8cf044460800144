package collector

import (
	"context"
	"encoding/hex"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"

	coltracepb "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
)

// Span is one span as it was received. It is shared and read-only.
type Span struct {
	// Trace, ID and Parent are ids in hexadecimal digits; Parent is empty for a span without one.
	Trace, ID, Parent string
	Name              string
	// Failed says that its status is Error, and Message is the status' text.
	Failed  bool
	Message string
	// Attributes are its own, Resource those of the process, all as text.
	Attributes, Resource map[string]string
}

// Collector takes spans over OTLP and keeps them. Its methods may be called concurrently.
type Collector struct {
	coltracepb.UnimplementedTraceServiceServer

	address string
	server  *grpc.Server

	mu       sync.Mutex
	spans    []Span
	metadata metadata.MD // of the last request
	refuse   string      // why the collector takes nothing; empty when it does
	changed  chan struct{}
}

// Serve starts a collector on a loopback port and stops it when the test ends.
func Serve(tb testing.TB, options ...grpc.ServerOption) *Collector {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		tb.Fatal(err)
	}
	c := &Collector{address: listener.Addr().String(), server: grpc.NewServer(options...), changed: make(chan struct{})}
	coltracepb.RegisterTraceServiceServer(c.server, c)
	var serving sync.WaitGroup
	serving.Go(func() { _ = c.server.Serve(listener) })
	tb.Cleanup(func() {
		c.server.Stop()
		serving.Wait()
	})
	return c
}

// Address is host:port.
func (c *Collector) Address() string { return c.address }

// Refuse makes the collector answer that it takes no spans, and why; an empty reason makes it take them again.
func (c *Collector) Refuse(reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse = reason
}

// Export is the call of the protocol.
func (c *Collector) Export(ctx context.Context, request *coltracepb.ExportTraceServiceRequest) (*coltracepb.ExportTraceServiceResponse, error) {
	spans := read(request)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.metadata, _ = metadata.FromIncomingContext(ctx)
	if c.refuse != "" {
		return &coltracepb.ExportTraceServiceResponse{PartialSuccess: &coltracepb.ExportTracePartialSuccess{
			RejectedSpans: int64(len(spans)), ErrorMessage: c.refuse,
		}}, nil
	}
	c.spans = append(c.spans, spans...)
	close(c.changed)
	c.changed = make(chan struct{})
	return &coltracepb.ExportTraceServiceResponse{}, nil
}

// Spans returns what was received, in the order it came.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Metadata returns those of the last request.
func (c *Collector) Metadata() metadata.MD {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.metadata.Copy()
}

// WaitFor returns the spans as soon as reached is true of them; an error only when ctx has ended.
func (c *Collector) WaitFor(ctx context.Context, reached func([]Span) bool) ([]Span, error) {
	for {
		c.mu.Lock()
		spans, changed := slices.Clone(c.spans), c.changed
		c.mu.Unlock()
		if reached(spans) {
			return spans, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return spans, fmt.Errorf("wait for spans: %w; there are %d", context.Cause(ctx), len(spans))
		}
	}
}

func read(request *coltracepb.ExportTraceServiceRequest) []Span {
	var spans []Span
	for _, process := range request.GetResourceSpans() {
		resource := attributes(process.GetResource().GetAttributes())
		for _, scope := range process.GetScopeSpans() {
			for _, span := range scope.GetSpans() {
				spans = append(spans, Span{
					Trace: hex.EncodeToString(span.GetTraceId()), ID: hex.EncodeToString(span.GetSpanId()),
					Parent: hex.EncodeToString(span.GetParentSpanId()), Name: span.GetName(),
					Failed:  span.GetStatus().GetCode() == tracepb.Status_STATUS_CODE_ERROR,
					Message: span.GetStatus().GetMessage(), Attributes: attributes(span.GetAttributes()), Resource: resource,
				})
			}
		}
	}
	return spans
}

func attributes(list []*commonpb.KeyValue) map[string]string {
	all := map[string]string{}
	for _, one := range list {
		switch value := one.GetValue().GetValue().(type) {
		case *commonpb.AnyValue_StringValue:
			all[one.GetKey()] = value.StringValue
		case *commonpb.AnyValue_IntValue:
			all[one.GetKey()] = fmt.Sprint(value.IntValue)
		default:
			all[one.GetKey()] = one.GetValue().String()
		}
	}
	return all
}

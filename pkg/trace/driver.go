package trace

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	oteltrace "go.opentelemetry.io/otel/trace"
	"google.golang.org/genproto/googleapis/rpc/code"
	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// Intercept is a gRPC interceptor that gives each call within a span one of its own, and tells the called of it by
// the metadata "traceparent". A call without a span around it passes as it is. It must be the outermost interceptor,
// so that it sees the error as everybody sees it.
func (*Tracer) Intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	parent := in(ctx)
	if parent == nil {
		return invoker(ctx, method, req, reply, cc, opts...)
	}
	method = strings.TrimPrefix(method, "/")
	ctx, span := start(ctx, parent.tracer, method, oteltrace.WithSpanKind(oteltrace.SpanKindClient),
		oteltrace.WithAttributes(semconv.RPCSystemNameGRPC, semconv.RPCMethod(method)))
	defer span.End()
	err := invoker(withTraceParent(ctx), "/"+method, req, reply, cc, opts...)
	result := status.Convert(err)
	span.SetAttributes(semconv.RPCResponseStatusCode(code.Code(result.Code()).String())) //nolint:gosec // there are seventeen
	if err != nil {
		span.setError(result.Message())
	}
	return err
}

// withTraceParent puts the innermost span into the metadata that go out.
func withTraceParent(ctx context.Context) context.Context {
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)
	var pairs []string
	for key, value := range carrier {
		pairs = append(pairs, key, value)
	}
	return metadata.AppendToOutgoingContext(ctx, pairs...)
}

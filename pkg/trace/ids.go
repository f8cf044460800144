package trace

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"strings"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// traceID is a UUID without its dashes: both have sixteen bytes, so whoever knows the claim knows the trace. What is
// no UUID gives an invalid id.
func traceID(uid string) oteltrace.TraceID {
	var id oteltrace.TraceID
	bytes, err := hex.DecodeString(strings.ReplaceAll(uid, "-", ""))
	if err == nil && len(bytes) == len(id) {
		copy(id[:], bytes)
	}
	return id
}

// uidKey is the context key of the UID whose trace a new span begins or goes on with.
type uidKey struct{}

// ids makes the ids of spans, and gives those without a parent the trace of the UID in the context.
type ids struct{}

// NewIDs returns the ids of a span without a parent. Without a UID its trace is a random one.
func (ids) NewIDs(ctx context.Context) (oteltrace.TraceID, oteltrace.SpanID) {
	uid, _ := ctx.Value(uidKey{}).(string)
	id := traceID(uid)
	for !id.IsValid() {
		binary.NativeEndian.PutUint64(id[:8], rand.Uint64()) //nolint:gosec // tells traces apart, guards nothing
		binary.NativeEndian.PutUint64(id[8:], rand.Uint64()) //nolint:gosec // the same
	}
	return id, ids{}.NewSpanID(ctx, id)
}

// NewSpanID returns the id of a span of that trace.
func (ids) NewSpanID(context.Context, oteltrace.TraceID) oteltrace.SpanID {
	var id oteltrace.SpanID
	for !id.IsValid() {
		binary.NativeEndian.PutUint64(id[:], rand.Uint64()) //nolint:gosec // tells spans apart, guards nothing
	}
	return id
}

// evenly is a sampler that looks at the end of the trace's id, where a UUID has two bits that are always the same: it
// is shown an id that ends in what the UUID begins with, which is random.
type evenly struct{ sdktrace.Sampler }

// ShouldSample decides about a span; all spans of a trace share the decision.
func (s evenly) ShouldSample(p sdktrace.SamplingParameters) sdktrace.SamplingResult {
	copy(p.TraceID[8:], p.TraceID[:6])
	return s.Sampler.ShouldSample(p)
}

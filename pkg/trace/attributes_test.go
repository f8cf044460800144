package trace

import (
	"strings"
	"testing"
	"unicode/utf8"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
)

// A collector takes no batch with a string that is no valid UTF-8, and users choose names.
func TestAttributesAreValidAndShort(t *testing.T) {
	t.Parallel()
	tracer := &Tracer{tracer: sdktrace.NewTracerProvider().Tracer("test")}
	_, span := tracer.Start(t.Context(), "provision", Subject{UID: "u", Class: "\xff" + strings.Repeat("x", 1<<20), Driver: "d"})
	defer span.End()
	read, ok := span.Span.(sdktrace.ReadOnlySpan)
	if !ok || len(read.Attributes()) != 3 {
		t.Fatalf("%T is no span with three attributes", span.Span)
	}
	for _, attribute := range read.Attributes() {
		if value := attribute.Value.AsString(); !utf8.ValidString(value) || len(value) > maxErrorBytes {
			t.Errorf("%s is %.20q with %d bytes", attribute.Key, value, len(value))
		}
	}
}

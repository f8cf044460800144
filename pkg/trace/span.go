package trace

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	oteltrace "go.opentelemetry.io/otel/trace"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

// maxErrorBytes bounds the text of an error: an event shows no more of it.
const maxErrorBytes = 1024

// Span is a piece of work under way. Nil, which is what there is while tracing is off, does nothing. It belongs to
// one goroutine; the context that came with it may be used by others.
type Span struct {
	oteltrace.Span

	tracer oteltrace.Tracer
	untold bool
	// goesOn says that the next End is not the last one.
	goesOn bool
}

// End ends the span and hands it over to be sent. It never blocks.
func (s *Span) End(options ...oteltrace.SpanEndOption) {
	switch {
	case s == nil || s.untold:
	case s.goesOn:
		s.goesOn = false
	default:
		s.Span.End(options...)
	}
}

// GoOn makes the next End do nothing: the work is put off and goes on later, perhaps in another goroutine.
func (s *Span) GoOn() {
	if s != nil {
		s.goesOn = true
	}
}

// Within returns ctx with s as its innermost span, and ctx for nil.
func (s *Span) Within(ctx context.Context) context.Context {
	if s == nil {
		return ctx
	}
	return oteltrace.ContextWithSpan(ctx, s)
}

// Current returns the innermost span of ctx, nil if there is none.
func Current(ctx context.Context) *Span { return in(ctx) }

// Fail says that the work ends with err. The outcome NotOurs makes the span one that is never sent: nothing was
// done, and whoever serves the claim tells of it. A nil err says nothing.
func (s *Span) Fail(err error) {
	if s == nil || err == nil {
		return
	}
	result := outcome.Of(err)
	s.untold = result == outcome.NotOurs
	s.SetAttributes(outcomeKey.String(result.String()))
	s.setError(err.Error())
}

func (s *Span) setError(text string) {
	if len(text) > maxErrorBytes {
		text = text[:maxErrorBytes]
	}
	s.SetStatus(codes.Error, strings.ToValidUTF8(text, "\uFFFD"))
}

// start begins a span below those in ctx, without a parent if there are none.
func start(ctx context.Context, tracer oteltrace.Tracer, name string, options ...oteltrace.SpanStartOption) (context.Context, *Span) {
	ctx, began := tracer.Start(ctx, name, options...)
	span := &Span{Span: began, tracer: tracer}
	return oteltrace.ContextWithSpan(ctx, span), span
}

// in returns the innermost span of ctx, nil if there is none.
func in(ctx context.Context) *Span {
	span, _ := oteltrace.SpanFromContext(ctx).(*Span)
	return span
}

// Child begins a span within the one in ctx and returns a context with it. Without one it does nothing.
func Child(ctx context.Context, name string) (context.Context, *Span) {
	parent := in(ctx)
	if parent == nil {
		return ctx, nil
	}
	return start(ctx, parent.tracer, name)
}

// Fail is Fail of the innermost span in ctx.
func Fail(ctx context.Context, err error) { in(ctx).Fail(err) }

// PutOff says that the work of the innermost span in ctx has not been done, which is no error.
func PutOff(ctx context.Context) {
	if s := in(ctx); s != nil {
		s.SetAttributes(outcomeKey.String(outcome.Unchanged.String()))
	}
}

// outcomeKey is the attribute that says how an attempt ended, driverKey the driver's name.
const (
	outcomeKey = attribute.Key("csi.outcome")
	driverKey  = attribute.Key("csi.driver")
)

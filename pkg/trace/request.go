package trace

import (
	"net/http"
	"strings"

	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	oteltrace "go.opentelemetry.io/otel/trace"
)

// Transport wraps the transport of a client of the API server: each request within a span gets one of its own, which
// knows the path and the answer's status and nothing else of it. Requests without a span around them pass.
func (*Tracer) Transport(next http.RoundTripper) http.RoundTripper { return transport{next} }

type transport struct{ next http.RoundTripper }

// RoundTrip sends the request.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	parent := in(r.Context())
	if parent == nil {
		return t.next.RoundTrip(r)
	}
	_, span := start(r.Context(), parent.tracer, r.Method+" "+resource(r.URL.Path), oteltrace.WithSpanKind(oteltrace.SpanKindClient),
		oteltrace.WithAttributes(semconv.HTTPRequestMethodKey.String(r.Method), semconv.URLPath(r.URL.Path)))
	defer span.End()
	response, err := t.next.RoundTrip(r)
	if err != nil {
		span.setError(err.Error())
		return response, err
	}
	span.SetAttributes(semconv.HTTPResponseStatusCode(response.StatusCode))
	if response.StatusCode >= http.StatusBadRequest {
		span.setError(response.Status)
	}
	return response, nil
}

// WrappedRoundTripper shows client-go what is inside.
func (t transport) WrappedRoundTripper() http.RoundTripper { return t.next }

// resource returns what a path of the API server is about, as "persistentvolumes", with what is below one object,
// as "pods/status"; the path itself when it is none of those.
//
//	/api/v1/namespaces/NS/RESOURCE/NAME   /apis/GROUP/VERSION/RESOURCE/NAME
func resource(path string) string {
	words := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case words[0] == "api" && len(words) > 2:
		words = words[2:]
	case words[0] == "apis" && len(words) > 3:
		words = words[3:]
	default:
		return path
	}
	if words[0] == "namespaces" && len(words) > 2 {
		words = words[2:]
	}
	if len(words) > 2 {
		return words[0] + "/" + words[2]
	}
	return words[0]
}

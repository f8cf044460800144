// Package trace tells a collector what became of each volume and how long each step took: one trace for each claim,
// in it a span for each attempt, and in that one for each call of the driver and request to the API server.
// Names, times and errors go in; spans go out, in OTLP over gRPC. A nil Tracer does nothing and costs nothing. It
// never attaches a message or a secret to a span, never makes its user wait for the collector, and never lets an
// error of its own be one of the work.
package trace

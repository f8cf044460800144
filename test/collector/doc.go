// Package collector is a collector of traces for tests: the real OTLP trace service over gRPC, which keeps in memory
// what it is sent. Spans come in from a process or a test; out they go as plain values.
package collector

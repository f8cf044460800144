package trace

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"time"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/types/known/emptypb"
	"k8s.io/klog/v2"
)

const (
	exportMethod = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
	// exportTimeout is how long a batch waits for the collector, also for one that is away at the moment.
	exportTimeout = 10 * time.Second
	// redialMax is the longest pause between two tries to reach the collector; shorter than exportTimeout, so that
	// each batch sees one.
	redialMax = 5 * time.Second
	// complainEvery is how often the log says that spans are lost.
	complainEvery = 10 * time.Minute
)

// sender sends spans. OpenTelemetry's own client does the same and brings a gateway from HTTP to gRPC along: four modules
// and 0.4 MB of which nothing would ever be used.
type sender struct {
	conn    *grpc.ClientConn
	headers metadata.MD
}

// dial makes the connection; nothing is sent before there is a span.
func dial(cfg Config) (*sender, error) {
	secure := insecure.NewCredentials()
	if cfg.Endpoint.TLS {
		roots, err := rootsOf(cfg.CAFile)
		if err != nil {
			return nil, err
		}
		secure = credentials.NewTLS(&tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12})
	}
	pauses := backoff.DefaultConfig
	pauses.MaxDelay = redialMax
	conn, err := grpc.NewClient(cfg.Endpoint.Target,
		grpc.WithTransportCredentials(secure),
		grpc.WithDisableServiceConfig(),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: pauses, MinConnectTimeout: redialMax}),
		grpc.WithUserAgent("csi-provisioner/"+cfg.Version),
	)
	if err != nil {
		return nil, fmt.Errorf("collector %q: %w", cfg.Endpoint.Target, err)
	}
	return &sender{conn: conn, headers: metadata.New(cfg.Headers)}, nil
}

// rootsOf reads the certificates that the collector's must be signed by; nil, the system's, without a file.
func rootsOf(file string) (*x509.CertPool, error) {
	if file == "" {
		return nil, nil //nolint:nilnil // the system's
	}
	text, err := os.ReadFile(file) //nolint:gosec // named by whoever configures the process
	if err != nil {
		return nil, fmt.Errorf("read the certificates for the collector: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(text) {
		return nil, fmt.Errorf("%s has no certificates for the collector", file)
	}
	return roots, nil
}

// Start does nothing: the first span makes the connection come about.
func (s *sender) Start(context.Context) error { return nil }

// Stop closes the connection; what is being sent fails.
func (s *sender) Stop(context.Context) error { return s.conn.Close() }

// UploadTraces sends spans and waits for the answer, at most until exportTimeout.
func (s *sender) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(ctx, s.headers), exportTimeout)
	defer cancel()
	// TracesData promises to look like the request on the wire; that is in the package with the gateway.
	answer := &emptypb.Empty{}
	if err := s.conn.Invoke(ctx, exportMethod, &tracepb.TracesData{ResourceSpans: spans}, answer, grpc.WaitForReady(true)); err != nil {
		return err
	}
	if count, reason := refused(answer.ProtoReflect().GetUnknown()); count > 0 {
		return fmt.Errorf("the collector has refused %d spans: %s", count, reason)
	}
	return nil
}

// refused reads the partial_success of an answer: how many spans the collector did not take, and why.
func refused(answer []byte) (count uint64, reason string) {
	_, _, n := protowire.ConsumeTag(answer)
	if n < 0 {
		return 0, ""
	}
	partial, _ := protowire.ConsumeBytes(answer[n:])
	for len(partial) > 0 {
		number, kind, n := protowire.ConsumeTag(partial)
		if n < 0 {
			return count, reason
		}
		partial = partial[n:]
		switch {
		case number == 1 && kind == protowire.VarintType:
			count, _ = protowire.ConsumeVarint(partial)
		case number == 2 && kind == protowire.BytesType:
			reason, _ = protowire.ConsumeString(partial)
		}
		if n = protowire.ConsumeFieldValue(number, kind, partial); n < 0 {
			return count, reason
		}
		partial = partial[n:]
	}
	return count, reason
}

// exporter says in the log that spans are lost, now and then, and keeps that from everybody else. It is used by one
// goroutine at a time.
type exporter struct {
	sdktrace.SpanExporter
	logger klog.Logger
	lost   int // spans since the log said so
	said   time.Time
	ended  chan struct{} // closed when no more spans come
}

// ExportSpans sends spans; those that cannot be sent are lost.
func (e *exporter) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := e.SpanExporter.ExportSpans(ctx, spans)
	if err == nil {
		return nil
	}
	e.lost += len(spans)
	stopping := status.Code(err) == codes.Canceled // Run has the last word then
	if now := time.Now(); !stopping && now.Sub(e.said) >= complainEvery {
		e.logger.Error(err, "Spans are lost; volumes are made all the same", "lost", e.lost, "nextReport", complainEvery)
		e.said, e.lost = now, 0
	}
	return nil
}

// Shutdown is called after the last spans.
func (e *exporter) Shutdown(ctx context.Context) error {
	defer close(e.ended)
	return e.SpanExporter.Shutdown(ctx)
}

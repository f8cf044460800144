package driver

import (
	"io"

	"google.golang.org/grpc/grpclog"
)

// gRPC would write a warning of its own for each failed attempt to connect. Whatever matters of it reaches
// us as an error or a state and is logged here, with less words and less often. It must be set before gRPC
// is used for the first time, and is not guarded by a lock: hence init.
func init() {
	grpclog.SetLoggerV2(grpclog.NewLoggerV2(io.Discard, io.Discard, io.Discard))
}

package driver

import (
	"context"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/protosanitizer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"
)

// logCalls logs the messages of a call at verbosity 5, without secrets, and takes out of its error what the
// driver quotes of them.
func logCalls(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	logger := klog.FromContext(ctx).V(5)
	if logger.Enabled() {
		logger.Info("GRPC call", "method", method, "request", visible(readable(req), secretsOf(req)))
	}
	err := invoker(ctx, method, req, reply, cc, opts...)
	if err != nil {
		err = redactError(err, secretsOf(req))
	}
	if logger.Enabled() {
		logger.Info("GRPC response", "method", method, "response", visible(reply, secretsOf(req)), "err", err)
	}
	return err
}

// visible returns a message as one line of JSON.
func visible(message any, hidden secrets) string {
	return hidden.redact(protosanitizer.StripSecrets(message).String())
}

// readable returns req, or a copy of it when its accessibility requirements are already encoded: package
// topology does that to the long ones, and they would look empty in the log.
func readable(req any) any {
	create, ok := req.(*csi.CreateVolumeRequest)
	if !ok || len(create.GetAccessibilityRequirements().ProtoReflect().GetUnknown()) == 0 {
		return req
	}
	bytes, err := proto.Marshal(create)
	if err != nil {
		return req
	}
	plain := &csi.CreateVolumeRequest{}
	if err := proto.Unmarshal(bytes, plain); err != nil {
		return req
	}
	return plain
}

// redactError returns err, or the same status with another text when it quotes a secret. The details of a status are
// dropped whenever there are secrets: they are encoded messages that may quote them as well, and nothing reads them.
func redactError(err error, hidden secrets) error {
	if err == nil || len(hidden) == 0 {
		return err
	}
	s := status.Convert(err)
	text := hidden.redact(err.Error())
	if text == err.Error() && len(s.Proto().GetDetails()) == 0 {
		return err
	}
	return status.Error(s.Code(), hidden.redact(s.Message()))
}

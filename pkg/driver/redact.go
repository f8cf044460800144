package driver

import (
	"context"
	"slices"
	"strings"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/kubernetes-csi/csi-lib-utils/protosanitizer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"k8s.io/klog/v2"
)

const (
	stripped = "***stripped***"
	// minSecret is the length below which a value is taken for a word and not for a secret: replacing each
	// "1" or "no" would only make an error unreadable.
	minSecret = 4
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
func visible(message any, secrets []string) string {
	return redact(protosanitizer.StripSecrets(message).String(), secrets)
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

// secretsOf returns the values in req that must not be seen, the longest first, so that one which contains
// another is replaced as a whole.
func secretsOf(req any) []string {
	holder, ok := req.(interface{ GetSecrets() map[string]string })
	if !ok {
		return nil
	}
	var secrets []string
	for _, value := range holder.GetSecrets() {
		// Drivers trim the line end that files and shells leave behind.
		if value = strings.TrimSpace(value); len(value) >= minSecret {
			secrets = append(secrets, value)
		}
	}
	slices.SortFunc(secrets, func(a, b string) int {
		if d := len(b) - len(a); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return secrets
}

func redact(text string, secrets []string) string {
	for _, secret := range secrets {
		text = strings.ReplaceAll(text, secret, stripped)
	}
	return text
}

// redactError returns err, or the same status with another text when it quotes a secret. The details of
// such a status are dropped: they may quote it as well.
func redactError(err error, secrets []string) error {
	if err == nil || len(secrets) == 0 {
		return err
	}
	if text := redact(err.Error(), secrets); text == err.Error() {
		return err
	}
	s := status.Convert(err)
	return status.Error(s.Code(), redact(s.Message(), secrets))
}

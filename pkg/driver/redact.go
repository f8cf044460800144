package driver

import (
	"context"
	"slices"
	"strings"

	"github.com/kubernetes-csi/csi-lib-utils/protosanitizer"
	"google.golang.org/grpc"
	"google.golang.org/grpc/status"
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
	secrets := secretsOf(req)
	if logger.Enabled() {
		logger.Info("GRPC call", "method", method, "request", redact(protosanitizer.StripSecrets(req).String(), secrets))
	}
	err := redactError(invoker(ctx, method, req, reply, cc, opts...), secrets)
	if logger.Enabled() {
		logger.Info("GRPC response", "method", method, "response", redact(protosanitizer.StripSecrets(reply).String(), secrets), "err", err)
	}
	return err
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

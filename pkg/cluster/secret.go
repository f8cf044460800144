package cluster

import (
	"context"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/klog/v2"
)

// bodyLevel is the verbosity from which client-go logs the bodies of answers.
const bodyLevel = 8

// GetSecret reads a Secret from the API server; its errors are those of the client. At no verbosity does the
// answer reach the log: client-go logs bodies at V(8) and up with the logger of the context, and that one is capped here.
func GetSecret(ctx context.Context, client kubernetes.Interface, namespace, name string) (*corev1.Secret, error) {
	return client.CoreV1().Secrets(namespace).Get(withoutBodies(ctx), name, metav1.GetOptions{})
}

// withoutBodies returns ctx with a logger that ends below bodyLevel.
func withoutBodies(ctx context.Context) context.Context {
	logger := klog.FromContext(ctx)
	sink := logger.GetSink()
	if sink == nil {
		return ctx
	}
	// client-go asks with V(), which only Enabled can answer; depth stays that of the wrapped sink.
	capped := logr.New(cappedSink{sink})
	return klog.NewContext(ctx, capped.V(logger.GetV()))
}

// cappedSink is a sink that is silent at bodyLevel and above.
type cappedSink struct{ logr.LogSink }

// Init is not passed on: the wrapped sink was initialized by the logger that it comes from.
func (cappedSink) Init(logr.RuntimeInfo) {}

func (s cappedSink) Enabled(level int) bool { return level < bodyLevel && s.LogSink.Enabled(level) }

func (s cappedSink) Info(level int, msg string, keysAndValues ...any) {
	if level < bodyLevel {
		s.LogSink.Info(level, msg, keysAndValues...)
	}
}

func (s cappedSink) WithValues(keysAndValues ...any) logr.LogSink {
	return cappedSink{s.LogSink.WithValues(keysAndValues...)}
}

func (s cappedSink) WithName(name string) logr.LogSink { return cappedSink{s.LogSink.WithName(name)} }

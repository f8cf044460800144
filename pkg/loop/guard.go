package loop

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/text"
)

const (
	// maxPanic and maxStack bound what is kept of a panic: its value may quote an object of any size.
	maxPanic, maxStack = 1 << 10, 64 << 10
	// restartAfter is the pause before a function that has panicked is called again.
	restartAfter = time.Second
)

// panics counts the panics of all components of this process.
var panics = prometheus.NewCounterVec(prometheus.CounterOpts{
	Subsystem: "controller", Name: "panics_recovered_total",
	Help: "Panics that were recovered, by the component in which they occurred. Each one is a bug; the log has its stack.",
}, []string{"component"})

// Panics is the metric controller_panics_recovered_total, for a registry.
func Panics() prometheus.Collector { return panics }

// CountPanic counts a panic that somebody else has recovered and logged, such as client-go.
func CountPanic(component string) { panics.WithLabelValues(component).Inc() }

// PanicError is a panic that Guard has recovered.
type PanicError struct {
	component, value string
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic in %s: %s", e.component, e.value) }

// Guard calls f and returns its error. A panic of f does not end the process: it is counted, logged with its stack, and
// returned as a *PanicError, which the caller treats like any other error. Whatever f has locked must be unlocked by defer.
// component is a label of the metric: a constant, never a name that a user has chosen. Guard may be called concurrently.
func Guard(ctx context.Context, component string, f func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = recovered(ctx, component, value)
		}
	}()
	return f()
}

// GuardFunc is Guard for a function that has no error to return: of a panic there is nothing but the log and the metric.
func GuardFunc(ctx context.Context, component string, f func()) {
	_ = Guard(ctx, component, func() error {
		f()
		return nil
	})
}

// Restart calls f, and after a panic again, a second later, until f returns or ctx ends. It is for a goroutine without keys
// that nobody would start a second time.
func Restart(ctx context.Context, component string, f func(context.Context)) {
	for {
		err := Guard(ctx, component, func() error {
			f(ctx)
			return nil
		})
		if err == nil {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(restartAfter):
		}
	}
}

// recovered counts and logs a panic. It is called by the deferred function that has recovered it, so that the stack is
// still that of the panic.
func recovered(ctx context.Context, component string, value any) error {
	CountPanic(component)
	err := &PanicError{component: component, value: text.Cut(fmt.Sprint(value), maxPanic)}
	klog.FromContext(ctx).Error(err, "Panic recovered", "component", component, "stack", text.Cut(string(debug.Stack()), maxStack))
	return err
}

package driver

import (
	"context"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

// exchange records what was sent and received during one call. The code of an error does not tell that: gRPC makes
// errors of its own, with any code that a driver may answer too. A nil *exchange records nothing. Safe for concurrent use.
type exchange struct {
	// mayCall is Config.MayCall for this call; nil if it needs no permission. It is set before the call.
	mayCall func() error
	// refused is set when mayCall kept the call from being sent.
	refused atomic.Bool
	// sent is set before the first byte of the request can reach the driver.
	sent atomic.Bool
	// message is set when a response message arrived, whether or not it can be decoded: then the driver did not answer
	// with an error.
	message atomic.Bool
	// trailers is set when the trailers arrived, which carry the status that the driver answered with.
	trailers atomic.Bool
}

type exchangeKey struct{}

// recorded returns a context whose call is recorded in e.
func (e *exchange) recorded(ctx context.Context) context.Context {
	return context.WithValue(ctx, exchangeKey{}, e)
}

func exchangeOf(ctx context.Context) *exchange {
	e, _ := ctx.Value(exchangeKey{}).(*exchange)
	return e
}

// judge returns the error that the recorded call ended with. The driver's answer is returned as it is. Any other error
// was made by gRPC: it carries outcome.Unchanged when the request was certainly not sent, else it is an
// outcome.WithoutAnswer.
func (e *exchange) judge(err error) error {
	switch {
	case err == nil:
		return nil
	case !e.sent.Load():
		return outcome.With(outcome.Unchanged, err)
	case e.trailers.Load() && !e.message.Load():
		return err
	default:
		return outcome.WithoutAnswer(err)
	}
}

// recorder is the stats.Handler that fills in the exchange of each call.
type recorder struct{}

// HandleRPC is called by the goroutine of the call and by that of the connection, and for the trailers before the call
// can return because of them.
func (recorder) HandleRPC(ctx context.Context, event stats.RPCStats) {
	e := exchangeOf(ctx)
	if e == nil {
		return
	}
	switch event.(type) {
	case *stats.OutPayload:
		e.sent.Store(true)
	case *stats.InTrailer:
		e.trailers.Store(true)
	}
}

// TagRPC returns ctx.
func (recorder) TagRPC(ctx context.Context, _ *stats.RPCTagInfo) context.Context { return ctx }

// TagConn returns ctx.
func (recorder) TagConn(ctx context.Context, _ *stats.ConnTagInfo) context.Context { return ctx }

// HandleConn does nothing.
func (recorder) HandleConn(context.Context, stats.ConnStats) {}

// received is a response that is being waited for. The codec tells its exchange that a message arrived.
type received struct {
	reply    any
	exchange *exchange
}

// permit is the innermost interceptor: nothing is between it and the connection. It lets the codec find the exchange, and
// asks whether the call may be sent. At verbosity 6 it logs that it may, for tests that compare this with what the driver
// sees.
func permit(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	if e := exchangeOf(ctx); e != nil {
		reply = &received{reply: reply, exchange: e}
		if e.mayCall != nil {
			if err := e.mayCall(); err != nil {
				e.refused.Store(true)
				return status.Errorf(codes.Unavailable, "nothing was sent to the CSI driver: %v", err)
			}
			klog.FromContext(ctx).V(6).Info("The call may be sent", "method", method)
		}
	}
	return invoker(ctx, method, req, reply, cc, opts...)
}

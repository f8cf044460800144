package driver

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
)

const (
	// handshakeTimeout bounds the time from an open socket to a gRPC connection.
	handshakeTimeout = 20 * time.Second
	// lossGrace is how long a call's Unavailable may come before the connection's state shows the loss.
	lossGrace = 100 * time.Millisecond
	// maxResponse is the size up to which gRPC reads a response. It is gRPC's default.
	maxResponse = 4 << 20
	// receiveWindow is how much of a response the driver may send before we read. It must be smaller than maxResponse
	// and must not grow: so the trailers of a response that is too large never arrive before gRPC has refused it.
	receiveWindow = 64 << 10
)

var (
	errNoGRPC = errors.New("somebody listens on the socket but does not answer as a gRPC server")
	errSpent  = errors.New("the connection to the CSI driver is lost")
)

// link is one connection to one process of the driver. It is never dialled again: after a loss each call
// on it fails, so that no call can reach a driver that came back and has not been looked at yet.
type link struct {
	conn *grpc.ClientConn
	raw  *socket

	identity   csi.IdentityClient
	controller csi.ControllerClient
	node       csi.NodeClient

	// mu guards what follows.
	mu sync.Mutex
	// calls is how many calls are in flight.
	calls int
	// retired means that the last of them closes the connection.
	retired bool
}

// socket is a net.Conn that tells when it was closed, which happens before the calls on it learn of it.
type socket struct {
	net.Conn

	once   sync.Once
	closed chan struct{}
}

// Close closes the connection. It may be called more than once.
func (s *socket) Close() error {
	s.once.Do(func() { close(s.closed) })
	return s.Conn.Close()
}

// newLink makes the gRPC connection over raw, which it owns from now on. It blocks until the driver has
// answered the handshake, the connection has broken, or ctx has ended.
func newLink(ctx context.Context, raw net.Conn, interceptors ...grpc.UnaryClientInterceptor) (*link, error) {
	sock := &socket{Conn: raw, closed: make(chan struct{})}
	unused := make(chan net.Conn, 1)
	unused <- sock
	conn, err := grpc.NewClient("passthrough:///csi",
		grpc.WithAuthority("localhost"),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithIdleTimeout(0),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(newCodec()), grpc.MaxCallRecvMsgSize(maxResponse)),
		grpc.WithStaticStreamWindowSize(receiveWindow),
		grpc.WithStatsHandler(recorder{}),
		grpc.WithContextDialer(func(context.Context, string) (net.Conn, error) {
			select {
			case c := <-unused:
				return c, nil
			default:
				return nil, errSpent
			}
		}),
		grpc.WithChainUnaryInterceptor(append(interceptors, permit)...),
	)
	if err != nil {
		return nil, errors.Join(err, sock.Close())
	}
	l := &link{
		conn: conn, raw: sock,
		identity: csi.NewIdentityClient(conn), controller: csi.NewControllerClient(conn), node: csi.NewNodeClient(conn),
	}
	if err := l.handshake(ctx); err != nil {
		l.retire()
		return nil, err
	}
	return l, nil
}

func (l *link) handshake(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	for {
		state := l.conn.GetState()
		switch state {
		case connectivity.Ready:
			return nil
		case connectivity.TransientFailure, connectivity.Shutdown:
			return errNoGRPC
		case connectivity.Idle:
			l.conn.Connect()
		case connectivity.Connecting:
		}
		if !l.conn.WaitForStateChange(ctx, state) {
			return errNoGRPC
		}
	}
}

// alive reports whether a call would be sent.
func (l *link) alive() bool {
	select {
	case <-l.raw.closed:
		return false
	default:
		return l.conn.GetState() == connectivity.Ready
	}
}

// lost blocks until the connection is lost, and then returns true, or until ctx has ended.
func (l *link) lost(ctx context.Context) bool {
	for l.alive() {
		if !l.conn.WaitForStateChange(ctx, connectivity.Ready) {
			return false
		}
	}
	return true
}

// lostBy reports whether err, which a call on l ended with, came from the loss of the connection and not
// from the driver.
func (l *link) lostBy(ctx context.Context, err error) bool {
	if status.Code(err) != codes.Unavailable {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, lossGrace)
	defer cancel()
	return l.lost(ctx)
}

// acquire announces a call. It returns false when the connection is not to be used any more; otherwise
// release must follow.
func (l *link) acquire() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.retired || !l.alive() {
		return false
	}
	l.calls++
	return true
}

func (l *link) release() {
	l.mu.Lock()
	l.calls--
	last := l.retired && l.calls == 0
	l.mu.Unlock()
	if last {
		l.close()
	}
}

// retire closes the connection as soon as no call is in flight: a driver that stops gracefully still
// answers what it has begun.
func (l *link) retire() {
	l.mu.Lock()
	first := !l.retired
	l.retired = true
	idle := l.calls == 0
	l.mu.Unlock()
	if first && idle {
		l.close()
	}
}

// close ends the connection at once. Errors say that it was closed already.
func (l *link) close() {
	_ = l.conn.Close()
	_ = l.raw.Close()
}

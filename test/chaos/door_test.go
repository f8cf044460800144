package chaos

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
)

// door is a socket of one sidecar's own that leads to the driver and records the calls that change volumes: the driver cannot
// tell its callers apart.
type door struct {
	socket string

	mu    sync.Mutex
	calls []passed // guarded by mu
}

// passed is one call.
type passed struct {
	method string
	at     time.Time
}

// newDoor opens a door to the driver until the test ends.
func newDoor(t *testing.T, driver string) *door {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+driver, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(raw{})))
	if err != nil {
		t.Fatal(err)
	}
	d := &door{socket: filepath.Join(t.TempDir(), "door.sock")}
	listener, err := net.Listen("unix", d.socket) //nolint:noctx // it is closed with the test
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.ForceServerCodecV2(raw{}), grpc.UnknownServiceHandler(func(_ any, stream grpc.ServerStream) error {
		return d.pass(conn, stream)
	}))
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	t.Cleanup(func() {
		server.Stop()
		serving.Wait()
		_ = conn.Close()
	})
	return d
}

func (d *door) pass(conn *grpc.ClientConn, stream grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(stream)
	if !ok {
		return status.Error(codes.Internal, "a call without a method")
	}
	if strings.HasSuffix(method, "/CreateVolume") || strings.HasSuffix(method, "/DeleteVolume") {
		d.mu.Lock()
		d.calls = append(d.calls, passed{method, time.Now()})
		d.mu.Unlock()
	}
	var request, response message
	if err := stream.RecvMsg(&request); err != nil {
		return err
	}
	// Like a driver, what is behind the door goes on when the caller has left.
	if err := conn.Invoke(context.WithoutCancel(stream.Context()), method, &request, &response); err != nil {
		return err
	}
	return stream.SendMsg(&response)
}

// since returns the calls that came after that time, in order.
func (d *door) since(from time.Time) []passed {
	d.mu.Lock()
	defer d.mu.Unlock()
	var late []passed
	for _, call := range d.calls {
		if call.at.After(from) {
			late = append(late, call)
		}
	}
	return late
}

// message is one that nobody looks into.
type message []byte

// raw is the codec of message.
type raw struct{}

func (raw) Name() string { return "proto" }

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	m, ok := v.(*message)
	if !ok {
		return nil, fmt.Errorf("cannot encode %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*m)}, nil
}

func (raw) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(*message)
	if !ok {
		return fmt.Errorf("cannot decode into %T", v)
	}
	*m = data.Materialize()
	return nil
}

package driver

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/wrapperspb"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/ktesting"
)

// fakeDriver is a CSI driver whose answers are functions. A nil function gives the plain answer.
type fakeDriver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedNodeServer

	name           string
	pluginCaps     []csi.PluginCapability_Service_Type
	controllerCaps []csi.ControllerServiceCapability_RPC_Type
	volumes        int // how many ListVolumes returns

	probe            func(ctx context.Context) (*csi.ProbeResponse, error)
	info             func(ctx context.Context) error
	pluginCapErr     func(ctx context.Context) error
	controllerCapErr func(ctx context.Context) error
	create           func(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error)
	delete           func(ctx context.Context, req *csi.DeleteVolumeRequest) error
	room             func(ctx context.Context)
	node             func(ctx context.Context) (*csi.NodeGetInfoResponse, error)

	mu    sync.Mutex
	calls []string    // short method names
	times []time.Time // when each began
}

func newFake(name string) *fakeDriver {
	return &fakeDriver{
		name:           name,
		pluginCaps:     []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE, csi.PluginCapability_Service_VOLUME_ACCESSIBILITY_CONSTRAINTS},
		controllerCaps: []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME},
	}
}

func (f *fakeDriver) record(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
	f.mu.Lock()
	f.calls = append(f.calls, info.FullMethod[strings.LastIndex(info.FullMethod, "/")+1:])
	f.times = append(f.times, time.Now())
	f.mu.Unlock()
	return handler(ctx, req)
}

func (f *fakeDriver) called() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

func (f *fakeDriver) count(method string) int {
	n := 0
	for _, call := range f.called() {
		if call == method {
			n++
		}
	}
	return n
}

func (f *fakeDriver) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	if f.probe != nil {
		return f.probe(ctx)
	}
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

func (f *fakeDriver) GetPluginInfo(ctx context.Context, _ *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	if f.info != nil {
		if err := f.info(ctx); err != nil {
			return nil, err
		}
	}
	return &csi.GetPluginInfoResponse{Name: f.name, VendorVersion: "1"}, nil
}

func (f *fakeDriver) GetPluginCapabilities(ctx context.Context, _ *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	if f.pluginCapErr != nil {
		if err := f.pluginCapErr(ctx); err != nil {
			return nil, err
		}
	}
	resp := &csi.GetPluginCapabilitiesResponse{}
	for _, c := range f.pluginCaps {
		resp.Capabilities = append(resp.Capabilities, &csi.PluginCapability{
			Type: &csi.PluginCapability_Service_{Service: &csi.PluginCapability_Service{Type: c}},
		})
	}
	return resp, nil
}

func (f *fakeDriver) ControllerGetCapabilities(ctx context.Context, _ *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	if f.controllerCapErr != nil {
		if err := f.controllerCapErr(ctx); err != nil {
			return nil, err
		}
	}
	resp := &csi.ControllerGetCapabilitiesResponse{}
	for _, c := range f.controllerCaps {
		resp.Capabilities = append(resp.Capabilities, &csi.ControllerServiceCapability{
			Type: &csi.ControllerServiceCapability_Rpc{Rpc: &csi.ControllerServiceCapability_RPC{Type: c}},
		})
	}
	return resp, nil
}

func (f *fakeDriver) CreateVolume(ctx context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if f.create != nil {
		return f.create(ctx, req)
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "vol-" + req.GetName()}}, nil
}

func (f *fakeDriver) DeleteVolume(ctx context.Context, req *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if f.delete != nil {
		if err := f.delete(ctx, req); err != nil {
			return nil, err
		}
	}
	return &csi.DeleteVolumeResponse{}, nil
}

func (f *fakeDriver) GetCapacity(ctx context.Context, _ *csi.GetCapacityRequest) (*csi.GetCapacityResponse, error) {
	if f.room != nil {
		f.room(ctx)
	}
	return &csi.GetCapacityResponse{AvailableCapacity: 7}, nil
}

func (f *fakeDriver) ListVolumes(_ context.Context, req *csi.ListVolumesRequest) (*csi.ListVolumesResponse, error) {
	resp := &csi.ListVolumesResponse{NextToken: req.GetStartingToken() + "+"}
	for i := range f.volumes {
		resp.Entries = append(resp.Entries, &csi.ListVolumesResponse_Entry{Volume: &csi.Volume{VolumeId: fmt.Sprintf("vol-%060d", i)}})
	}
	return resp, nil
}

func (f *fakeDriver) NodeGetInfo(ctx context.Context, _ *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	if f.node != nil {
		return f.node(ctx)
	}
	return &csi.NodeGetInfoResponse{NodeId: "node-1"}, nil
}

// serve serves f on l and returns the server. The test stops it at its end if it still runs.
func (f *fakeDriver) serve(t *testing.T, l net.Listener, options ...grpc.ServerOption) *grpc.Server {
	t.Helper()
	s := grpc.NewServer(append(options, grpc.UnaryInterceptor(f.record))...)
	csi.RegisterIdentityServer(s, f)
	csi.RegisterControllerServer(s, f)
	csi.RegisterNodeServer(s, f)
	var done sync.WaitGroup
	done.Go(func() { _ = s.Serve(l) })
	t.Cleanup(func() { s.Stop(); done.Wait() })
	return s
}

// listen serves f on a unix socket.
func (f *fakeDriver) listen(t *testing.T, path string, options ...grpc.ServerOption) *grpc.Server {
	t.Helper()
	return f.serve(t, listenUnix(t, path), options...)
}

func listenUnix(t *testing.T, path string) net.Listener {
	t.Helper()
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// socketFile returns a path for a socket that does not exist yet. The path is short: sockets demand it.
func socketFile(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "d") //nolint:usetesting // t.TempDir is too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return filepath.Join(dir, "s")
}

// wire is a socket in memory for tests in a synctest bubble: no driver listens until serve is called.
type wire struct {
	mu sync.Mutex
	l  *memListener
}

// memListener is a listener whose connections are pipes.
type memListener struct {
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func (w *wire) listen() net.Listener {
	l := &memListener{conns: make(chan net.Conn), closed: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.l = l
	return l
}

// dial fails with the error of the operating system while nobody listens.
func (w *wire) dial(ctx context.Context, path string) (net.Conn, error) {
	w.mu.Lock()
	l := w.l
	w.mu.Unlock()
	if l == nil {
		return nil, &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", os.ErrNotExist)}
	}
	ours, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return ours, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "dial", Net: "unix", Err: os.NewSyscallError("connect", os.ErrNotExist)}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (l *memListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l *memListener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *memListener) Addr() net.Addr { return &net.UnixAddr{Net: "unix", Name: "mem"} }

// logs is a logger whose lines a test reads.
type logs struct{ logger klog.Logger }

// withLogs returns a context whose logger keeps all lines up to verbosity 5.
func withLogs(t *testing.T) (context.Context, logs) {
	t.Helper()
	logger := ktesting.NewLogger(t, ktesting.NewConfig(ktesting.BufferLogs(true), ktesting.Verbosity(5)))
	return klog.NewContext(t.Context(), logger), logs{logger}
}

// quiet returns the test's context with a logger whose lines are seen only when the test fails.
func quiet(t *testing.T) context.Context {
	t.Helper()
	ctx, _ := withLogs(t)
	return ctx
}

func (l logs) text() string {
	return l.logger.GetSink().(ktesting.Underlier).GetBuffer().String()
}

// lines returns the lines that contain message.
func (l logs) lines(message string) []string {
	var found []string
	for line := range strings.Lines(l.text()) {
		if strings.Contains(line, message) {
			found = append(found, line)
		}
	}
	return found
}

// eventually waits until done is true; a test that must wait longer than 20 s has failed.
func eventually(t *testing.T, what string, done func() bool) {
	t.Helper()
	for deadline := time.Now().Add(longEnough); !done(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still not so: %s", what)
		}
	}
}

// longEnough is how long these tests wait for what takes a moment.
const longEnough = 30 * time.Second

// within returns what comes from c, and fails the test when that takes too long.
func within[T any](t *testing.T, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(longEnough):
		t.Fatalf("%s takes longer than %s", what, longEnough)
		panic("not reached")
	}
}

// result is what Connect returns.
type result struct {
	driver *Driver
	err    error
}

// connecting runs Connect in the background.
func connecting(ctx context.Context, cfg Config) <-chan result {
	c := make(chan result, 1)
	go func() {
		d, err := Connect(ctx, cfg)
		c <- result{d, err}
	}()
	return c
}

// connect connects to a driver that is there and closes the connection at the end of the test.
func connect(t *testing.T, ctx context.Context, cfg Config) *Driver {
	t.Helper()
	d, err := Connect(ctx, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// supervising runs Supervise in the background until the test ends.
func supervising(t *testing.T, ctx context.Context, d *Driver) <-chan error {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx)
	c := make(chan error, 1)
	var done sync.WaitGroup
	done.Go(func() { c <- d.Supervise(ctx) })
	t.Cleanup(func() { cancel(); done.Wait() })
	return c
}

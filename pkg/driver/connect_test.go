package driver

import (
	"context"
	"errors"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestConnectLearnsWhoTheDriverIs(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	fake := newFake("d.example.com")
	fake.listen(t, path)
	ctx, log := withLogs(t)
	d := connect(t, ctx, Config{Address: unixPrefix + path, Timeout: time.Minute})
	id := d.Identity()
	if id.Name != "d.example.com" {
		t.Errorf("name %q", id.Name)
	}
	if !id.Plugin.Has(csi.PluginCapability_Service_CONTROLLER_SERVICE) || id.Plugin.Has(csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE) {
		t.Errorf("plugin capabilities %v", names(id.Plugin))
	}
	if !id.Controller.Has(csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME) || id.Controller.Has(csi.ControllerServiceCapability_RPC_CLONE_VOLUME) {
		t.Errorf("controller capabilities %v", names(id.Controller))
	}
	want := []string{"Probe", "GetPluginInfo", "GetPluginCapabilities", "ControllerGetCapabilities"}
	if diff := cmp.Diff(want, fake.called()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if got := log.lines("Waiting for"); len(got) != 0 {
		t.Errorf("lines about waiting for a driver that was there: %q", got)
	}
	if !d.Ready() {
		t.Error("not ready after Connect")
	}
}

func TestConnectWaitsForALateSocket(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	ctx, log := withLogs(t)
	c := connecting(ctx, Config{Address: path, Timeout: time.Minute})
	eventually(t, "the wait is in the log", func() bool { return len(log.lines("Waiting for the CSI driver")) == 1 })
	line := log.lines("Waiting for the CSI driver")[0]
	for _, want := range []string{path, "no such file or directory", "the driver container must create this socket"} {
		if !strings.Contains(line, want) {
			t.Errorf("line %q does not contain %q", line, want)
		}
	}
	newFake("late").listen(t, path)
	r := within(t, "Connect", c)
	if r.err != nil {
		t.Fatal(r.err)
	}
	r.driver.Close()
}

func TestConnectNamesWhatTheSocketLacks(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	l := listenUnix(t, path)
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, log := withLogs(t)
	ctx, cancel := context.WithCancel(ctx)
	c := connecting(ctx, Config{Address: path, Timeout: time.Minute})
	eventually(t, "the refusal is in the log", func() bool { return len(log.lines("connection refused")) == 1 })
	if got := log.lines("left from an earlier process"); len(got) != 1 {
		t.Errorf("no hint about the socket file of a dead process in %q", log.text())
	}
	cancel()
	err := within(t, "Connect", c).err
	if !errors.Is(err, context.Canceled) {
		t.Fatalf("error %v, want the end of the context", err)
	}
	for _, want := range []string{path, "connection refused", "driver container"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error %q does not contain %q", err, want)
		}
	}
}

// The socket may come after hours; the log hears of it every ten seconds.
func TestConnectWaitsWithoutLimitAndQuietly(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w wire
		ctx, log := withLogs(t)
		c := connecting(ctx, Config{Address: "/mem", Timeout: time.Minute, dial: w.dial})
		time.Sleep(3*time.Hour + time.Second)
		if got := len(log.lines("Waiting for")); got < 980 || got > 1081 {
			t.Errorf("%d lines in three hours, want at most one in ten seconds and not much less", got)
		}
		s := newFake("late").serve(t, w.listen())
		begin := time.Now()
		r := <-c
		if r.err != nil {
			t.Fatal(r.err)
		}
		if took := time.Since(begin); took > time.Second {
			t.Errorf("connected %s after the socket was there, want at most 1s", took)
		}
		r.driver.Close()
		s.Stop()
	})
}

func TestFirstQuestionsAreAskedOnce(t *testing.T) {
	t.Parallel()
	answer := func(code codes.Code) func(context.Context) error {
		return func(context.Context) error { return status.Error(code, "as told") }
	}
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	tests := map[string]struct {
		set       func(f *fakeDriver)
		wantErr   string
		wantCalls []string
	}{
		"an empty name": {
			func(f *fakeDriver) { f.name = "" },
			"the name is empty", []string{"Probe", "GetPluginInfo"},
		},
		"no answer to the name": {
			func(f *fakeDriver) { f.info = hang },
			"DeadlineExceeded", []string{"Probe", "GetPluginInfo"},
		},
		"unavailable while asked for the name": {
			func(f *fakeDriver) { f.info = answer(codes.Unavailable) },
			"Unavailable", []string{"Probe", "GetPluginInfo"},
		},
		"plugin capabilities not implemented": {
			func(f *fakeDriver) { f.pluginCapErr = answer(codes.Unimplemented) },
			"plugin capabilities", []string{"Probe", "GetPluginInfo", "GetPluginCapabilities"},
		},
		"controller capabilities not implemented": {
			func(f *fakeDriver) { f.controllerCapErr = answer(codes.Unimplemented) },
			"controller capabilities", []string{"Probe", "GetPluginInfo", "GetPluginCapabilities", "ControllerGetCapabilities"},
		},
		"no capabilities at all": {
			func(f *fakeDriver) { f.pluginCaps, f.controllerCaps = nil, nil },
			"", []string{"Probe", "GetPluginInfo", "GetPluginCapabilities", "ControllerGetCapabilities"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var w wire
				fake := newFake("d")
				tc.set(fake)
				s := fake.serve(t, w.listen())
				r := <-connecting(quiet(t), Config{Address: "/mem", Timeout: 15 * time.Second, dial: w.dial})
				if r.err == nil {
					r.driver.Close()
				}
				if (r.err == nil) != (tc.wantErr == "") || r.err != nil && !strings.Contains(r.err.Error(), tc.wantErr) {
					t.Errorf("error %v, want one with %q", r.err, tc.wantErr)
				}
				if diff := cmp.Diff(tc.wantCalls, fake.called()); diff != "" {
					t.Errorf("calls (-want +got):\n%s", diff)
				}
				s.Stop()
			})
		})
	}
}

func TestMigratedDriverIsProbedTwice(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	fake := newFake("ebs.csi.aws.com")
	fake.listen(t, path)
	connect(t, quiet(t), Config{Address: path, Timeout: time.Minute, Migrated: func(name string) bool { return name == "ebs.csi.aws.com" }})
	want := []string{"Probe", "GetPluginInfo", "Probe", "GetPluginCapabilities", "ControllerGetCapabilities"}
	if diff := cmp.Diff(want, fake.called()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// Somebody else on the socket is waited out like nobody.
func TestConnectOutlivesGarbage(t *testing.T) {
	t.Parallel()
	tests := map[string]func(net.Conn){
		"answers in another protocol": func(c net.Conn) { _, _ = c.Write([]byte(strings.Repeat("no gRPC here\r\n", 100))) },
		"closes at once":              func(net.Conn) {},
	}
	for name, answer := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := socketFile(t)
			l := listenUnix(t, path)
			var accepted atomic.Int32
			var done sync.WaitGroup
			done.Go(func() {
				for {
					c, err := l.Accept()
					if err != nil {
						return
					}
					answer(c)
					_ = c.Close()
					accepted.Add(1)
				}
			})
			ctx, log := withLogs(t)
			c := connecting(ctx, Config{Address: path, Timeout: time.Minute})
			eventually(t, "it was tried again", func() bool { return accepted.Load() >= 2 })
			_ = l.Close()
			done.Wait()
			newFake("real").listen(t, path)
			r := within(t, "Connect", c)
			if r.err != nil {
				t.Fatal(r.err)
			}
			r.driver.Close()
			if got := len(log.lines("does not answer as a gRPC server")); got != 1 {
				t.Errorf("%d lines about the stranger, want 1:\n%s", got, log.text())
			}
		})
	}
}

// A driver that crashes between its first answers is waited for again.
func TestConnectStartsOverWhenTheDriverDiesMeanwhile(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	first := newFake("d")
	dying := make(chan struct{})
	first.info = func(ctx context.Context) error { close(dying); <-ctx.Done(); return ctx.Err() }
	s := first.listen(t, path)
	c := connecting(quiet(t), Config{Address: path, Timeout: time.Minute})
	within(t, "the first question", dying)
	s.Stop()
	second := newFake("d")
	second.listen(t, path)
	r := within(t, "Connect", c)
	if r.err != nil {
		t.Fatal(r.err)
	}
	r.driver.Close()
	want := []string{"Probe", "GetPluginInfo", "GetPluginCapabilities", "ControllerGetCapabilities"}
	if diff := cmp.Diff(want, second.called()); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// Whatever Connect waits for, the end of its context ends it.
func TestConnectEndsWithItsContext(t *testing.T) {
	t.Parallel()
	hang := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	served := func(set func(f *fakeDriver)) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			f := newFake("d")
			set(f)
			f.listen(t, path)
		}
	}
	tests := map[string]func(t *testing.T, path string){
		"no socket":               func(*testing.T, string) {},
		"a socket that is silent": func(t *testing.T, path string) { listenUnix(t, path) },
		"a probe that hangs": served(func(f *fakeDriver) {
			f.probe = func(ctx context.Context) (*csi.ProbeResponse, error) { return nil, hang(ctx) }
		}),
		"a driver that is not ready": served(func(f *fakeDriver) {
			f.probe = func(context.Context) (*csi.ProbeResponse, error) {
				return &csi.ProbeResponse{Ready: wrapperspb.Bool(false)}, nil
			}
		}),
		"the name":                served(func(f *fakeDriver) { f.info = hang }),
		"plugin capabilities":     served(func(f *fakeDriver) { f.pluginCapErr = hang }),
		"controller capabilities": served(func(f *fakeDriver) { f.controllerCapErr = hang }),
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := socketFile(t)
			prepare(t, path)
			ctx, cancel := context.WithTimeout(quiet(t), 100*time.Millisecond)
			defer cancel()
			err := within(t, "Connect", connecting(ctx, Config{Address: path, Timeout: time.Hour})).err
			if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), path) {
				t.Errorf("error %v, want the end of the context and the address", err)
			}
		})
	}
}

func TestConnectLeavesNoSocketOpen(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	l := listenUnix(t, path)
	accepted, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err != nil {
			ended <- err
			return
		}
		close(accepted)
		buf := make([]byte, 1024)
		for err == nil {
			_, err = c.Read(buf) // silent, until the other end closes
		}
		ended <- c.Close()
	}()
	ctx, cancel := context.WithCancel(quiet(t))
	c := connecting(ctx, Config{Address: path, Timeout: time.Minute})
	within(t, "a connection", accepted)
	cancel()
	within(t, "Connect", c)
	if err := within(t, "closing the socket", ended); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
}

package driver

import (
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

// The driver dies while nothing is asked of it and comes back as the same one.
func TestSuperviseRegainsTheSameDriver(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	server := newFake("d").listen(t, path)
	ctx, log := withLogs(t)
	m := NewMetrics()
	connected := func(want string) {
		t.Helper()
		if got := connectedSeries(t, m); got != want {
			t.Errorf("driver_connected is %q, want %q", got, want)
		}
	}
	connected("unknown-driver 0")
	d := connect(t, ctx, Config{Address: path, Timeout: time.Minute, Metrics: m})
	connected("d 1")
	if since, why := d.Away(); !since.IsZero() || why != nil {
		t.Errorf("away since %s, %v, while the driver is there", since, why)
	}
	var woken atomic.Int32
	d.OnReady(func() {
		if !d.Ready() || d.Gate(ctx) != nil {
			t.Error("woken before the driver was ready")
		}
		woken.Add(1)
	})
	ended := supervising(t, ctx, d)
	if err := d.Gate(ctx); err != nil {
		t.Fatal(err)
	}

	begin := time.Now()
	server.Stop()
	eventually(t, "the loss is in the log", func() bool { return len(log.lines("Lost the connection")) == 1 })
	if took := time.Since(begin); took > time.Second {
		t.Errorf("noticed after %s, want within a second", took)
	}
	if d.Ready() {
		t.Error("ready while the driver is dead")
	}
	eventually(t, "the driver was looked for", func() bool { _, why := d.Away(); return why != nil })
	if since, why := d.Away(); since.Before(begin) || !strings.Contains(why.Error(), "the driver container must") {
		t.Errorf("away since %s, before its loss, because %v", since, why)
	}
	connected("d 0")
	_, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "v"})
	if status.Code(err) != codes.Unavailable || outcome.Of(err) != outcome.Unchanged {
		t.Errorf("CreateVolume while the driver is away: %v (%s), want Unavailable and Unchanged", err, outcome.Of(err))
	}
	gate := make(chan error, 1)
	go func() { gate <- d.Gate(ctx) }()

	back := newFake("d")
	back.listen(t, path)
	if err := within(t, "the gate", gate); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the hook is called", func() bool { return woken.Load() == 1 })
	connected("d 1")
	if _, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{Name: "v"}); err != nil {
		t.Errorf("CreateVolume after the return: %v", err)
	}
	if got := log.lines("The CSI driver is back"); len(got) != 1 || !strings.Contains(got[0], "away=") {
		t.Errorf("lines about the return: %q, want one that says how long", got)
	}
	if got := len(log.lines("Lost the connection")); got != 1 {
		t.Errorf("%d lines about the loss, want 1", got)
	}
	select {
	case err := <-ended:
		t.Errorf("Supervise ended: %v", err)
	default:
	}
}

func TestSuperviseRefusesAnotherDriver(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change    func(f *fakeDriver)
		wantTexts []string
	}{
		"another name": {
			func(f *fakeDriver) { f.name = "new.example.com" },
			[]string{`"old.example.com"`, `"new.example.com"`},
		},
		"one controller capability more": {
			func(f *fakeDriver) {
				f.controllerCaps = append(f.controllerCaps, csi.ControllerServiceCapability_RPC_CLONE_VOLUME)
			},
			[]string{"were [CREATE_DELETE_VOLUME]", "are [CREATE_DELETE_VOLUME CLONE_VOLUME]"},
		},
		"one plugin capability less": {
			func(f *fakeDriver) { f.pluginCaps = f.pluginCaps[:1] },
			[]string{"were [CONTROLLER_SERVICE VOLUME_ACCESSIBILITY_CONSTRAINTS]", "are [CONTROLLER_SERVICE]"},
		},
		"no capabilities any more": {
			func(f *fakeDriver) {
				f.controllerCapErr = func(context.Context) error { return status.Error(codes.Unimplemented, "gone") }
			},
			[]string{"Unimplemented", "gone"},
		},
		"a probe that fails": {
			func(f *fakeDriver) {
				f.probe = func(context.Context) (*csi.ProbeResponse, error) {
					return nil, status.Error(codes.FailedPrecondition, "no licence")
				}
			},
			[]string{"FailedPrecondition", "no licence"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := socketFile(t)
			server := newFake("old.example.com").listen(t, path)
			d := connect(t, quiet(t), Config{Address: path, Timeout: time.Minute})
			ended := supervising(t, quiet(t), d)

			// Callers that do not wait for the gate must not reach the wrong driver either.
			var callers sync.WaitGroup
			hammering, stop := context.WithCancel(quiet(t))
			for range 4 {
				callers.Go(func() {
					for hammering.Err() == nil {
						_, _ = d.CreateVolume(quiet(t), &csi.CreateVolumeRequest{Name: "v"})
					}
				})
			}
			server.Stop()
			other := newFake("old.example.com")
			tc.change(other)
			other.listen(t, path)
			err := within(t, "Supervise", ended)
			stop()
			callers.Wait()
			if err == nil {
				t.Fatal("no error")
			}
			for _, want := range append(tc.wantTexts, path) {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not contain %q", err, want)
				}
			}
			if got := other.count("CreateVolume"); got != 0 {
				t.Errorf("%d calls reached a driver that is not ours", got)
			}
			if d.Ready() {
				t.Error("ready after Supervise gave up")
			}
			gone, cancel := context.WithCancelCause(quiet(t))
			cancel(errors.New("stopped"))
			if err := d.Gate(gone); err == nil || err.Error() != "stopped" {
				t.Errorf("gate %v, want closed until its context ends", err)
			}
		})
	}
}

// A driver that is just starting says "not yet" in many ways; none of them ends us.
func TestSuperviseIsPatientWithADriverThatStarts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w wire
		first := newFake("d").serve(t, w.listen())
		ctx, log := withLogs(t)
		d := connect(t, ctx, Config{Address: "/mem", Timeout: 15 * time.Second, dial: w.dial})
		ended := supervising(t, ctx, d)
		first.Stop()
		synctest.Wait()
		time.Sleep(20 * time.Second)

		starting := time.Now()
		soon := func(until time.Duration) error {
			if time.Since(starting) < until {
				return status.Error(codes.Unavailable, "starting")
			}
			return nil
		}
		fake := newFake("d")
		fake.probe = func(context.Context) (*csi.ProbeResponse, error) {
			return &csi.ProbeResponse{Ready: wrapperspb.Bool(time.Since(starting) > 5*time.Second)}, nil
		}
		fake.info = func(context.Context) error { return soon(10 * time.Second) }
		fake.controllerCapErr = func(context.Context) error { return soon(15 * time.Second) }
		second := fake.serve(t, w.listen())
		if err := d.Gate(ctx); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(starting).Round(time.Second); took < 15*time.Second || took > 17*time.Second {
			t.Errorf("back after %s, want 15s to 17s", took)
		}
		if got := len(log.lines("Waiting for")); got < 3 || got > 4 {
			t.Errorf("%d lines in about 35 s, want 3 or 4:\n%s", got, log.text())
		}
		select {
		case err := <-ended:
			t.Errorf("Supervise ended: %v", err)
		default:
		}
		d.Close()
		second.Stop()
	})
}

func TestSuperviseGivesUpAtTheAwayLimit(t *testing.T) {
	t.Parallel()
	notReady := newFake("d")
	notReady.probe = func(context.Context) (*csi.ProbeResponse, error) {
		return &csi.ProbeResponse{Ready: wrapperspb.Bool(false)}, nil
	}
	tests := map[string]struct {
		after *fakeDriver // nil: nobody
		want  string
	}{
		"nobody comes":                     {nil, "file does not exist"},
		"it comes and does not get ready":  {notReady, "not ready"},
		"somebody comes who does not talk": {&fakeDriver{}, "gRPC"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var w wire
				first := newFake("d").serve(t, w.listen())
				d := connect(t, quiet(t), Config{Address: "/mem", Timeout: 15 * time.Second, AwayLimit: 30 * time.Second, dial: w.dial})
				ended := supervising(t, quiet(t), d)
				time.Sleep(time.Hour) // the limit is about being away
				begin := time.Now()
				var stop func()
				switch {
				case tc.after == nil:
					stop = func() {}
					w.listen().Close()
				case tc.after.name == "":
					l := w.listen()
					stop = func() { _ = l.Close() }
					go func() {
						for {
							c, err := l.Accept()
							if err != nil {
								return
							}
							_ = c.Close()
						}
					}()
				default:
					stop = tc.after.serve(t, w.listen()).Stop
				}
				first.Stop()
				err := <-ended
				if took := time.Since(begin).Round(time.Second); took != 30*time.Second {
					t.Errorf("gave up after %s, want 30s", took)
				}
				for _, want := range []string{"/mem", "30s", tc.want} {
					if err == nil || !strings.Contains(err.Error(), want) {
						t.Errorf("error %v does not contain %q", err, want)
					}
				}
				d.Close()
				stop()
			})
		})
	}
}

func TestSuperviseEndsWithItsContext(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{"while the driver is there": false, "while it is away": true}
	for name, away := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			path := socketFile(t)
			server := newFake("d").listen(t, path)
			d := connect(t, quiet(t), Config{Address: path, Timeout: time.Minute, AwayLimit: time.Hour})
			ctx, cancel := context.WithCancel(quiet(t))
			ended := supervising(t, ctx, d)
			if away {
				server.Stop()
				eventually(t, "the loss is noticed", func() bool { return !d.Ready() })
			}
			cancel()
			if err := within(t, "Supervise", ended); err != nil {
				t.Errorf("error %v, want nil", err)
			}
		})
	}
}

// A driver that stops gracefully still answers what it has begun, and the answer is not lost on the way.
func TestAnswersOfADriverThatStopsGracefullyArrive(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	fake := newFake("d")
	begun, finish := make(chan struct{}), make(chan struct{})
	fake.create = func(_ context.Context, req *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
		close(begun)
		<-finish
		return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: "vol-" + req.GetName()}}, nil
	}
	old := fake.listen(t, path)
	d := connect(t, quiet(t), Config{Address: path, Timeout: time.Minute})
	supervising(t, quiet(t), d)
	type answer struct {
		resp *csi.CreateVolumeResponse
		err  error
	}
	answers := make(chan answer, 1)
	go func() {
		resp, err := d.CreateVolume(quiet(t), &csi.CreateVolumeRequest{Name: "a"})
		answers <- answer{resp, err}
	}()
	within(t, "CreateVolume", begun)
	stopped := make(chan struct{})
	go func() { old.GracefulStop(); close(stopped) }()
	eventually(t, "the stop is noticed", func() bool { return !d.Ready() })
	next := newFake("d")
	next.listen(t, path)
	eventually(t, "the next one serves", d.Ready)
	if _, err := d.CreateVolume(quiet(t), &csi.CreateVolumeRequest{Name: "b"}); err != nil || next.count("CreateVolume") != 1 {
		t.Errorf("the next driver was not asked: %v", err)
	}
	close(finish)
	a := within(t, "the answer", answers)
	if a.err != nil || a.resp.GetVolume().GetVolumeId() != "vol-a" {
		t.Errorf("answer %v, %v, want the volume", a.resp, a.err)
	}
	within(t, "the end of the old connection", stopped)
}

// A loss that Supervise has not come to yet is seen by Ready and by calls.
func TestLossIsSeenWithoutSupervise(t *testing.T) {
	t.Parallel()
	path := socketFile(t)
	server := newFake("d").listen(t, path)
	d := connect(t, quiet(t), Config{Address: path, Timeout: time.Minute})
	server.Stop()
	eventually(t, "not ready", func() bool { return !d.Ready() })
	newFake("e").listen(t, path)
	err := d.DeleteVolume(quiet(t), &csi.DeleteVolumeRequest{VolumeId: "v"})
	if status.Code(err) != codes.Unavailable || outcome.Of(err) != outcome.Unchanged {
		t.Errorf("DeleteVolume: %v (%s), want Unavailable and Unchanged", err, outcome.Of(err))
	}
}

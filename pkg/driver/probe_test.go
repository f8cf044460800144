package driver

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func TestProbeUntilReady(t *testing.T) {
	t.Parallel()
	fail := func(code codes.Code) func() (*csi.ProbeResponse, error) {
		return func() (*csi.ProbeResponse, error) { return nil, status.Error(code, "starting") }
	}
	tests := map[string]func() (*csi.ProbeResponse, error){
		"not ready": func() (*csi.ProbeResponse, error) {
			return &csi.ProbeResponse{Ready: wrapperspb.Bool(false)}, nil
		},
		"unavailable":       fail(codes.Unavailable),
		"aborted":           fail(codes.Aborted),
		"exhausted":         fail(codes.ResourceExhausted),
		"deadline exceeded": fail(codes.DeadlineExceeded),
	}
	for name, notYet := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				var w wire
				begin := time.Now()
				fake := newFake("slow")
				fake.probe = func(context.Context) (*csi.ProbeResponse, error) {
					if time.Since(begin) < 25*time.Second {
						return notYet()
					}
					return &csi.ProbeResponse{}, nil // no answer means ready
				}
				s := fake.serve(t, w.listen())
				ctx, log := withLogs(t)
				r := <-connecting(ctx, Config{Address: "/mem", Timeout: 15 * time.Second, dial: w.dial})
				if r.err != nil {
					t.Fatal(r.err)
				}
				if took := time.Since(begin).Round(time.Second); took != 25*time.Second {
					t.Errorf("connected after %s, want 25s", took)
				}
				if got := fake.count("Probe"); got < 25 || got > 27 {
					t.Errorf("%d probes in 25 s, want one a second", got)
				}
				if got := len(log.lines("Waiting for")); got != 3 {
					t.Errorf("%d lines in 25 s, want 3", got)
				}
				r.driver.Close()
				s.Stop()
			})
		})
	}
}

func TestProbeThatHangsIsTriedAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var w wire
		begin := time.Now()
		fake := newFake("hanging")
		fake.probe = func(ctx context.Context) (*csi.ProbeResponse, error) {
			if time.Since(begin) < 40*time.Second {
				<-ctx.Done()
				return nil, status.FromContextError(ctx.Err()).Err()
			}
			return &csi.ProbeResponse{}, nil
		}
		s := fake.serve(t, w.listen())
		r := <-connecting(quiet(t), Config{Address: "/mem", Timeout: 15 * time.Second, dial: w.dial})
		if r.err != nil {
			t.Fatal(r.err)
		}
		var at []int
		for i, call := range fake.calls {
			if call == "Probe" {
				at = append(at, int(fake.times[i].Sub(begin).Round(time.Second).Seconds()))
			}
		}
		if diff := cmp.Diff([]int{0, 15, 30, 45}, at); diff != "" {
			t.Errorf("probes at these seconds (-want +got):\n%s", diff)
		}
		r.driver.Close()
		s.Stop()
	})
}

// Every code that does not mean "not yet" ends the start; the loop goes over all of them.
func TestProbeErrors(t *testing.T) {
	t.Parallel()
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		if notYet(status.Error(code, "")) {
			continue
		}
		t.Run(code.String(), func(t *testing.T) {
			t.Parallel()
			path := socketFile(t)
			fake := newFake("broken")
			fake.probe = func(context.Context) (*csi.ProbeResponse, error) {
				return nil, status.Error(code, "no backend configured")
			}
			fake.listen(t, path)
			err := within(t, "Connect", connecting(quiet(t), Config{Address: path, Timeout: time.Minute})).err
			if status.Code(err) != code {
				t.Fatalf("error %v, want code %s", err, code)
			}
			for _, want := range []string{path, "probe", "no backend configured"} {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("error %q does not contain %q", err, want)
				}
			}
			if got := fake.count("Probe"); got != 1 {
				t.Errorf("%d probes, want 1", got)
			}
		})
	}
}

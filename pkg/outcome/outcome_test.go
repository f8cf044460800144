package outcome

import (
	"errors"
	"fmt"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Every code gRPC can name has a row, so that a new one cannot slip by.
func TestOfCreateKnowsEveryCode(t *testing.T) {
	t.Parallel()
	background := map[codes.Code]bool{codes.Canceled: true, codes.DeadlineExceeded: true, codes.Unavailable: true, codes.Aborted: true}
	for code := codes.OK; code.String() != fmt.Sprintf("Code(%d)", code); code++ {
		if _, ok := created[code]; !ok {
			t.Errorf("no row for %s", code)
		}
		want := Failed
		switch {
		case code == codes.OK:
			want = Done
		case background[code]:
			want = Background
		}
		err := status.Error(code, "as told")
		if got := OfCreate(err, false); got != want {
			t.Errorf("OfCreate(%s) = %s, want %s", code, got, want)
		}
		if code == codes.ResourceExhausted {
			want = Reschedule
		}
		if got := OfCreate(err, true); got != want {
			t.Errorf("OfCreate(%s, reschedulable) = %s, want %s", code, got, want)
		}
	}
	if got := OfCreate(status.Error(codes.Code(99), "odd"), false); got != Background {
		t.Errorf("a code out of range = %s, want Background", got)
	}
	if got := OfCreate(errors.New("no status"), true); got != Background {
		t.Errorf("no gRPC status = %s, want Background", got)
	}
}

func TestOutcomeSurvivesWrapping(t *testing.T) {
	t.Parallel()
	cause := status.Error(codes.InvalidArgument, "size is odd")
	err := fmt.Errorf("claim ns/c: %w", With(Failed, fmt.Errorf("driver: %w", cause)))
	if got := Of(err); got != Failed {
		t.Errorf("Of = %s, want Failed", got)
	}
	if got := Code(err); got != codes.InvalidArgument {
		t.Errorf("Code = %s, want InvalidArgument", got)
	}
	if !Slow(err) || !errors.Is(err, cause) {
		t.Errorf("Slow = %v, Is = %v, want both", Slow(err), errors.Is(err, cause))
	}
	if Of(nil) != Done || Of(errors.New("plain")) != Unchanged || With(Failed, nil) != nil || WithSlow(Failed, nil) != nil {
		t.Error("nil or plain errors got an outcome of their own")
	}
	if Slow(With(Failed, errors.New("plain"))) || !Slow(WithSlow(Background, errors.New("too small"))) || Slow(nil) {
		t.Error("Slow follows WithSlow and InvalidArgument only")
	}
	if got := With(Background, cause).Error(); got != cause.Error() {
		t.Errorf("text %q, want the cause's %q", got, cause.Error())
	}
}

func TestBusy(t *testing.T) {
	t.Parallel()
	for code := codes.OK; code <= codes.Unauthenticated; code++ {
		want := code == codes.Aborted || code == codes.Unavailable || code == codes.DeadlineExceeded || code == codes.Canceled
		if got := Busy(status.Error(code, "as told")); got != want {
			t.Errorf("Busy(%s) = %v, want %v", code, got, want)
		}
	}
}

// What an error carries already is not judged by its code.
func TestACallWithoutAnswer(t *testing.T) {
	t.Parallel()
	for code := codes.OK + 1; code <= codes.Unauthenticated; code++ {
		err := status.Error(code, "made by gRPC")
		cutOff := WithoutAnswer(fmt.Errorf("call: %w", err))
		if got := OfCreate(cutOff, true); got != Background || Of(cutOff) != Background || !MayBeRunning(cutOff) {
			t.Errorf("%s without an answer: %s, may be running %v", code, got, MayBeRunning(cutOff))
		}
		if Code(cutOff) != code || cutOff.Error() != "call: "+err.Error() {
			t.Errorf("%s became %v", code, cutOff)
		}
		unsent := With(Unchanged, err)
		if got := OfCreate(unsent, true); got != Unchanged || MayBeRunning(unsent) {
			t.Errorf("%s, not sent: %s, may be running %v", code, got, MayBeRunning(unsent))
		}
		// The answers that tell of work that goes on.
		want := code == codes.Aborted || code == codes.DeadlineExceeded || code == codes.Canceled
		if got := MayBeRunning(err); got != want {
			t.Errorf("%s answered: may be running %v, want %v", code, got, want)
		}
	}
	if MayBeRunning(nil) || WithoutAnswer(nil) != nil {
		t.Error("a success may be running")
	}
	if !MayBeRunning(errors.New("no status")) || !MayBeRunning(status.Error(codes.Code(99), "odd")) {
		t.Error("an error that nobody understands says that nothing is running")
	}
}

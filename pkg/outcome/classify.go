package outcome

import (
	"errors"

	"google.golang.org/grpc/codes"
)

// created maps each gRPC code that a driver answers CreateVolume with to what it says about the volume.
// CSI spec, section "Error Scheme": a final code promises that no volume is being made by this call.
var created = map[codes.Code]Outcome{
	codes.OK:                 Done,
	codes.Canceled:           Background,
	codes.Unknown:            Failed,
	codes.InvalidArgument:    Failed,
	codes.DeadlineExceeded:   Background,
	codes.NotFound:           Failed,
	codes.AlreadyExists:      Failed,
	codes.PermissionDenied:   Failed,
	codes.ResourceExhausted:  Failed,
	codes.FailedPrecondition: Failed,
	codes.Aborted:            Background,
	codes.OutOfRange:         Failed,
	codes.Unimplemented:      Failed,
	codes.Internal:           Failed,
	codes.Unavailable:        Background,
	codes.DataLoss:           Failed,
	codes.Unauthenticated:    Failed,
}

// OfCreate returns the outcome of a CreateVolume call that ended with err. An outcome that err carries already stays:
// that of a call which was not sent, or got no answer. Any other status is the driver's own. reschedulable says that the
// request was for a node that somebody may replace: then ResourceExhausted is Reschedule and not Failed.
// An error without a gRPC status, and a code that no table knows, is Background: nobody knows what happened.
func OfCreate(err error, reschedulable bool) Outcome {
	if err == nil {
		return Done
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Outcome
	}
	if !HasStatus(err) {
		return Background
	}
	code := Code(err)
	if code == codes.ResourceExhausted && reschedulable {
		return Reschedule
	}
	if o, ok := created[code]; ok {
		return o
	}
	return Background
}

// MayBeRunning reports whether a CreateVolume call for the volume may still be at work in the driver after one has ended
// with err: the call got no answer (WithoutAnswer, or an error without a gRPC status), or the driver has answered that
// another call is at work (Aborted) or that it has stopped waiting for its own work (DeadlineExceeded, Canceled). It is
// false for nil, for every other answer, and for a call that was not sent, which changes nothing.
func MayBeRunning(err error) bool {
	if err == nil {
		return false
	}
	if e, ok := errors.AsType[*Error](err); ok && (e.CutOff || e.Outcome == Unchanged) {
		return e.CutOff
	}
	if !HasStatus(err) {
		return true
	}
	code := Code(err)
	_, known := created[code]
	return !known || code == codes.Aborted || code == codes.DeadlineExceeded || code == codes.Canceled
}

// Busy reports whether err says "not now" and not "no": Aborted, Unavailable, DeadlineExceeded and Canceled.
// Such answers are retried on a short schedule.
func Busy(err error) bool {
	switch Code(err) { //nolint:exhaustive // the rest is not busy
	case codes.Aborted, codes.Unavailable, codes.DeadlineExceeded, codes.Canceled:
		return err != nil
	default:
		return false
	}
}

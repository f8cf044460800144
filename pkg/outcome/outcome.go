package outcome

import (
	"errors"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Outcome is how one try to provision a claim ended.
type Outcome int

const (
	// Unchanged is the zero value: the driver was not reached, whatever was true before still is. Try again.
	Unchanged Outcome = iota
	// Done means that the work is complete.
	Done
	// Failed is final: nothing runs in the driver. Event, back off, forget it once the claim is gone.
	Failed
	// Background means that the driver may still be working, or has worked without our knowing the result.
	// The same request is sent again, even when the claim is gone.
	Background
	// Reschedule means no room on the selected node and nothing running: drop the node's annotation.
	Reschedule
	// NotOurs means that another instance or a populator serves the claim: no event, forget.
	NotOurs
)

// String returns the name as it appears in logs and in the model's tests.
func (o Outcome) String() string {
	switch o {
	case Unchanged:
		return "Unchanged"
	case Done:
		return "Done"
	case Failed:
		return "Failed"
	case Background:
		return "Background"
	case Reschedule:
		return "Reschedule"
	case NotOurs:
		return "NotOurs"
	}
	return "invalid"
}

// Error is an error with its outcome.
type Error struct {
	// Outcome is what follows from Err.
	Outcome Outcome
	// Slow asks for the long schedule of requests that cannot succeed as they are.
	Slow bool
	// CutOff says that a call was sent and the driver's answer to it never came, or could not be read: gRPC made Err.
	CutOff bool
	// Err is the cause, never nil. Its text is the text of this error.
	Err error
}

// Error returns the text of the cause, with nothing added: events show it.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause, so that a gRPC status or an API status is found.
func (e *Error) Unwrap() error { return e.Err }

// With gives err an outcome. A nil err stays nil.
func With(o Outcome, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Outcome: o, Err: err}
}

// WithSlow is With for an error that only a change of the request can end. A nil err stays nil.
func WithSlow(o Outcome, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Outcome: o, Slow: true, Err: err}
}

// WithoutAnswer is With for a call that was sent and got no answer from the driver, as gRPC tells by err: the outcome is
// Background, and MayBeRunning is true. A nil err stays nil.
func WithoutAnswer(err error) error {
	if err == nil {
		return nil
	}
	return &Error{Outcome: Background, CutOff: true, Err: err}
}

// Of returns the outcome that err carries: Done for nil, Unchanged for an error without one.
func Of(err error) Outcome {
	if err == nil {
		return Done
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Outcome
	}
	return Unchanged
}

// Slow reports whether err asks for the long schedule: it was made by WithSlow or carries the gRPC code
// InvalidArgument, also below wrapping.
func Slow(err error) bool {
	if err == nil {
		return false
	}
	if e, ok := errors.AsType[*Error](err); ok && e.Slow {
		return true
	}
	return Code(err) == codes.InvalidArgument
}

// Code returns the gRPC code of err, found below wrapping: OK for nil and Unknown when there is no status.
// HasStatus tells the latter from a driver's own Unknown.
func Code(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	if s, ok := errors.AsType[grpcStatus](err); ok {
		return s.GRPCStatus().Code()
	}
	return codes.Unknown
}

// HasStatus reports whether err carries a gRPC status.
func HasStatus(err error) bool {
	_, ok := errors.AsType[grpcStatus](err)
	return ok
}

type grpcStatus interface {
	error
	GRPCStatus() *status.Status
}

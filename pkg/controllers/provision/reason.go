package provision

import (
	"errors"

	"google.golang.org/grpc/codes"

	"github.com/csi-sidecars/external-provisioner/pkg/outcome"
)

// reason is why an attempt made no volume, one of a fixed set: it is a label of a metric. The values are API.
type reason string

const (
	// reasonClassMissing: the class is not there, or no longer the one that the create was begun with.
	reasonClassMissing reason = "ClassMissing"
	// reasonRefused: claim, class and driver do not go together.
	reasonRefused reason = "Refused"
	// reasonSource: what the volume is to be filled from is missing, not ready, not granted or cannot be protected.
	reasonSource reason = "SourceNotReady"
	// reasonPlace: there is no topology to ask for; reasonNodeGone: the selected node is not there any more.
	reasonPlace    reason = "NoTopology"
	reasonNodeGone reason = "NodeGone"
	// reasonSecret and reasonAttributes: the provisioner's secret, or the VolumeAttributesClass, cannot be used.
	reasonSecret     reason = "SecretNotReady"
	reasonAttributes reason = "AttributesClassNotReady"
	// reasonNotRecorded: the operation is not recorded in a Lease yet, and no call is made before that.
	reasonNotRecorded reason = "NotRecorded"
	// reasonInvalid to reasonDriver are answers of the driver, or that there is none.
	reasonInvalid  reason = "InvalidRequest"
	reasonNoRoom   reason = "NoRoom"
	reasonBusy     reason = "Busy"
	reasonDeadline reason = "Deadline"
	reasonAway     reason = "DriverUnavailable"
	reasonDriver   reason = "DriverError"
	// reasonBadVolume: the driver made a volume, or says so, that cannot be used.
	reasonBadVolume reason = "BadVolume"
	// reasonNotSaved: the volume is there and its PersistentVolume was not taken at once.
	reasonNotSaved reason = "NotSaved"
)

// answers maps each gRPC code of a CreateVolume answer but OK to its reason.
var answers = map[codes.Code]reason{
	codes.Canceled:           reasonDeadline,
	codes.Unknown:            reasonDriver,
	codes.InvalidArgument:    reasonInvalid,
	codes.DeadlineExceeded:   reasonDeadline,
	codes.NotFound:           reasonDriver,
	codes.AlreadyExists:      reasonDriver,
	codes.PermissionDenied:   reasonDriver,
	codes.ResourceExhausted:  reasonNoRoom,
	codes.FailedPrecondition: reasonDriver,
	codes.Aborted:            reasonBusy,
	codes.OutOfRange:         reasonInvalid,
	codes.Unimplemented:      reasonDriver,
	codes.Internal:           reasonDriver,
	codes.Unavailable:        reasonAway,
	codes.DataLoss:           reasonDriver,
	codes.Unauthenticated:    reasonDriver,
}

// reasoned is an error with its reason. Text, outcome and status are those of the error.
type reasoned struct {
	reason reason
	error
}

// Unwrap returns the error without its reason.
func (r *reasoned) Unwrap() error { return r.error }

// because gives err a reason, unless it has one. A nil err stays nil.
func because(r reason, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*reasoned](err); ok {
		return err
	}
	return &reasoned{reason: r, error: err}
}

// reasonOf returns the reason of a failed attempt: the one that err was given, else that of the driver's answer.
func reasonOf(err error) reason {
	if r, ok := errors.AsType[*reasoned](err); ok {
		return r.reason
	}
	if r, ok := answers[outcome.Code(err)]; ok {
		return r
	}
	return reasonDriver
}

// unserved is why a claim that looks like ours gets no attempt: that is no failure. It is a label of a metric, too.
type unserved string

const (
	unservedBinding   unserved = "AboutToBind"
	unservedPopulator unserved = "Populator"
	unservedClass     unserved = "OtherProvisioner"
	unservedNode      unserved = "OtherNode"
)

// unservedBy tells those that select.go tells.
var unservedBy = map[selection]unserved{dropBinding: unservedBinding, dropForeign: unservedClass}

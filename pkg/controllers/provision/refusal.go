package provision

import (
	"context"
	"errors"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/klog/v2"
)

var (
	// errTerminating says that a claim is being deleted, so that no finalizer can be added to it any more.
	errTerminating = errors.New("the claim is being deleted, no finalizer can be added")
	// errOtherNode says that another node has a create under way for the claim.
	errOtherNode = errors.New("the claim is marked by another node")
)

// refuses reports whether the API server will answer the same next time: a client error that no waiting mends.
func refuses(err error) bool {
	if errors.Is(err, errTerminating) || errors.Is(err, errOtherNode) {
		return true
	}
	if apierrors.IsConflict(err) || apierrors.IsTooManyRequests(err) || apierrors.IsTimeout(err) {
		return false
	}
	status, ok := errors.AsType[*apierrors.StatusError](err)
	return ok && status.ErrStatus.Code >= 400 && status.ErrStatus.Code < 500
}

func (m *markers) sayRefused(ctx context.Context, err error) {
	switch {
	case errors.Is(err, errTerminating):
		m.refused("Terminating")
		return
	case errors.Is(err, errOtherNode):
		m.refused("OtherNode")
		return
	}
	m.refused(refusedLabel(err))
	m.warn.Do(func() {
		klog.FromContext(ctx).Error(err, "Claims cannot be marked, so a volume may be lost when this process dies in the middle of a call; grant update on persistentvolumeclaims")
	})
}

// refusals are the reasons that the API server has for client errors.
var refusals = []metav1.StatusReason{
	metav1.StatusReasonUnauthorized, metav1.StatusReasonForbidden, metav1.StatusReasonBadRequest, metav1.StatusReasonInvalid,
	metav1.StatusReasonMethodNotAllowed, metav1.StatusReasonNotAcceptable, metav1.StatusReasonRequestEntityTooLarge,
	metav1.StatusReasonUnsupportedMediaType, metav1.StatusReasonGone, metav1.StatusReasonExpired,
}

// refusedLabel returns the reason, or "Other": that of an admission webhook may be any sentence, and each would be a
// series of its own.
func refusedLabel(err error) string {
	if reason := apierrors.ReasonForError(err); slices.Contains(refusals, reason) {
		return string(reason)
	}
	return "Other"
}

package operations

import (
	"errors"
	"fmt"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// clockMargin is how far the clocks of two processes may be apart.
const clockMargin = 30 * time.Second

// finding is what a Lease means that this process has not written.
type finding int

const (
	isFree       finding = iota // it says no operation and nobody holds it
	isLeft                      // its operation was left by a process that has ended
	isForgotten                 // its operation was ended by a person
	isTaken                     // another process holds it
	isOthers                    // it is for another driver or node
	isUnreadable                // nobody drives its operation, and it cannot be replayed; the error says why
)

// reader is who looks at Leases.
type reader struct {
	names
	self string
	// exclusive says that no other process works now (leader election).
	exclusive bool
	// samePod reports whether a holder was an earlier process of this pod, which has ended; nil for never.
	samePod func(holder string) bool
}

// judge says what the Lease means at a time. since is when this version of it was first seen here.
func (r reader) judge(lease *coordinationv1.Lease, now, since time.Time) (finding, Operation, error) {
	text := lease.Annotations[wellknown.AnnOperation]
	switch {
	case !r.owns(lease):
		return isOthers, Operation{}, nil
	case !r.mayTake(lease, now, since):
		return isTaken, Operation{}, nil
	case text == "":
		return isFree, Operation{}, nil
	case lease.Annotations[wellknown.AnnForgetOperation] == "true":
		return isForgotten, Operation{}, nil
	}
	op, err := r.decode(lease)
	if err != nil {
		return isUnreadable, Operation{}, err
	}
	return isLeft, op, nil
}

// decode returns the operation that a Lease says. The error says why it cannot be replayed.
func (n names) decode(lease *coordinationv1.Lease) (Operation, error) {
	op, err := Decode(lease.Annotations[wellknown.AnnOperation], lease.UID)
	switch {
	case err != nil:
		return Operation{}, err
	case op.Driver != n.driver:
		return Operation{}, fmt.Errorf("the operation is of the driver %q, not of %q", op.Driver, n.driver)
	case op.Node != n.node:
		return Operation{}, fmt.Errorf("the operation is of the node %q, not of %q", op.Node, n.node)
	}
	return op, nil
}

// owns reports whether the Lease is for this driver, and in node deployment for this node.
func (n names) owns(lease *coordinationv1.Lease) bool {
	for key, value := range n.labels() {
		if lease.Labels[key] != value {
			return false
		}
	}
	return true
}

// mayTake reports whether nobody else drives what the Lease says.
func (r reader) mayTake(lease *coordinationv1.Lease, now, since time.Time) bool {
	holder := holderOf(lease)
	if r.exclusive || holder == "" || holder == r.self || (r.samePod != nil && r.samePod(holder)) {
		return true
	}
	if lease.Spec.LeaseDurationSeconds == nil || lease.Spec.RenewTime == nil {
		return true // no process of ours writes that
	}
	duration := time.Duration(*lease.Spec.LeaseDurationSeconds) * time.Second
	return now.After(lease.Spec.RenewTime.Add(duration+clockMargin)) || now.Sub(since) > duration
}

// reasonOf names why an operation cannot be replayed, for a metric.
func reasonOf(err error) string {
	switch {
	case errors.Is(err, ErrUnknownVersion):
		return "version"
	case errors.Is(err, ErrOtherLease):
		return "restored"
	}
	return "unreadable"
}

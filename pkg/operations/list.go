package operations

import (
	"context"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// Record is one Lease that says an operation.
type Record struct {
	// Lease is as it was read.
	Lease *coordinationv1.Lease
	// Operation is what it says, nil if that cannot be read; then Err says why. Err is also set when the operation is of
	// another driver or node, or was written into another Lease.
	Operation *Operation
	Err       error
	// Forgotten says that a person has ended the operation, which its holder has not seen yet.
	Forgotten bool
}

// Since returns when the operation was recorded, or taken over; zero when that is not known.
func (r Record) Since() time.Time {
	if r.Lease.Spec.AcquireTime == nil {
		return time.Time{}
	}
	return r.Lease.Spec.AcquireTime.Time
}

// List reads the Leases that say an operation, sorted by name. Of cfg it needs Leases, LeaseName, Driver and Node. It
// writes nothing.
func List(ctx context.Context, cfg Config) ([]Record, error) {
	n := cfg.reader().names
	leases, err := find(ctx, cfg.Leases, n)
	if err != nil {
		return nil, err
	}
	numbers := make([]int, 0, len(leases))
	for number := range leases {
		numbers = append(numbers, number)
	}
	slices.Sort(numbers)
	var records []Record
	for _, number := range numbers {
		if record, ok := recordOf(n, leases[number]); ok {
			records = append(records, record)
		}
	}
	return records, nil
}

// recordOf returns what a Lease says, and false if it is not one of these names or says no operation.
func recordOf(n names, lease *coordinationv1.Lease) (Record, bool) {
	text := lease.Annotations[wellknown.AnnOperation]
	if text == "" || !n.owns(lease) {
		return Record{}, false
	}
	r := Record{Lease: lease, Forgotten: lease.Annotations[wellknown.AnnForgetOperation] == "true"}
	op, err := n.decode(lease)
	if r.Err = err; err == nil {
		r.Operation = &op
	}
	return r, true
}

package chaos

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/memdriver"
)

// state is what there is at one moment.
type state struct {
	claims  []corev1.PersistentVolumeClaim
	pvs     []corev1.PersistentVolume // of our driver
	leases  []coordinationv1.Lease    // of operations
	volumes []memdriver.Volume
}

// settled lists what keeps the state from being at rest, as sentences; empty when every claim that is meant to
// live is bound, nothing else is left, and volumes and PersistentVolumes match one to one.
func (s state) unsettled() []string {
	var all []string
	complain := func(format string, args ...any) { all = append(all, fmt.Sprintf(format, args...)) }
	byHandle := map[string]string{}
	for _, pv := range s.pvs {
		byHandle[pv.Spec.CSI.VolumeHandle] = pv.Name
		if pv.DeletionTimestamp != nil {
			complain("PV %s is terminating with finalizers %v", pv.Name, pv.Finalizers)
		} else if pv.Status.Phase != corev1.VolumeBound {
			complain("PV %s is %s", pv.Name, pv.Status.Phase)
		}
	}
	for _, volume := range s.volumes {
		if _, ok := byHandle[volume.ID]; !ok {
			complain("volume %s (%s) has no PV", volume.ID, volume.Name)
		}
		delete(byHandle, volume.ID)
	}
	for _, handle := range slices.Sorted(maps.Keys(byHandle)) {
		complain("PV %s has no volume %s", byHandle[handle], handle)
	}
	for _, lease := range s.leases {
		if op := lease.Annotations[wellknown.AnnOperation]; op != "" {
			complain("Lease %s says an operation: %s", lease.Name, op)
		}
	}
	for _, claim := range s.claims {
		_, marked := claim.Annotations[wellknown.AnnProvisioningInProgress]
		switch {
		case claim.DeletionTimestamp != nil:
			complain("claim %s is terminating with finalizers %v", claim.Name, claim.Finalizers)
		case claim.Status.Phase != corev1.ClaimBound:
			complain("claim %s is %s", claim.Name, claim.Status.Phase)
		case marked || slices.Contains(claim.Finalizers, wellknown.FinalizerProvisioningInProgress):
			complain("claim %s is bound and still marked", claim.Name)
		}
	}
	return all
}

// doubleDeletes lists the volumes that were deleted again in spite of an answer that the sidecar has seen. A call may be
// repeated when the sidecar or the driver has died meanwhile: cuts are those ends. It may also be repeated when its
// deadline had passed for the sidecar and not yet for the driver, which hears of the call later; then about a deadline
// lies between the two calls. Who deletes twice without an excuse is sooner, since the back-off is a second at most.
func doubleDeletes(calls []memdriver.Call, cuts []time.Time) []string {
	done := map[string]memdriver.Call{}
	var all []string
	for _, call := range calls {
		if call.Method != "DeleteVolume" || call.Code != codes.OK {
			continue
		}
		before, again := done[call.Key]
		excused := call.Begin.Sub(before.Begin) >= callTimeout/2 ||
			slices.ContainsFunc(cuts, func(cut time.Time) bool { return cut.After(before.Begin) && cut.Before(call.Begin) })
		if again && !excused {
			all = append(all, fmt.Sprintf("volume %s was deleted at %s and again at %s", call.Key,
				before.End.Format(stamp), call.Begin.Format(stamp)))
		}
		done[call.Key] = call
	}
	return all
}

// givenUp counts the calls whose deadline has passed before the driver answered. The driver sees either that, or that the
// caller has left.
func givenUp(calls []memdriver.Call) int {
	n := 0
	for _, call := range calls {
		left := call.Code == codes.DeadlineExceeded || call.Code == codes.Canceled
		if left && call.End.Sub(call.Begin) >= callTimeout*9/10 {
			n++
		}
	}
	return n
}

const stamp = "15:04:05.000"

// history is what the driver was asked about a volume, for a test that failed.
func history(calls []memdriver.Call, volume memdriver.Volume) string {
	var b strings.Builder
	for _, call := range calls {
		if call.Key == volume.Name || call.Key == volume.ID {
			fmt.Fprintf(&b, "  %s %s\n", call.Begin.Format(stamp), call)
		}
	}
	return b.String()
}

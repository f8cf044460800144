package operations

import (
	"context"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// reportedAgain is how often the Leases are read again while one of them cannot be replayed.
const reportedAgain = 5 * time.Minute

// look searches for what was left, and says when the next search is due.
func (s *Store) look(ctx context.Context) {
	s.askAgain(ctx)
	leases, err := find(ctx, s.cfg.Leases, s.reader.names)
	if err != nil {
		s.observe(ctx, "get", err)
	}
	now := time.Now()
	s.mu.Lock()
	defer s.unlock()
	s.looking = false
	if err != nil {
		klog.FromContext(ctx).Info("Cannot read the Leases of operations, trying again", "err", err.Error())
		s.lookErr = err
		s.lookAt = now.Add(min(retryStart<<min(s.lookFailed, 10), retryMax))
		if s.denied != nil {
			s.lookAt = now.Add(askAgain)
		}
		s.lookFailed++
		return
	}
	s.lookErr, s.lookFailed, s.lookAt = nil, 0, time.Time{}
	switch {
	case s.denied != nil:
		s.lookAt = now.Add(askAgain)
	case !s.cfg.Exclusive && s.cfg.Node == "":
		s.lookAt = now.Add(s.cfg.Duration)
	}
	s.took(ctx, leases, now)
	s.looked = true
	s.tellReady()
	// Only one instance of a node works: another that holds a Lease is about to end, or has been killed.
	if s.lookAt.IsZero() && !s.cfg.Exclusive && s.othersHold() {
		s.lookAt = now.Add(s.cfg.Duration)
	}
	if s.lookAt.IsZero() && len(s.reported) > 0 {
		s.lookAt = now.Add(reportedAgain)
	}
}

// othersHold reports whether another process holds a Lease of this one's names. mu is held.
func (s *Store) othersHold() bool {
	for _, slot := range s.slots {
		if slot.taken {
			return true
		}
	}
	return false
}

// askAgain asks whether rights that were missing are granted by now.
func (s *Store) askAgain(ctx context.Context) {
	s.mu.Lock()
	denied := s.denied
	s.mu.Unlock()
	if denied == nil {
		return
	}
	s.cfg.Rights.AskAgain(ctx)
	for _, verb := range verbs {
		if s.cfg.Rights.Denied(verb) {
			return
		}
	}
	klog.FromContext(ctx).Info("Operations can be recorded again")
	s.mu.Lock()
	s.denied = nil
	s.mu.Unlock()
}

// took takes in what a search has found. What this process uses is known better here. mu is held.
func (s *Store) took(ctx context.Context, leases map[int]*coordinationv1.Lease, now time.Time) {
	for number, known := range s.slots {
		if known.taken && leases[number] == nil {
			delete(s.slots, number) // deleted since
		}
	}
	versions, before := map[string]seen{}, s.reported
	s.reported = map[types.UID]string{}
	for number, lease := range leases {
		if known := s.slots[number]; known != nil && !known.taken {
			continue
		}
		since := now
		if last, ok := s.seen[lease.Name]; ok && last.version == lease.ResourceVersion {
			since = last.since
		}
		versions[lease.Name] = seen{version: lease.ResourceVersion, since: since}
		s.place(ctx, number, lease, since, before)
	}
	s.seen = versions
}

// place makes a slot of a Lease that was found. told are the Leases that were reported before. mu is held.
func (s *Store) place(ctx context.Context, number int, lease *coordinationv1.Lease, since time.Time, told map[types.UID]string) {
	logger := klog.FromContext(ctx)
	placed := &slot{number: number, lease: lease}
	s.slots[number] = placed
	what, op, err := s.reader.judge(lease, time.Now(), since)
	switch what {
	case isFree:
	case isTaken, isOthers:
		placed.taken = true
	case isUnreadable:
		placed.taken = true
		s.reported[lease.UID] = reasonOf(err)
		if told[lease.UID] != reasonOf(err) {
			logger.Error(err, "An operation of an earlier process cannot be finished", "lease", klog.KObj(lease))
			s.calls = append(s.calls, func() { s.cfg.Listener.Reported(lease, err) })
		}
	case isForgotten:
		logger.Info("An operation was ended by hand", "lease", klog.KObj(lease), "operation", lease.Annotations[wellknown.AnnOperation])
		placed.hurry = true
	case isLeft:
		logger.Info("Taking over an operation", "lease", klog.KObj(lease), "driver", op.Driver,
			"PVC", klog.KRef(op.Claim.Namespace, op.Claim.Name), "volume", op.VolumeName, "holder", holderOf(lease))
		placed.begin(&op, "")
		placed.found = lease.Annotations[wellknown.AnnOperation]
		s.left(placed)
	}
}

// left makes an operation that was found that of its claim. One that has not been recorded yet makes way: what was left
// may have made a volume. mu is held.
func (s *Store) left(in *slot) {
	e, ok := s.entries[in.op.Claim.UID]
	switch {
	case !ok:
		s.promote([]*slot{in})
	case e.status.State == Waiting && (e.slot == nil || e.slot.found == ""):
		more := e.more
		s.drop(e)
		s.promote(append([]*slot{in}, more...))
	default:
		e.more = append(e.more, in)
	}
}

// recovered tells of an operation that this process has taken over. mu is held.
func (s *Store) recovered(e *entry) {
	e.status = Status{State: Recovered}
	op := *e.op
	s.calls = append(s.calls, func() { s.cfg.Listener.Recovered(op) })
}

// promote makes the first of the Leases the operation of its claim. mu is held.
func (s *Store) promote(left []*slot) {
	first := left[0]
	e := &entry{op: first.op, more: left[1:]}
	s.entries[e.op.Claim.UID] = e
	s.enter(e, first)
	if first.recorded {
		s.recovered(e)
	}
}

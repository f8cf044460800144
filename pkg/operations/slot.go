package operations

import (
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

const (
	// lingers is how long an operation that has ended stays written, so that the next one can take its place with one
	// write in place of two.
	lingers = time.Second
	// retryStart and retryMax bound the pause after a request that failed.
	retryStart, retryMax = 250 * time.Millisecond, 30 * time.Second
)

// action is the one request that a slot needs next.
type action int

const (
	idle     action = iota // nothing to send now
	read                   // GET: what the Lease says is not known
	makeFree               // create the Lease, without an operation
	write                  // update it with the operation
	renew                  // update renewTime
	empty                  // update it without an operation
)

// effect is what an answer means for the operation of the slot.
type effect int

const (
	nothing   effect = iota
	recorded         // the API server has the operation: the driver may be called
	elsewhere        // the slot is another's; the operation needs another one, and nothing was called
	lost             // another process drives the operation now
	forgotten        // a person has ended the operation
	emptied          // the Lease says no operation any more
)

// slot is one Lease: what is known of it (lease), and what it is to say (op). It is a value machine: next says which
// request to send, learn what its answer means.
//
//	          begin                    written
//	free ─────────────▶ op, unrecorded ───────▶ op, recorded
//	 ▲                      ▲                     │ end
//	 │ emptied, after       │ begin: one write    ▼
//	 └────────────────── op is nil, the Lease still says the last one
type slot struct {
	number int
	// lease is as it was last read or written; nil means that there is none, or that it was never read.
	lease *coordinationv1.Lease
	// taken says that another process holds the Lease.
	taken bool
	// unclear says that a write had no answer, or a conflict, so that lease may be out of date.
	unclear bool
	// sent says that a request is in flight.
	sent bool
	// op is what the Lease is to say; nil for nothing. recorded says that it does. text is op for a Lease with the UID
	// longUID, so that an operation is encoded once.
	op       *Operation
	text     string
	recorded bool
	// found is the text of an operation that an earlier process has written and that is kept as it is; else empty.
	found string
	// holds are claims whose operations the Lease may say, apart from that of op.
	holds map[types.UID]bool
	// ended is since when op is nil while the Lease may say one. hurry says that it must not linger.
	ended time.Time
	hurry bool
	// renewed is when the last write that was taken was sent.
	renewed time.Time
	// retryAt is when the next request may be sent, failures how many have failed in a row.
	retryAt  time.Time
	failures int
}

// spare reports whether any operation may take the slot now.
func (s *slot) spare() bool { return !s.taken && s.op == nil && !s.sent }

// begin puts op into a slot that is free. text is op as Encode writes it for longUID; empty for one that was found.
func (s *slot) begin(op *Operation, text string) {
	s.op, s.text, s.recorded, s.found, s.hurry = op, text, false, "", false
}

// end takes the operation out.
func (s *slot) end(now time.Time) {
	if s.op == nil {
		return
	}
	if s.recorded || s.found != "" || s.sent || s.unclear {
		s.hold(s.op.Claim.UID)
	}
	s.op, s.recorded, s.found, s.ended = nil, false, "", now
}

func (s *slot) hold(claim types.UID) {
	if s.holds == nil {
		s.holds = map[types.UID]bool{}
	}
	s.holds[claim] = true
}

// dirty reports whether the Lease may say an operation that has ended.
func (s *slot) dirty() bool {
	return s.unclear || (s.lease != nil && s.lease.Annotations[wellknown.AnnOperation] != "")
}

// next returns what to send now; for idle, when to ask again, zero for when something changes. renewEvery zero means
// never.
func (s *slot) next(now time.Time, renewEvery time.Duration) (action, time.Time) {
	switch {
	case s.sent, s.taken:
		return idle, time.Time{}
	case s.op == nil && !s.dirty():
		return idle, time.Time{}
	case now.Before(s.retryAt):
		return idle, s.retryAt
	case s.op == nil:
		if until := s.ended.Add(lingers); !s.hurry && now.Before(until) {
			return idle, until
		}
		if s.unclear {
			return read, time.Time{}
		}
		return empty, time.Time{}
	case s.unclear:
		return read, time.Time{}
	case s.lease == nil:
		return makeFree, time.Time{}
	case !s.recorded:
		return write, time.Time{}
	case renewEvery == 0:
		return idle, time.Time{}
	}
	if at := s.renewed.Add(renewEvery); now.Before(at) {
		return idle, at
	}
	return renew, time.Time{}
}

// answer is what came of a request.
type answer struct {
	action action
	// op is what the slot was to say when the request was sent, nil for nothing; text is how it was written.
	op   *Operation
	text string
	// lease is what the API server has returned, nil with an error; ours says that its labels are those of our slots.
	lease *coordinationv1.Lease
	ours  bool
	err   error
	// began is when the request was sent, ended when it was answered.
	began, ended time.Time
}

// learn takes an answer in. self is the identity of this process. An operation that has changed since the request was
// sent keeps its own state.
func (s *slot) learn(a answer, self string) effect {
	s.sent = false
	switch {
	case a.err == nil && s.notTakenOver(a):
		s.retryAt, s.unclear = time.Time{}, false
		return nothing // it is written again
	case a.err == nil:
		s.retryAt = time.Time{}
		if a.action != read {
			s.failures = 0
		}
		return s.learnLease(a, self)
	case apierrors.IsNotFound(a.err):
		s.retryAt = time.Time{}
		return s.learnGone()
	case apierrors.IsConflict(a.err), apierrors.IsAlreadyExists(a.err):
		s.unclear = true // who was faster decides; the first time it is read at once
		if s.failures > 0 {
			s.wait(a.ended)
		}
		s.failures++
		return nothing
	}
	s.unclear = s.unclear || (a.action != read && !refusedForSure(a.err))
	s.wait(a.ended)
	s.failures++
	if !s.dirty() {
		s.holds = nil // what was refused has left nothing
	}
	return nothing
}

// notTakenOver reports whether the Lease that was read is still as the search found it: the write that was to take its
// operation over has changed nothing.
func (s *slot) notTakenOver(a answer) bool {
	return a.action == read && s.found != "" && !s.recorded && s.lease.ResourceVersion == a.lease.ResourceVersion
}

// wait puts the next request off, the longer the more have failed.
func (s *slot) wait(now time.Time) {
	s.retryAt = now.Add(min(retryStart<<min(s.failures, 10), retryMax))
}

// refusedForSure reports whether the API server has not done what it was asked for.
func refusedForSure(err error) bool {
	return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsUnauthorized(err) ||
		apierrors.IsTooManyRequests(err) || apierrors.IsRequestEntityTooLargeError(err)
}

// learnGone is what follows when there is no such Lease: somebody has deleted it. It is made anew when it is needed.
func (s *slot) learnGone() effect {
	was := s.recorded
	s.lease, s.unclear, s.holds = nil, false, nil
	switch {
	case was:
		s.op, s.recorded, s.found = nil, false, ""
		return forgotten
	case s.op == nil:
		return emptied
	}
	return nothing
}

func (s *slot) learnLease(a answer, self string) effect {
	s.lease, s.unclear = a.lease, false
	if a.action != read {
		s.renewed = a.began
	}
	if holder := holderOf(a.lease); !a.ours || (holder != self && holder != "") {
		return s.learnHolder()
	}
	said := a.lease.Annotations[wellknown.AnnOperation]
	if said == "" {
		s.holds = nil
		s.recorded = false // of one that was, somebody has taken the text out: it is written again
		if s.op == nil {
			return emptied
		}
		return nothing
	}
	if s.op == nil || a.op != s.op {
		if a.op != nil { // it ended while it was being written
			s.holds = map[types.UID]bool{a.op.Claim.UID: true}
		}
		return nothing
	}
	if s.recorded && a.lease.Annotations[wellknown.AnnForgetOperation] == "true" {
		s.end(a.ended)
		return forgotten
	}
	if s.recorded = said == a.text && holderOf(a.lease) == self; s.recorded {
		s.holds = nil
		return recorded
	}
	return nothing
}

// learnHolder is what follows when another process holds the Lease.
func (s *slot) learnHolder() effect {
	op, was := s.op, s.recorded || s.found != ""
	s.taken, s.op, s.recorded, s.found, s.holds = true, nil, false, "", nil
	switch {
	case op == nil:
		return emptied
	case was:
		return lost
	}
	return elsewhere
}

// holderOf returns the holder, empty for none.
func holderOf(lease *coordinationv1.Lease) string {
	if lease.Spec.HolderIdentity == nil {
		return ""
	}
	return *lease.Spec.HolderIdentity
}

package operations

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// Run takes over what was left and writes what is asked for, until ctx ends. It returns when its last request has. It may
// be called once.
func (s *Store) Run(ctx context.Context) {
	var requests sync.WaitGroup
	defer requests.Wait()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		wake := s.pump(ctx, &requests)
		if !wake.IsZero() {
			timer.Reset(time.Until(wake))
		}
		select {
		case <-ctx.Done():
			return
		case <-s.kick:
		case <-timer.C:
		}
	}
}

// Flush waits until no Lease says an operation that has ended, or until ctx ends. It needs Run, and is called once.
func (s *Store) Flush(ctx context.Context) {
	s.mu.Lock()
	flushed := make(chan struct{})
	if s.hurry() {
		close(flushed)
	} else {
		s.flushed = flushed
	}
	s.unlock()
	select {
	case <-flushed:
	case <-ctx.Done():
	}
}

// hurry has all Leases written that say an operation which has ended, and reports whether there are none. mu is held.
func (s *Store) hurry() bool {
	none := true
	for _, slot := range s.slots {
		if !slot.taken && slot.op == nil && (slot.dirty() || slot.sent) {
			slot.hurry, none = true, false
		}
	}
	return none
}

// pump gives slots to operations that wait and sends what is due. It returns when to come again; zero for when something
// changes.
func (s *Store) pump(ctx context.Context, requests *sync.WaitGroup) (wake time.Time) {
	now := time.Now()
	s.mu.Lock()
	defer func() {
		calls := s.calls
		s.calls = nil
		s.mu.Unlock()
		for _, call := range calls {
			call()
		}
	}()
	if ctx.Err() != nil {
		return wake
	}
	if !s.looking && (!s.looked || !s.lookAt.IsZero()) {
		if now.Before(s.lookAt) {
			wake = s.lookAt
		} else {
			s.looking = true
			requests.Go(func() { s.look(ctx) })
		}
	}
	s.assign()
	if at := s.dispatch(ctx, requests, now); !at.IsZero() && (wake.IsZero() || at.Before(wake)) {
		wake = at
	}
	return wake
}

// dispatch sends what is due, first what operations wait for. It returns when the next request is due, zero for when
// something changes. mu is held.
func (s *Store) dispatch(ctx context.Context, requests *sync.WaitGroup, now time.Time) (wake time.Time) {
	for _, awaited := range []bool{true, false} {
		for _, slot := range s.slots {
			act, at := slot.next(now, s.cfg.renewEvery())
			switch {
			case act == idle:
				if !at.IsZero() && (wake.IsZero() || at.Before(wake)) {
					wake = at
				}
				continue
			case (slot.op != nil && !slot.recorded) != awaited:
				continue
			case s.sending == maxRequests:
				return wake // the next answer wakes Run
			}
			s.start(ctx, requests, slot, act)
		}
	}
	return wake
}

// start sends a request for the slot and takes the answer in. mu is held.
func (s *Store) start(ctx context.Context, requests *sync.WaitGroup, slot *slot, act action) {
	slot.sent = true
	s.sending++
	req := request{action: act, number: slot.number, lease: slot.lease, op: slot.op, text: slot.text, found: slot.found}
	requests.Go(func() {
		a := s.send(ctx, req)
		s.mu.Lock()
		defer s.unlock()
		s.sending--
		s.learn(slot, a)
		s.tellReady()
		if s.flushed != nil && s.hurry() {
			close(s.flushed)
			s.flushed = nil
		}
	})
}

// assign gives slots to the operations in the queue. mu is held.
func (s *Store) assign() {
	if !s.looked {
		return // what was left comes first: it may be of the same claims
	}
	var waiting []*entry
	for _, e := range s.queue {
		switch {
		case s.cfg.ReadOnly:
			e.status = Status{State: Unprotected}
			s.changed(e.op.Claim.UID)
		case !s.fits(e):
			waiting = append(waiting, e)
		default:
			into := s.choose(e.op.Claim.UID)
			if into == nil {
				waiting = append(waiting, e)
				continue
			}
			into.begin(e.op, e.text)
			s.enter(e, into)
		}
	}
	s.queue = waiting
}

// choose returns the slot for the next operation of the claim: the one that still says the last operation of the claim,
// or one whose operation has ended, or one that is free, or a new one. It returns nil when the first is not free yet. mu
// is held.
func (s *Store) choose(claim types.UID) *slot {
	var ended, spare *slot
	for _, slot := range s.slots {
		if slot.holds[claim] {
			if slot.op == nil {
				return slot
			}
			return nil // it is being written for another operation, which ends this one
		}
		if !slot.spare() {
			continue
		}
		best := &spare
		if slot.dirty() {
			best = &ended
		}
		if *best == nil || slot.number < (*best).number {
			*best = slot
		}
	}
	switch {
	case ended != nil:
		return ended
	case spare != nil:
		return spare
	}
	number := 0
	for s.slots[number] != nil {
		number++
	}
	s.slots[number] = &slot{number: number}
	return s.slots[number]
}

// learn takes an answer in. mu is held.
func (s *Store) learn(to *slot, a answer) {
	before := maps.Clone(to.holds)
	e := s.entryOf(to)
	effect := to.learn(a, s.cfg.Identity)
	for claim := range before {
		if !to.holds[claim] && s.awaited[claim] {
			delete(s.awaited, claim)
			s.changed(claim)
		}
	}
	if e == nil {
		if effect == lost || effect == forgotten {
			s.unlist(to)
		}
		return
	}
	switch effect {
	case recorded:
		switch {
		case e.status.State != Waiting:
		case to.found != "":
			s.recovered(e)
		default:
			e.status = Status{State: Recorded}
			s.changed(e.op.Claim.UID)
		}
	case elsewhere:
		s.leave(e)
		s.queue = append(s.queue, e)
	case lost:
		s.endAs(e, Lost)
	case forgotten:
		s.endAs(e, Forgotten)
	case nothing, emptied:
		absent := a.action == read && apierrors.IsNotFound(a.err) // it is about to be created
		if a.err != nil && !absent && e.status.State == Waiting {
			s.notRecorded(e, a)
		}
	}
}

// endAs ends an operation that is not for this process to finish any more. One that no caller has heard of is forgotten
// at once: the next search finds it again if it is there. mu is held.
func (s *Store) endAs(e *entry, state State) {
	known := e.status.State != Waiting
	s.leave(e)
	if !known {
		delete(s.entries, e.op.Claim.UID)
		if len(e.more) > 0 {
			s.promote(e.more)
		}
		s.lookAt = time.Now().Add(retryStart)
		return
	}
	e.status = Status{State: state}
	s.changed(e.op.Claim.UID)
}

// notRecorded says why an operation waits, or makes it unprotected if it does not fit into a Lease. mu is held.
func (s *Store) notRecorded(e *entry, a answer) {
	tooLarge := apierrors.IsRequestEntityTooLargeError(a.err)
	if tooLarge && e.slot.found == "" {
		s.drop(e)
		s.unprotect(e, "too_large", a.err)
		s.changed(e.op.Claim.UID)
		return
	}
	if first := e.status.Err == nil; first || e.status.Err.Error() != a.err.Error() {
		e.status.Err = a.err
		s.changed(e.op.Claim.UID)
	}
}

// entryOf returns the operation that callers know of in the slot, nil for none. mu is held.
func (s *Store) entryOf(in *slot) *entry {
	if in.op == nil {
		return nil
	}
	if e := s.entries[in.op.Claim.UID]; e != nil && e.slot == in {
		return e
	}
	return nil
}

// unlist takes a Lease that another operation of the same claim was left in out of the line. mu is held.
func (s *Store) unlist(gone *slot) {
	for _, e := range s.entries {
		e.more = slices.DeleteFunc(e.more, func(left *slot) bool { return left == gone })
	}
	s.lookAt = time.Now().Add(retryStart)
}

package operations

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
)

// End says that the operation of the claim has ended: a final answer, or a PersistentVolume that was saved. Its Lease is
// given to the next operation, or written without it after a second. Without an operation it does nothing.
func (s *Store) End(claim types.UID) {
	s.mu.Lock()
	defer s.unlock()
	if e, ok := s.entries[claim]; ok {
		s.end(e)
	}
}

// Withdraw takes back a Begin after which the driver was not called. An operation of an earlier process stays, whether
// Recovered was called or not: that process may have called the driver.
func (s *Store) Withdraw(claim types.UID) {
	s.mu.Lock()
	defer s.unlock()
	if e, ok := s.entries[claim]; ok && (e.slot == nil || e.slot.found == "") {
		s.end(e)
	}
}

// end ends an operation. mu is held.
func (s *Store) end(e *entry) {
	claim := e.op.Claim.UID
	s.drop(e)
	delete(s.entries, claim)
	if len(e.more) > 0 {
		s.promote(e.more)
		return
	}
	if s.awaited[claim] && !s.said(claim) {
		delete(s.awaited, claim)
		s.changed(claim)
	}
}

// said reports whether a Lease says an operation of the claim that has ended, and has it written. mu is held.
func (s *Store) said(claim types.UID) bool {
	said := false
	for _, slot := range s.slots {
		if slot.holds[claim] {
			slot.hurry, said = true, true
		}
	}
	return said
}

// Ended reports whether no Lease says the operation of the claim any more, so that its volume may be deleted. If not,
// Changed is called when that is so. It is false while the operation goes on, and until the first search has ended.
func (s *Store) Ended(claim types.UID) bool {
	s.mu.Lock()
	defer s.unlock()
	if _, ok := s.entries[claim]; ok {
		s.awaited[claim] = true
		return false
	}
	ended := (s.looked || s.denied != nil) && !s.said(claim)
	if !ended {
		s.awaited[claim] = true
	}
	return ended
}

// Check reads the Lease of an operation, before it is tried again. The error is ErrForgotten, ErrLost, or says that it
// cannot be told now. Without a Lease it returns nil.
func (s *Store) Check(ctx context.Context, claim types.UID) error {
	s.mu.Lock()
	e := s.entries[claim]
	if e == nil || e.slot == nil || !e.slot.recorded {
		var status Status
		if e != nil {
			status = e.status
		}
		s.mu.Unlock()
		switch status.State {
		case Lost:
			return ErrLost
		case Forgotten:
			return ErrForgotten
		case Waiting, Recorded, Unprotected, Recovered:
		}
		return nil
	}
	checked := e.slot
	s.mu.Unlock()
	a := s.send(ctx, request{action: read, number: checked.number, op: e.op, text: checked.text, found: checked.found})
	s.mu.Lock()
	defer s.unlock()
	if s.entries[claim] != e || e.slot != checked || checked.sent {
		return fmt.Errorf("the Lease %s is being written", s.reader.of(checked.number))
	}
	s.learn(checked, a)
	switch {
	case e.status.State == Forgotten:
		return ErrForgotten
	case e.status.State == Lost:
		return ErrLost
	case a.err != nil:
		return fmt.Errorf("read Lease %s: %w", s.reader.of(checked.number), a.err)
	}
	return nil
}

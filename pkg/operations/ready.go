package operations

import (
	"context"
)

// Ready returns when what earlier processes left has been taken over, or cannot be for lack of a right, or when ctx ends.
func (s *Store) Ready(ctx context.Context) {
	select {
	case <-s.ready:
	case <-ctx.Done():
	}
}

// IsReady reports whether Ready would return at once.
func (s *Store) IsReady() bool {
	select {
	case <-s.ready:
		return true
	default:
		return false
	}
}

// tellReady makes Ready return if it may, after the listener has heard of what was taken over. Whoever asked meanwhile for
// the end of an operation is told to ask again. mu is held.
func (s *Store) tellReady() {
	if s.announced || (s.denied == nil && !s.tookAll()) {
		return
	}
	s.announced = true
	for claim := range s.awaited {
		s.changed(claim)
	}
	clear(s.awaited)
	s.calls = append(s.calls, func() { close(s.ready) })
}

// tookAll reports whether all that the first search has found is taken over. mu is held.
func (s *Store) tookAll() bool {
	for _, slot := range s.slots {
		if slot.found != "" && !slot.recorded {
			return false
		}
	}
	return s.looked
}

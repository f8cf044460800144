package topology

import (
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
)

const (
	// maxExpansions is how many lists Expansions remembers at most.
	maxExpansions = 16
	// maxExpandedTerms is how many terms these lists have together at most. The latest list is remembered whatever its
	// length is, which MaxTerms bounds.
	maxExpandedTerms = MaxTerms
)

// Expansions remembers what allowedTopologies stand for, so that claims of one class share one list of terms. The zero
// value is ready for use, also concurrently. The nil Expansions remembers nothing.
type Expansions struct {
	mu sync.Mutex
	// recent holds the lists used last, the latest first.
	recent []expansion
}

// expansion is one list with what it was made from.
type expansion struct {
	allowed []corev1.TopologySelectorTerm
	terms   *Terms
}

// terms returns the terms of Expand(allowed). The content of allowed must never change.
func (e *Expansions) terms(allowed []corev1.TopologySelectorTerm) (*Terms, error) {
	if e == nil {
		segments, err := Expand(allowed)
		return NewTerms(segments), err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	var found expansion
	if at := slices.IndexFunc(e.recent, func(known expansion) bool { return sameAllowed(known.allowed, allowed) }); at >= 0 {
		found = e.recent[at]
		e.recent = slices.Delete(e.recent, at, at+1)
	} else {
		segments, err := Expand(allowed)
		if err != nil {
			return nil, err
		}
		found = expansion{allowed: allowed, terms: NewTerms(segments)}
	}
	e.recent = slices.Insert(e.recent, 0, found)
	e.forget()
	return found.terms, nil
}

// forget drops the lists used longest ago until the rest is within the bounds.
func (e *Expansions) forget() {
	total := 0
	for i, known := range e.recent {
		if total += known.terms.Len(); i == maxExpansions || i > 0 && total > maxExpandedTerms {
			e.recent = slices.Delete(e.recent, i, len(e.recent))
			return
		}
	}
}

// sameAllowed reports whether two lists have the same entries in the same order.
func sameAllowed(a, b []corev1.TopologySelectorTerm) bool {
	return slices.EqualFunc(a, b, func(a, b corev1.TopologySelectorTerm) bool {
		return slices.EqualFunc(a.MatchLabelExpressions, b.MatchLabelExpressions, func(a, b corev1.TopologySelectorLabelRequirement) bool {
			return a.Key == b.Key && slices.Equal(a.Values, b.Values)
		})
	})
}

package loop

import "time"

// Verdict is what follows for a key after it was processed. The zero value is Done.
type Verdict struct {
	kind  kind
	after time.Duration
}

type kind int

const (
	done kind = iota
	again
	busy
	after
	parked
)

// Done forgets the key and its back-off; the next event brings it back.
func Done() Verdict { return Verdict{} }

// Again brings the key back after its exponential back-off, which grows with each Again in a row.
func Again() Verdict { return Verdict{kind: again} }

// Busy brings the key back on the short schedule of answers that mean "not now": capped low and spread by
// chance, so that many keys that were turned away together do not come back together.
func Busy() Verdict { return Verdict{kind: busy} }

// After brings the key back after d, and leaves its back-off as it is. d ≤ 0 means at once.
func After(d time.Duration) Verdict { return Verdict{kind: after, after: d} }

// Parked leaves the key to whoever adds it again, and its back-off as it is.
func Parked() Verdict { return Verdict{kind: parked} }

// String returns the verdict as it appears in logs.
func (v Verdict) String() string {
	switch v.kind {
	case done:
		return "done"
	case again:
		return "again"
	case busy:
		return "busy"
	case after:
		return "after " + v.after.String()
	case parked:
		return "parked"
	}
	return "invalid"
}

// Wait returns the wait that After asked for, and zero for every other verdict.
func (v Verdict) Wait() time.Duration { return v.after }

package loop

import (
	"errors"
	"fmt"
	"slices"
)

// maxFailures is how many errors are shown of one pass.
const maxFailures = 5

// Failures collects the errors of a pass over many objects that goes on with the next object after each error. The zero
// value is empty. It is not safe for concurrent use.
type Failures struct {
	shown []error
	more  int // how many are not shown
}

// Add takes in an error; nil is none. Of many errors only the first few are kept, the others are counted.
func (f *Failures) Add(err error) {
	switch {
	case err == nil:
	case len(f.shown) < maxFailures:
		f.shown = append(f.shown, err)
	default:
		f.more++
	}
}

// Err returns the errors joined, nil when there was none. It wraps those that were kept.
func (f *Failures) Err() error {
	if f.more == 0 {
		return errors.Join(f.shown...)
	}
	return errors.Join(append(slices.Clip(f.shown), fmt.Errorf("and %d more", f.more))...)
}

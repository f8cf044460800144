package loop

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestFailures(t *testing.T) {
	t.Parallel()
	first := errors.New("error 0")
	for n, want := range map[int]string{
		0: "<nil>",
		1: "error 0",
		2: "error 0\nerror 1",
		5: "error 0\nerror 1\nerror 2\nerror 3\nerror 4",
		8: "error 0\nerror 1\nerror 2\nerror 3\nerror 4\nand 3 more",
	} {
		var f Failures
		for i := range n {
			if i == 0 {
				f.Add(first)
			} else {
				f.Add(fmt.Errorf("error %d", i))
			}
			f.Add(nil)
		}
		for range 2 { // asking changes nothing
			err := f.Err()
			if got := fmt.Sprint(err); got != want {
				t.Errorf("%d errors: %q, want %q", n, got, want)
			}
			if n > 0 && !errors.Is(err, first) {
				t.Errorf("%d errors: the first is not wrapped", n)
			}
		}
	}
	// A log line stays short, however many objects fail.
	var f Failures
	for range 100_000 {
		f.Add(errors.New(strings.Repeat("x", 100)))
	}
	if got := len(f.Err().Error()); got > 1000 {
		t.Errorf("the text of 100,000 errors has %d bytes", got)
	}
}

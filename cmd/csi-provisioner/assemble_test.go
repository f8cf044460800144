package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
)

// runs is a controller.
type runs func(stop, work context.Context) error

func (r runs) Run(stop, work context.Context) error { return r(stop, work) }

// A controller that panics or fails stops the others in order: they finish what is at hand.
func TestAControllerThatEndsStopsTheOthers(t *testing.T) {
	t.Parallel()
	failure := errors.New("no such watch")
	for name, bad := range map[string]runs{
		"by a panic":  func(_, _ context.Context) error { panic("a controller") },
		"by an error": func(_, _ context.Context) error { return failure },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				finished := false
				good := runs(func(stop, work context.Context) error {
					<-stop.Done()
					finished = work.Err() == nil
					return nil
				})
				done := runs(func(_, _ context.Context) error { return nil }) // has no more to do
				err := runAll(t.Context(), t.Context(), []controller{done, good, bad})
				_, panicked := errors.AsType[*loop.PanicError](err)
				if !finished || (!panicked && !errors.Is(err, failure)) {
					t.Errorf("finished: %v, error %v; want the work finished and the reason", finished, err)
				}
			})
		})
	}
}

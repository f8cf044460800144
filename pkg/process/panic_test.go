package process

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/klog/v2/ktesting"

	"github.com/csi-sidecars/external-provisioner/pkg/loop"
)

// A part that panics ends the group in order: the parts before it stop after it.
func TestAPartThatPanicsStopsTheGroupInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var d diary
		group, ctx := NewGroup(t.Context())
		group.Go(ctx, "http", d.part("http", 0, nil))
		group.Go(ctx, "leader", func(context.Context) error { panic("the leader") })
		err := group.Wait()
		if _, panicked := errors.AsType[*loop.PanicError](err); !panicked {
			t.Errorf("Wait = %v, want the panic", err)
		}
		if last := d.lines[len(d.lines)-1]; last != "http ended" {
			t.Errorf("the last line is %q, want the end of http", last)
		}
	})
}

// Work that panics releases the lease, so that the next leader need not wait until it runs out.
func TestWorkThatPanicsReleasesTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		_, ctx := ktesting.NewTestContext(t)
		err := newContender(t, s, "a").Run(ctx, func(_, _ context.Context) error { panic("work") })
		if _, panicked := errors.AsType[*loop.PanicError](err); !panicked || s.holder() != "" {
			t.Errorf("Run = %v, the holder is %q; want the panic and a free lease", err, s.holder())
		}
	})
}

// A request for the lease that panics is one that has failed: a standby tries again at its pace, and a leader keeps the
// lease.
func TestALeaseRequestThatPanicsIsSentAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		s.take("", 15)
		c, f := newFlaky(t, s, "a")
		var each func()
		each = func() {
			f.do(func() { f.beforeUpdate = each })
			panic("a standby's update")
		}
		f.do(func() { f.beforeUpdate = each })
		c.start(t)
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if got := len(s.asked()); c.leads() || got > 20 {
			t.Errorf("leads: %v after %d requests in 20 s, want none and a pause after each panic", c.leads(), got)
		}
		f.do(func() { f.beforeUpdate = nil })
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if !c.leads() {
			t.Fatal("it does not lead after the pause")
		}
		f.do(func() { f.beforeUpdate = func() { panic("a leader's update") } })
		time.Sleep(time.Minute)
		synctest.Wait()
		if !c.leads() || s.holder() != "a" {
			t.Errorf("leads: %v, the holder is %q; want the lease kept", c.leads(), s.holder())
		}
		c.cancel()
		if err := <-c.done; err != nil {
			t.Error(err)
		}
	})
}

// A watch of the lease that panics begins anew.
func TestALeaseWatchThatPanicsBeginsAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		s.take("other", 3600)
		c, f := newFlaky(t, s, "a")
		f.do(func() { f.beforeWatch = func() { panic("a watch") } })
		c.start(t)
		time.Sleep(time.Minute)
		synctest.Wait()
		watches := 0
		f.do(func() { watches = len(f.watched) })
		if watches != 1 {
			t.Errorf("%d watches were begun after the panic, want 1", watches)
		}
		c.cancel()
		if err := <-c.done; err != nil {
			t.Error(err)
		}
	})
}

package process

import (
	"testing"
	"testing/synctest"
	"time"
)

// The holder was killed: its lease is taken over when it was seen unchanged for its duration, and not before.
func TestCrashIsTakenOverAfterTheLease(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		s.take("dead", 15)
		b := newContender(t, s, "b").start(t)
		for range 3 { // it lives for a while
			time.Sleep(5 * time.Second)
			s.take("dead", 15)
		}
		took := within(t, 20*time.Second, "b leads", b.leads)
		if took < 15*time.Second || took > 16*time.Second {
			t.Errorf("b leads %s after the last renewal, want 15s", took)
		}
		if got := *s.current().Spec.LeaseTransitions; got != 1 {
			t.Errorf("%d transitions, want 1", got)
		}
		if _, err := b.end(t); err != nil {
			t.Error(err)
		}
	})
}

// A renewal that comes in at the last moment, unseen by the watch, makes the takeover fail.
func TestTakeoverYieldsToALateRenewal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		s.take("slow", 15)
		b := newContender(t, s, "b").start(t)
		for range 20 {
			time.Sleep(14 * time.Second)
			s.take("slow", 15)
			if b.leads() {
				t.Fatal("b took a living lease")
			}
		}
		// The lease changes between b's read and b's write.
		s.mu.Lock()
		s.hang["update"] = true
		s.mu.Unlock()
		time.Sleep(15*time.Second + 100*time.Millisecond)
		s.take("slow", 15)
		s.freeze(false, "update")
		time.Sleep(10 * time.Second)
		if b.leads() || s.holder() != "slow" {
			t.Errorf("holder %q, b leads %v: the write of an old version went through", s.holder(), b.leads())
		}
		if _, err := b.end(t); err != nil {
			t.Error(err)
		}
	})
}

// Whoever finds its own name in the lease is the same pod with a new container.
func TestSameIdentityLeadsAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		s.take("a", 15)
		a := newContender(t, s, "a").start(t)
		within(t, 100*time.Millisecond, "a leads", a.leads)
		if _, err := a.end(t); err != nil {
			t.Error(err)
		}
	})
}

func TestADeletedLeaseIsMadeAnew(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		s.take("other", 3600)
		a := newContender(t, s, "a").start(t)
		time.Sleep(time.Minute)
		s.remove()
		within(t, 100*time.Millisecond, "a leads", a.leads)
		if _, err := a.end(t); err != nil {
			t.Error(err)
		}
	})
}

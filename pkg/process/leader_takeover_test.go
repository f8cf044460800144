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

// A new container of a pod takes over at once from the one before, which is certainly dead. A process that only has the same
// pod's name waits for the end of the lease: the holder may be alive.
func TestOnlyWhoReplacesTheHolderLeadsAtOnce(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		replaces func(string) bool
		want     time.Duration
	}{
		"the holder is dead":         {replaces: func(holder string) bool { return holder == "pod_1" }, want: 0},
		"the holder is somebody":     {replaces: func(string) bool { return false }, want: 15 * time.Second},
		"nothing is known about any": {want: 15 * time.Second},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newLeaseServer()
				s.take("pod_1", 15)
				b := newContender(t, s, "pod_2")
				if tc.replaces != nil {
					b.cfg.Replaces, b.seen = tc.replaces, newSightings(LeaderConfig{Identity: "pod_2", Replaces: tc.replaces, LeaseDuration: 15 * time.Second})
				}
				b.start(t)
				if took := within(t, 16*time.Second, "b leads", b.leads); took.Round(time.Second) != tc.want {
					t.Errorf("b leads after %s, want %s", took, tc.want)
				}
				if _, err := b.end(t); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A pod that was removed by force may live on beside its successor of the same name: one of them leads.
func TestTwoProcessesOfOnePodNeverBothLead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		first, second := holderWithoutLock("csi-0"), holderWithoutLock("csi-0")
		old := newContender(t, s, first.Identity()).start(t)
		within(t, time.Second, "the old one leads", old.leads)
		time.Sleep(32 * time.Second)
		twin := newContender(t, s, second.Identity()).start(t)
		for range 60 {
			time.Sleep(10 * time.Second)
			if !old.leads() || twin.leads() {
				t.Fatalf("the old one leads: %v, its twin: %v", old.leads(), twin.leads())
			}
		}
		if _, err := twin.end(t); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Minute)
		if !old.leads() || s.holder() != first.Identity() {
			t.Errorf("the end of its twin made the old one lose the lease, which %q holds", s.holder())
		}
		if _, err := old.end(t); err != nil {
			t.Error(err)
		}
	})
}

// Somebody deletes the lease (kubectl delete lease, a clean-up job) while its holder is alive: it works on until it notices. A
// standby that has seen it waits for as long as it would have waited for the lease.
func TestADeletedLeaseStaysTakenForItsDuration(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		s.take("dead", 60)
		b := newContender(t, s, "b").start(t)
		time.Sleep(20 * time.Second)
		s.remove()
		if took := within(t, time.Minute, "b leads", b.leads); took.Round(time.Second) != 40*time.Second {
			t.Errorf("b leads %s after the lease was deleted, want 40s", took)
		}
		if _, err := b.end(t); err != nil {
			t.Error(err)
		}
	})
}

// The holder makes its lease anew, and nobody leads beside it meanwhile.
func TestADeletedLeaseIsMadeAnewByItsHolder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		a := newContender(t, s, "a").start(t)
		within(t, time.Second, "a leads", a.leads)
		b := newContender(t, s, "b").start(t)
		for range 5 {
			time.Sleep(20*time.Second + 100*time.Millisecond) // a has renewed just now
			s.remove()
			for range 100 {
				time.Sleep(200 * time.Millisecond)
				if !a.leads() || b.leads() {
					t.Fatalf("a leads: %v, b leads: %v, after the lease was deleted", a.leads(), b.leads())
				}
			}
			if s.holder() != "a" {
				t.Fatalf("the lease is held by %q", s.holder())
			}
		}
		for _, c := range []*contender{b, a} {
			if _, err := c.end(t); err != nil {
				t.Error(err)
			}
		}
	})
}

// A released lease that is deleted afterwards is nobody's.
func TestADeletedFreeLeaseIsTakenAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newLeaseServer()
		s.take("other", 3600)
		b := newContender(t, s, "b").start(t)
		time.Sleep(time.Minute)
		s.deny(forbidden("update"), "update") // so that b does not take it before
		s.take("", 1)
		time.Sleep(time.Second)
		s.remove()
		if took := within(t, 20*time.Second, "b leads", b.leads); took > 12*time.Second {
			t.Errorf("b leads %s after the lease was deleted", took)
		}
		s.deny(nil, "update")
		if _, err := b.end(t); err != nil {
			t.Error(err)
		}
	})
}

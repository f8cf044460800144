package operations

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

const slot0, slot1 = "csi-example-com-op-0", "csi-example-com-op-1"

func TestOneOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		a.latency = time.Millisecond
		p := start(t, a, "me", nil)
		pass(time.Second)
		a.counts()
		p.want("a", Waiting)
		if p.Ended("a") {
			t.Error("the operation has ended before it began")
		}
		pass(10 * time.Millisecond)
		p.want("a", Recorded)
		if got := p.changed(); len(got) != 1 || got[0] != "a" {
			t.Errorf("changed: %v, want a once", got)
		}
		a.wantSaid(t, map[string]string{slot0: "a"})
		lease := a.objects[slot0]
		if holderOf(lease) != "me" || leaseSeconds(lease) != 60 || lease.Spec.RenewTime == nil || lease.Spec.AcquireTime == nil {
			t.Errorf("the Lease is not held as Leases are: %+v", lease.Spec)
		}
		p.End("a")
		if p.Ended("a") {
			t.Error("the Lease says the operation still, and Ended does not tell")
		}
		pass(10 * time.Millisecond)
		if !p.Ended("a") {
			t.Error("who asked whether the operation has ended had to wait for the second that it may linger")
		}
		if got := p.changed(); len(got) != 1 {
			t.Errorf("changed: %v, want a once", got)
		}
		a.wantSaid(t, map[string]string{slot0: ""})
		if lease := a.objects[slot0]; holderOf(lease) != "" || leaseSeconds(lease) <= 0 {
			t.Errorf("a free Lease is held, or has no duration: %+v", lease.Spec)
		}
		if got := a.counts(); got["create"] != 1 || got["update"] != 2 || got["get"] != 0 {
			t.Errorf("requests: %v, want one create, and two updates", got)
		}
	})
}

// In a burst an operation costs one write: the next takes the Lease of one that has ended.
func TestBurstCostsOneWrite(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		a.latency = 5 * time.Millisecond
		p := start(t, a, "me", nil)
		pass(time.Second)
		for i := range 10 {
			p.Begin(operation(fmt.Sprint("warm", i)))
		}
		pass(time.Second / 2)
		a.counts()
		for round := range 20 {
			for i := range 10 {
				was := fmt.Sprint("r", round-1, "-", i)
				if round == 0 {
					was = fmt.Sprint("warm", i)
				}
				p.End(operation(was).Claim.UID)
				p.Begin(operation(fmt.Sprint("r", round, "-", i)))
			}
			pass(100 * time.Millisecond)
			for i := range 10 {
				p.want(fmt.Sprint("r", round, "-", i), Recorded)
			}
		}
		if got := a.counts(); got["update"] != 200 || len(got) != 1 {
			t.Errorf("200 operations took %v, want 200 updates", got)
		}
		if a.most > maxRequests {
			t.Errorf("%d requests at once, want at most %d", a.most, maxRequests)
		}
		if len(a.objects) != 10 {
			t.Errorf("%d Leases for 10 operations at once", len(a.objects))
		}
	})
}

func TestEndedIsClearedAfterASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		p := start(t, a, "me", nil)
		p.begin("a")
		p.End("a")
		pass(900 * time.Millisecond)
		a.wantSaid(t, map[string]string{slot0: "a"})
		pass(200 * time.Millisecond)
		a.wantSaid(t, map[string]string{slot0: ""})
		a.counts()
		pass(time.Hour)
		if got := a.counts(); len(got) != 0 {
			t.Errorf("nothing was to do and %v was sent", got)
		}
	})
}

// The answer to a write is lost: what it has done is read before anything else is sent.
func TestLostAnswers(t *testing.T) {
	for _, verb := range []string{"create", "update"} {
		for _, done := range []bool{true, false} {
			t.Run(fmt.Sprint(verb, " done=", done), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					a := newAPI()
					p := start(t, a, "me", nil)
					synctest.Wait()
					lose := true
					a.setFail(func(v, _ string) fault {
						if v == verb && lose {
							lose = false
							return fault{err: errAway, done: done}
						}
						return fault{}
					})
					a.counts()
					p.want("a", Waiting)
					synctest.Wait()
					if got := p.Begin(operation("a")); got.State != Waiting || !errors.Is(got.Err, errAway) {
						t.Errorf("%+v, want Waiting and why", got)
					}
					pass(time.Second)
					p.want("a", Recorded)
					a.wantSaid(t, map[string]string{slot0: "a"})
					want := map[string]int{"create": 1, "update": 1, "get": 1}
					if !done {
						want[verb]++
					}
					if got := a.counts(); fmt.Sprint(got) != fmt.Sprint(want) {
						t.Errorf("requests %v, want %v", got, want)
					}
				})
			})
		}
	}
}

// An operation that ends while the answer of its write is lost is cleared all the same.
func TestEndWithLostAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		p := start(t, a, "me", nil)
		synctest.Wait()
		a.setFail(func(verb, _ string) fault {
			if verb == "create" {
				return fault{}
			}
			return fault{err: errAway, done: true}
		})
		p.want("a", Waiting)
		synctest.Wait()
		p.End("a")
		if p.Ended("a") {
			t.Error("the Lease may say the operation, and Ended does not tell")
		}
		pass(time.Second)
		a.setFail(nil)
		pass(time.Minute)
		a.wantSaid(t, map[string]string{slot0: ""})
		if !p.Ended("a") {
			t.Error("the Lease is clear, and Ended does not tell")
		}
	})
}

// An operation that ends before anything was sent for it has left nothing to wait for.
func TestEndBeforeAnythingWasSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		p := start(t, a, "me", nil)
		synctest.Wait()
		a.mu.Lock()
		a.latency = time.Second
		a.mu.Unlock()
		for i := range maxRequests + 1 {
			p.Begin(operation(fmt.Sprint("a", i)))
		}
		synctest.Wait()
		ended := 0
		for i := range maxRequests + 1 {
			uid := operation(fmt.Sprint("a", i)).Claim.UID
			p.End(uid)
			if p.Ended(uid) {
				ended++
			}
		}
		if ended != 1 {
			t.Errorf("%d operations have left nothing, want that for which nothing was sent", ended)
		}
	})
}

// Another process is faster: whose Lease it is decides, and the operation that nobody was called for moves.
func TestConflictOnBegin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		p := start(t, a, "me", nil)
		synctest.Wait()
		stolen := false
		a.setFail(func(verb, name string) fault {
			if verb != "update" || name != slot0 || stolen {
				return fault{}
			}
			stolen = true
			return fault{before: func() {
				a.change(slot0, func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("other") })
			}}
		})
		p.want("a", Waiting)
		pass(time.Second)
		p.want("a", Recorded)
		a.wantSaid(t, map[string]string{slot0: "", slot1: "a"})
		if holder := holderOf(a.objects[slot0]); holder != "other" {
			t.Errorf("the Lease of another is held by %q", holder)
		}
	})
}

// A quota or a webhook may answer 409 for long: the requests get fewer.
func TestConflictsWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		p := start(t, a, "me", nil)
		synctest.Wait()
		a.setFail(func(verb, name string) fault {
			if verb == "create" || verb == "update" {
				return fault{err: apierrors.NewConflict(leases, name, errors.New("quota"))}
			}
			return fault{}
		})
		p.want("a", Waiting)
		pass(time.Hour)
		if n := a.counts()["create"]; n > 150 {
			t.Errorf("%d tries in an hour, want one each 30 s", n)
		}
		a.setFail(nil)
		pass(time.Minute)
		p.want("a", Recorded)
	})
}

// A conflict without another holder (a label was added) is no reason to give the Lease up.
func TestConflictWithOwnIdentity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		p := start(t, a, "me", nil)
		p.begin("a")
		a.change(slot0, func(l *coordinationv1.Lease) { l.Labels["team"] = "storage" })
		p.End("a")
		pass(2 * time.Second)
		a.wantSaid(t, map[string]string{slot0: ""})
		if a.objects[slot0].Labels["team"] != "storage" {
			t.Error("the label of somebody else is gone")
		}
	})
}

// A Lease that another process has taken over is dropped, and never written again.
func TestAnotherHolderTakesOver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		p := start(t, a, "me", func(c *Config) { c.Exclusive = false })
		p.begin("a")
		a.change(slot0, func(l *coordinationv1.Lease) { l.Spec.HolderIdentity = new("other") })
		if err := p.Check(t.Context(), "a"); !errors.Is(err, ErrLost) {
			t.Errorf("Check: %v, want ErrLost", err)
		}
		p.want("a", Lost)
		p.End("a")
		pass(40 * time.Second)
		a.wantSaid(t, map[string]string{slot0: "a"})
		if !p.Ended("a") {
			t.Error("what is another's is waited for")
		}
		p.begin("b")
		a.wantSaid(t, map[string]string{slot0: "a", slot1: "b"})
	})
}

// A Lease that is deleted when nothing was called yet is made anew; one of an operation that was begun is forgotten.
func TestDeletedLease(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		p := start(t, a, "me", nil)
		p.begin("a")
		a.remove(slot0)
		if err := p.Check(t.Context(), "a"); !errors.Is(err, ErrForgotten) {
			t.Errorf("Check: %v, want ErrForgotten", err)
		}
		p.want("a", Forgotten)
		if err := p.Check(t.Context(), "a"); !errors.Is(err, ErrForgotten) {
			t.Errorf("Check again: %v, want ErrForgotten", err)
		}
		p.End("a")
		p.begin("b")
		p.End("b")
		pass(2 * time.Second)
		a.remove(slot0) // a free one
		p.begin("c")
		a.wantSaid(t, map[string]string{slot0: "c"})
	})
}

func TestForgetAnnotation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		p := start(t, a, "me", nil)
		p.begin("a")
		if err := p.Check(t.Context(), "a"); err != nil {
			t.Errorf("Check: %v", err)
		}
		a.change(slot0, func(l *coordinationv1.Lease) { l.Annotations[wellknown.AnnForgetOperation] = "true" })
		if err := p.Check(t.Context(), "a"); !errors.Is(err, ErrForgotten) {
			t.Errorf("Check: %v, want ErrForgotten", err)
		}
		p.End("a")
		pass(2 * time.Second)
		a.wantSaid(t, map[string]string{slot0: ""})
		if _, there := a.objects[slot0].Annotations[wellknown.AnnForgetOperation]; there {
			t.Error("the annotation is left, and would end the next operation")
		}
	})
}

// What cannot be read is no reason to forget.
func TestCheckWhileAPIServerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		p := start(t, a, "me", nil)
		p.begin("a")
		a.setFail(func(string, string) fault { return fault{err: errAway} })
		if err := p.Check(t.Context(), "a"); !errors.Is(err, errAway) {
			t.Errorf("Check: %v, want why it cannot be told", err)
		}
		p.want("a", Recorded)
	})
}

func TestAPIServerAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		a.fail = func(string, string) fault { return fault{err: errAway} }
		p := start(t, a, "me", nil)
		synctest.Wait()
		if got := p.Begin(operation("a")); got.State != Waiting || !errors.Is(got.Err, errAway) {
			t.Errorf("%+v, want Waiting and why", got)
		}
		pass(time.Hour)
		if n := a.counts()["list"]; n < 100 || n > 140 {
			t.Errorf("%d tries in an hour, want one each 30 s", n)
		}
		a.setFail(nil)
		pass(31 * time.Second)
		p.want("a", Recorded)
	})
}

// A 403 is no missing right unless a review says so.
func TestForbiddenByQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		p := start(t, a, "me", nil)
		synctest.Wait()
		a.setFail(func(verb, name string) fault {
			if verb == "create" {
				return fault{err: apierrors.NewForbidden(leases, name, errors.New("exceeded quota"))}
			}
			return fault{}
		})
		p.want("a", Waiting)
		pass(time.Minute)
		if got := p.Begin(operation("a")); got.State != Waiting || got.Err == nil || !strings.Contains(got.Err.Error(), "exceeded quota") {
			t.Errorf("%+v, want Waiting for the quota", got)
		}
		a.setFail(nil)
		pass(time.Minute)
		p.want("a", Recorded)
	})
}

func TestRightIsMissing(t *testing.T) {
	for _, verb := range []string{"get", "create", "update"} {
		t.Run(verb, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAPI()
				forbid := func(v, name string) fault {
					if v == verb || (verb == "get" && v == "list") {
						return fault{err: apierrors.NewForbidden(leases, name, errors.New("RBAC"))}
					}
					return fault{}
				}
				a.fail = forbid
				p := start(t, a, "me", nil)
				p.rights.mu.Lock()
				p.rights.denied[verb] = true
				p.rights.mu.Unlock()
				p.Begin(operation("a"))
				pass(time.Second)
				got := p.Begin(operation("a"))
				if got.State != Unprotected || got.Err == nil || !strings.Contains(got.Err.Error(), "add the verb "+verb) {
					t.Fatalf("%+v, want Unprotected and the rule that is missing", got)
				}
				p.want("b", Unprotected)
				p.End("a")
				if !p.Ended("a") {
					t.Error("nothing was written, and Ended waits for something")
				}
				p.rights.mu.Lock()
				p.rights.denied = nil
				p.rights.mu.Unlock()
				a.setFail(nil)
				pass(2*askAgain + time.Second)
				p.begin("c")
			})
		})
	}
}

func TestTooLargeIsUnprotected(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := start(t, newAPI(), "me", nil)
		synctest.Wait()
		op := operation("a")
		op.PersistentVolume.Annotations = map[string]string{"long": strings.Repeat("x", maxBytes)}
		if got := p.Begin(op); got.State != Unprotected || !errors.Is(got.Err, ErrTooLarge) {
			t.Errorf("%+v, want Unprotected as too large", got)
		}
	})
}

func TestReadOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		old := start(t, a, "old", nil)
		old.begin("a")
		old.stop()
		p := start(t, a, "me", func(c *Config) { c.ReadOnly = true })
		synctest.Wait()
		if got := p.took(); len(got) != 1 || got[0] != "a" {
			t.Errorf("took over %v, want a", got)
		}
		if got := p.Begin(operation("b")); got.State != Unprotected || got.Err != nil {
			t.Errorf("%+v, want Unprotected as asked for", got)
		}
		p.End("a")
		pass(2 * time.Second)
		a.wantSaid(t, map[string]string{slot0: ""})
	})
}

func TestBounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		p := start(t, a, "me", nil)
		synctest.Wait()
		for i := range maxOperations/2 + 1 {
			p.Begin(operation(fmt.Sprint("a", i)))
		}
		pass(time.Minute)
		last := fmt.Sprint("a", maxOperations/2)
		if got := p.Begin(operation(last)); got.State != Waiting || !errors.Is(got.Err, errBound) {
			t.Errorf("%+v, want to wait: the namespace has half of all", got)
		}
		for i := range maxOperations/2 + 1 {
			op := operation(fmt.Sprint("b", i))
			op.Claim.Namespace = "other"
			p.Begin(op)
		}
		pass(time.Minute)
		if len(a.objects) != maxOperations {
			t.Errorf("%d Leases, want %d", len(a.objects), maxOperations)
		}
		p.End("a0")
		pass(time.Second / 2)
		p.want(last, Recorded)
	})
}

// leaseSeconds returns leaseDurationSeconds; zero when there is none.
func leaseSeconds(lease *coordinationv1.Lease) int32 {
	if lease.Spec.LeaseDurationSeconds == nil {
		return 0
	}
	return *lease.Spec.LeaseDurationSeconds
}

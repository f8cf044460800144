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
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
)

// A new leader takes over at once what was left, and what is begun for the same claim waits for that.
func TestNewLeaderTakesOver(t *testing.T) {
	for name, forbidden := range map[string]bool{"by LIST": false, "by number": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAPI()
				old := start(t, a, "old", nil)
				old.begin("a")
				old.begin("b")
				old.begin("c")
				old.End("b")
				old.stop()
				if forbidden {
					a.setFail(func(verb, name string) fault {
						if verb == "list" {
							return fault{err: apierrors.NewForbidden(leases, name, errors.New("RBAC"))}
						}
						return fault{}
					})
				}
				p := start(t, a, "me", nil)
				synctest.Wait()
				// That of b had ended, but nobody can know.
				if got := p.took(); fmt.Sprint(got) != "[a b c]" {
					t.Errorf("took over %v, want a, b, c", got)
				}
				p.want("a", Recovered)
				for n := range 3 {
					if holder := holderOf(a.objects[fmt.Sprint("csi-example-com-op-", n)]); holder != "me" {
						t.Errorf("Lease %d is held by %q", n, holder)
					}
				}
				if err := p.Check(t.Context(), "a"); err != nil {
					t.Errorf("Check: %v", err)
				}
				p.End("a")
				p.begin("a")
			})
		})
	}
}

// What was left says the same as before to the letter: another version of this program may read it next.
func TestTakingOverKeepsTheText(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		old := start(t, a, "old", nil)
		old.begin("a")
		old.stop()
		spaced := strings.Replace(a.objects[slot0].Annotations[wellknown.AnnOperation], `"driver"`, ` "driver"`, 1)
		a.change(slot0, func(l *coordinationv1.Lease) { l.Annotations[wellknown.AnnOperation] = spaced })
		p := start(t, a, "me", nil)
		synctest.Wait()
		p.want("a", Recovered)
		if got := a.objects[slot0].Annotations[wellknown.AnnOperation]; got != spaced {
			t.Errorf("the text is now %s", got)
		}
	})
}

// A hole in the numbers is no end of the search; many missing in a row are.
func TestSearchByNumber(t *testing.T) {
	for number, want := range map[int]bool{0: true, 20: true, missingInARow - 1: true, 2 * missingInARow: false} {
		t.Run(fmt.Sprint(number), func(t *testing.T) {
			a := newAPI()
			n := names{lease: "l", driver: testDriver}
			a.put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: n.of(number)}})
			found, err := search(t.Context(), a, n)
			if err != nil || (found[number] != nil) != want {
				t.Errorf("found %v, %v; want %t", found, err, want)
			}
		})
	}
}

// A search that fails in part has found nothing.
func TestSearchFailsWhole(t *testing.T) {
	a := newAPI()
	a.fail = func(_, name string) fault {
		if name == "l-op-40" {
			return fault{err: errAway}
		}
		return fault{}
	}
	if found, err := search(t.Context(), a, names{lease: "l", driver: testDriver}); !errors.Is(err, errAway) || found != nil {
		t.Errorf("found %v, %v; want the error only", found, err)
	}
}

func TestListHasPages(t *testing.T) {
	a := newAPI()
	n := names{lease: "l", driver: testDriver}
	for i := range 2*listPage + 1 {
		a.put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: n.of(i), Labels: n.labels()}})
	}
	a.put(&coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: "l-op-x", Labels: n.labels()}})
	found, err := find(t.Context(), a, n)
	if err != nil || len(found) != 2*listPage+1 {
		t.Errorf("found %d, %v", len(found), err)
	}
}

// Without leader election the holder's renewals keep its operations, and only a holder that has stopped loses them.
func TestTakeOverWithoutLeaderElection(t *testing.T) {
	shared := func(c *Config) { c.Exclusive = false }
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		other := start(t, a, "other", shared)
		other.begin("a")
		p := start(t, a, "me", shared)
		pass(10 * time.Minute)
		if got := p.took(); len(got) != 0 {
			t.Errorf("took over %v from a holder that renews", got)
		}
		p.begin("b")
		a.wantSaid(t, map[string]string{slot0: "a", slot1: "b"})
		other.stop()
		pass(20 * time.Second)
		if got := p.took(); len(got) != 0 {
			t.Errorf("took over %v before the Lease had ended", got)
		}
		pass(4 * time.Minute)
		if got := p.took(); len(got) != 1 || got[0] != "a" {
			t.Errorf("took over %v, want a", got)
		}
	})
}

// Two replicas that find the same operation: one takes it.
func TestTwoTakeOver(t *testing.T) {
	shared := func(c *Config) { c.Exclusive = false }
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		old := start(t, a, "old", shared)
		for i := range 20 {
			old.begin(fmt.Sprint("a", i))
		}
		old.stop()
		a.latency = 3 * time.Millisecond
		one, two := start(t, a, "one", shared), start(t, a, "two", shared)
		pass(10 * time.Minute)
		took := map[types.UID]int{}
		for _, uid := range append(one.took(), two.took()...) {
			took[uid]++
		}
		for i := range 20 {
			if n := took[types.UID(fmt.Sprint("a", i))]; n != 1 {
				t.Errorf("a%d was taken over %d times", i, n)
			}
		}
	})
}

func TestSamePodTakesOverAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		old := start(t, a, "pod_1", func(c *Config) { c.Exclusive = false })
		old.begin("a")
		old.stop()
		p := start(t, a, "pod_2", func(c *Config) {
			c.Exclusive, c.SamePod = false, func(holder string) bool { return holder == "pod_1" }
		})
		synctest.Wait()
		p.want("a", Recovered)
	})
}

// What cannot be replayed is reported once and left as it is; it is for a person to remove.
func TestReported(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*coordinationv1.Lease)
		want   string
	}{
		"restored from a backup": {func(l *coordinationv1.Lease) { l.UID = "restored" }, "another UID"},
		"a newer version": {func(l *coordinationv1.Lease) {
			l.Annotations[wellknown.AnnOperation] = strings.Replace(l.Annotations[wellknown.AnnOperation], `"version":1`, `"version":2`, 1)
		}, "unknown version 2"},
		"no JSON": {func(l *coordinationv1.Lease) { l.Annotations[wellknown.AnnOperation] = "{" }, "no JSON"},
		"another driver": {func(l *coordinationv1.Lease) {
			l.Annotations[wellknown.AnnOperation] = strings.Replace(l.Annotations[wellknown.AnnOperation], `"driver":"csi.`, `"driver":"x.`, 1)
		}, `driver "x.example.com"`},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAPI()
				old := start(t, a, "old", nil)
				old.begin("a")
				old.stop()
				a.change(slot0, tc.change)
				version := a.objects[slot0].ResourceVersion
				p := start(t, a, "me", nil)
				pass(time.Hour)
				if len(p.reported) != 1 || !strings.Contains(p.reported[0], tc.want) {
					t.Errorf("reported %q, want %q once", p.reported, tc.want)
				}
				if got := p.took(); len(got) != 0 {
					t.Errorf("took over %v", got)
				}
				p.begin("b")
				if a.objects[slot0].ResourceVersion != version {
					t.Error("the Lease was written")
				}
				p.mu.Lock()
				p.reported = nil
				p.mu.Unlock()
				a.remove(slot0)
				pass(time.Hour)
				p.Store.mu.Lock()
				left := len(p.Store.reported)
				p.Store.mu.Unlock()
				if left != 0 {
					t.Error("the Lease is gone and still reported")
				}
			})
		})
	}
}

// Two drivers whose names make one lease name leave each other's Leases alone, also free ones.
func TestAnotherDriverWithTheSameLeaseName(t *testing.T) {
	for name, forbidden := range map[string]bool{"by LIST": false, "by number": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAPI()
				other := start(t, a, "other", func(c *Config) { c.Driver = "csi-example.com" })
				other.begin("a")
				other.begin("b")
				other.End("a")
				other.Flush(t.Context())
				other.stop()
				a.setFail(func(verb, name string) fault {
					if verb == "list" && forbidden {
						return fault{err: apierrors.NewForbidden(leases, name, errors.New("RBAC"))}
					}
					return fault{}
				})
				free := a.objects[slot0].ResourceVersion
				p := start(t, a, "me", nil)
				p.Begin(operation("c"))
				pass(time.Minute)
				p.want("c", Recorded)
				a.wantSaid(t, map[string]string{slot0: "", slot1: "b", "csi-example-com-op-2": "c"})
				if a.objects[slot0].ResourceVersion != free {
					t.Error("the free Lease of the other driver was written")
				}
				if len(p.reported) != 0 {
					t.Errorf("reported %q, which is for the other driver", p.reported)
				}
			})
		})
	}
}

func TestNodes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		long := strings.Repeat("n", 253)
		one := start(t, a, "one", func(c *Config) { c.Node = long })
		one.begin("a")
		start(t, a, "two", func(c *Config) { c.Node = "node-2" }).begin("b")
		start(t, a, "central", nil).begin("c")
		one.stop()
		again := start(t, a, "three", func(c *Config) { c.Node = long })
		synctest.Wait()
		if got := again.took(); len(got) != 1 || got[0] != "a" {
			t.Errorf("took over %v, want that of its node", got)
		}
		if len(a.objects) != 3 {
			t.Errorf("Leases: %v, want one for each", a.says())
		}
	})
}

// Two Leases with operations of one claim: they are told of one after the other.
func TestTwoOperationsOfOneClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		for i, identity := range []string{"one", "two"} {
			old := start(t, a, identity, func(c *Config) { c.Exclusive = i == 0 })
			old.begin("a")
			a.change(fmt.Sprint("csi-example-com-op-", i), func(l *coordinationv1.Lease) { l.Spec.RenewTime = &metav1.MicroTime{Time: time.Now()} })
			old.stop()
		}
		p := start(t, a, "me", nil)
		synctest.Wait()
		if got := p.took(); len(got) != 1 {
			t.Errorf("told of %v, want one", got)
		}
		p.End("a")
		synctest.Wait()
		if got := p.took(); len(got) != 1 {
			t.Errorf("told of %v after the first has ended, want the other", got)
		}
		p.End("a")
		pass(2 * time.Second)
		a.wantSaid(t, map[string]string{slot0: "", slot1: ""})
	})
}

func TestForgottenBeforeTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		old := start(t, a, "old", nil)
		old.begin("a")
		old.stop()
		a.change(slot0, func(l *coordinationv1.Lease) { l.Annotations[wellknown.AnnForgetOperation] = "true" })
		p := start(t, a, "me", nil)
		pass(2 * time.Second)
		if got := p.took(); len(got) != 0 {
			t.Errorf("took over %v", got)
		}
		a.wantSaid(t, map[string]string{slot0: ""})
	})
}

func TestMayTake(t *testing.T) {
	now := time.Now()
	lease := func(holder string, renewed time.Time, seconds int32) *coordinationv1.Lease {
		return &coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{
			HolderIdentity: &holder, RenewTime: &metav1.MicroTime{Time: renewed}, LeaseDurationSeconds: &seconds,
		}}
	}
	shared := reader{self: "me"}
	for name, tc := range map[string]struct {
		lease *coordinationv1.Lease
		since time.Time
		want  bool
	}{
		"free":                                   {lease("", now, 60), now, true},
		"our own":                                {lease("me", now, 60), now, true},
		"renewed":                                {lease("other", now, 60), now, false},
		"over, within the margin of the clocks":  {lease("other", now.Add(-61*time.Second), 60), now, false},
		"over":                                   {lease("other", now.Add(-91*time.Second), 60), now, true},
		"by a clock that is ahead":               {lease("other", now.Add(time.Hour), 60), now, false},
		"unchanged for long, whatever the clock": {lease("other", now.Add(time.Hour), 60), now.Add(-61 * time.Second), true},
		"without a time":                         {&coordinationv1.Lease{Spec: coordinationv1.LeaseSpec{HolderIdentity: new("other")}}, now, true},
	} {
		if got := shared.mayTake(tc.lease, now, tc.since); got != tc.want {
			t.Errorf("%s: %t, want %t", name, got, tc.want)
		}
	}
}

func TestFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		p := start(t, a, "me", nil)
		p.begin("a")
		p.begin("b")
		p.End("a")
		p.Flush(t.Context())
		a.wantSaid(t, map[string]string{slot0: "", slot1: "b"})
	})
}

// A write that was to take an operation over and that changed nothing is sent again. What happens to the claim meanwhile
// does not end the operation.
func TestTakeOverIsTriedAgain(t *testing.T) {
	for name, first := range map[string]fault{
		"no answer":         {err: errAway},
		"answer lost":       {err: errAway, done: true},
		"server overloaded": {err: apierrors.NewTooManyRequests("later", 1)},
		"conflict":          {err: apierrors.NewConflict(leases, slot0, errors.New("the object has been modified"))},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAPI()
				old := start(t, a, "old", nil)
				old.begin("a")
				old.stop()
				failed := false
				a.setFail(func(verb, _ string) fault {
					if verb != "update" || failed {
						return fault{}
					}
					failed = true
					return first
				})
				p := start(t, a, "me", nil)
				for range 20 {
					status := p.Begin(operation("a"))
					if status.State != Recovered && (status.State != Waiting || p.IsReady()) {
						t.Fatalf("state %d, ready %t, before the operation of the old process is taken over", status.State, p.IsReady())
					}
					p.Withdraw("a")
					pass(retryStart / 5)
				}
				if got := p.took(); fmt.Sprint(got) != "[a]" {
					t.Errorf("took over %v, want a", got)
				}
				p.Withdraw("a")
				p.want("a", Recovered)
				a.wantSaid(t, map[string]string{slot0: "a"})
				if holder := holderOf(a.objects[slot0]); holder != "me" {
					t.Errorf("the Lease is held by %q", holder)
				}
			})
		})
	}
}

// An operation that this process has begun is withdrawn like one that has ended.
func TestWithdraw(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI()
		p := start(t, a, "me", nil)
		p.begin("a")
		p.Withdraw("a")
		p.Withdraw("none")
		pass(2 * lingers)
		a.wantSaid(t, map[string]string{slot0: ""})
	})
}

package operations

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
)

// Whatever the API server does, and whenever a process dies: an operation that was recorded and has not ended is found by
// the next process, and what has ended is cleared in the end.
func TestCrashes(t *testing.T) {
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { crash(t, rand.New(rand.NewPCG(seed, 0))) })
		})
	}
}

func crash(t *testing.T, random *rand.Rand) {
	a := newAPI()
	a.latency = 7 * time.Millisecond
	troubles := rand.New(rand.NewPCG(random.Uint64(), 1)) // guarded by the lock of the API
	trouble := func(_, name string) fault {
		a.mu.Lock()
		defer a.mu.Unlock()
		switch troubles.IntN(12) {
		case 0:
			return fault{err: errAway}
		case 1:
			return fault{err: errAway, done: true}
		case 2:
			return fault{err: apierrors.NewForbidden(leases, name, fmt.Errorf("webhook"))}
		case 3:
			return fault{before: func() {
				if a.says()[name] != "" {
					a.change(name, func(l *coordinationv1.Lease) { l.Labels["touched"] = "yes" })
				}
			}}
		}
		return fault{}
	}
	mayRun := map[types.UID]bool{} // the driver may be working for the claim
	names := 0
	for life := range 6 {
		a.setFail(trouble)
		p := start(t, a, fmt.Sprint("life", life), nil)
		asked := map[types.UID]bool{}
		for range 60 {
			pass(time.Duration(random.IntN(60)) * time.Millisecond)
			for _, uid := range p.took() {
				mayRun[uid], asked[uid] = true, true
			}
			for uid := range asked {
				switch p.Begin(operation(string(uid))).State {
				case Recorded:
					mayRun[uid] = true
				case Waiting, Recovered:
				case Unprotected, Lost, Forgotten:
					t.Fatalf("%s: an operation that this process alone drives is not for it any more", uid)
				}
			}
			if random.IntN(2) == 0 {
				names++
				asked[types.UID(fmt.Sprint("c", names))] = true
			}
			for uid := range asked {
				if random.IntN(6) == 0 && mayRun[uid] {
					p.End(uid)
					delete(asked, uid)
					delete(mayRun, uid)
				}
			}
		}
		p.stop()
		said := map[string]bool{}
		for _, uid := range a.says() {
			said[uid] = true
		}
		for uid := range mayRun {
			if !said[string(uid)] {
				t.Fatalf("life %d: %s was recorded, has not ended, and no Lease says it: %v", life, uid, a.says())
			}
		}
	}
	a.setFail(nil)
	p := start(t, a, "last", nil)
	pass(5 * time.Minute)
	found := map[types.UID]bool{}
	for _, uid := range p.took() {
		found[uid] = true
	}
	for uid := range mayRun {
		if !found[uid] {
			t.Errorf("%s was not taken over", uid)
		}
	}
	for uid := range found {
		p.End(uid)
	}
	pass(time.Minute)
	for _, uid := range p.took() {
		p.End(uid)
	}
	pass(time.Minute)
	for name, uid := range a.says() {
		if uid != "" {
			t.Errorf("%s says %s still", name, uid)
		}
	}
}

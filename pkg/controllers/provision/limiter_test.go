package provision

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// atMost bounds the calls from one source.
func atMost(n int) func(*Config) {
	return func(cfg *Config) { cfg.MaxCreatesPerSource = n }
}

// log is each CreateVolume call as "<second> <claim>".
func (w *world) log() []string {
	var lines []string
	for _, m := range w.driver.createCalls() {
		lines = append(lines, fmt.Sprintf("%d %s", int(m.at.Round(time.Second)/time.Second), strings.TrimPrefix(m.name, "pvc-uid-of-")))
	}
	slices.SortStableFunc(lines, func(a, b string) int { // calls of one moment come in any order
		var at, bt int
		_, _ = fmt.Sscan(a, &at)
		_, _ = fmt.Sscan(b, &bt)
		if at != bt {
			return at - bt
		}
		return strings.Compare(a, b)
	})
	return lines
}

func (w *world) logged(want ...string) {
	w.Helper()
	if diff := cmp.Diff(want, w.log()); diff != "" {
		w.Errorf("calls of CreateVolume (-want +got):\n%s", diff)
	}
}

// noPlacesLeft checks that the limiter remembers nothing.
func (w *world) noPlacesLeft() {
	w.Helper()
	if l := w.c.sourceLimiter; len(l.keys)+len(l.keyOf) != 0 {
		w.Errorf("left are %v, %v", l.keys, l.keyOf)
	}
}

func slowly(n int) []answer {
	return slices.Repeat([]answer{{after: 5 * time.Second}}, n)
}

// With two workers, claims that wait for a source hold none: claims of other sources, and without one, go on.
func TestClaimsThatWaitForTheirSourceHoldNoWorker(t *testing.T) {
	inWorld(t, atMost(1), func(t *testing.T, w *world) {
		w.driver.answers(slowly(7)...)
		w.origin("src")
		w.origin("other")
		for _, name := range []string{"a", "b", "c", "d"} {
			w.clone(name, "src")
			w.pass(time.Millisecond)
		}
		if told := w.events.having("Provisioning"); len(told) != 1 {
			t.Errorf("told %q, want what is said of the first", told)
		}
		if got := w.c.sourceLimiter.waiting(); got != 3 {
			t.Errorf("%d wait, want 3", got)
		}
		w.clone("x", "other")
		w.pass(time.Second)
		w.claim("y") // a worker is free at 5 s
		w.pass(time.Minute)
		w.logged("0 a", "0 x", "5 b", "5 y", "10 c", "15 d")
		if got := w.driver.mostFrom("handle-pv-of-src"); got != 1 {
			t.Errorf("%d calls at once, want 1", got)
		}
		w.noPlacesLeft()
	})
}

func TestAsManyCallsRunAsMay(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.MaxCreatesPerSource, cfg.CreateWorkers = 3, 10 }, func(t *testing.T, w *world) {
		w.driver.answers(slowly(20)...)
		w.origin("src")
		for i := range 7 {
			w.clone(fmt.Sprint("c", i), "src")
			w.pass(time.Millisecond)
		}
		w.pass(time.Minute)
		w.logged("0 c0", "0 c1", "0 c2", "5 c3", "5 c4", "5 c5", "10 c6")
		w.noPlacesLeft()
	})
}

// While the driver is busy with a create, which its next call will tell, no new one is begun; and that next call needs
// no place of its own.
func TestABusyCreateKeepsNewOnesOut(t *testing.T) {
	inWorld(t, atMost(1), func(t *testing.T, w *world) {
		w.driver.answers(noAnswer, answer{code: codes.Aborted}, answer{})
		w.origin("src")
		w.clone("a", "src")
		w.pass(time.Millisecond)
		w.clone("b", "src")
		w.pass(time.Hour)
		log := w.log()
		for i, want := range []string{"a", "a", "a", "b"} {
			if !strings.HasSuffix(log[i], want) {
				t.Fatalf("calls %q, want three of a and then b", log)
			}
		}
		w.noPlacesLeft()
	})
}

// An attempt that does not reach the driver says nothing about what it does: the busy create keeps its place, also
// after a restart.
func TestABusyCreateKeepsItsPlaceWithoutACall(t *testing.T) {
	t.Parallel()
	for name, restart := range map[string]bool{"same process": false, "next process": true} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, atMost(1), func(t *testing.T, w *world) { keepsItsPlace(t, w, restart) })
		})
	}
}

func keepsItsPlace(t *testing.T, w *world, restart bool) {
	t.Helper()
	w.driver.answers(answer{code: codes.Aborted})
	w.origin("src")
	w.put(fixture.Secret("default", "s", nil))
	w.put(fixture.Class("secret").Provisioner(driverName).
		Parameter(wellknown.ParamSecretName, "s").Parameter(wellknown.ParamSecretNamespace, "default").Obj())
	w.put(fixture.Claim("a").UID("uid-of-a").Class("secret").For(driverName).FromClaim("src").Obj())
	w.pass(time.Millisecond)
	w.clone("b", "src")
	w.api.failing(func(_, resource, _ string) error {
		if resource == "secrets" {
			return apierrors.NewInternalError(errors.New("away"))
		}
		return nil
	})
	if restart {
		w.die()
		w.start()
	}
	w.pass(time.Minute)
	w.logged("0 a")
	w.api.failing(nil)
	w.pass(time.Minute)
	if log := w.log(); len(log) != 3 || !strings.HasSuffix(log[1], "a") || !strings.HasSuffix(log[2], "b") {
		t.Fatalf("calls %q, want two of a and then b", log)
	}
	w.noPlacesLeft()
}

// A driver that is busy for ever with one claim keeps new ones out for the longest back-off, and no longer.
func TestACreateThatIsBusyForEver(t *testing.T) {
	inWorld(t, atMost(1), func(t *testing.T, w *world) {
		w.driver.answers(slices.Repeat([]answer{{code: codes.Aborted}}, 1000)...)
		w.origin("src")
		w.clone("a", "src")
		w.pass(time.Millisecond)
		w.clone("b", "src")
		w.pass(4 * time.Minute)
		if log := w.log(); slices.ContainsFunc(log, func(line string) bool { return strings.HasSuffix(line, "b") }) {
			t.Fatalf("calls %q, want none of b", log)
		}
		w.pass(2 * time.Minute)
		if log := w.log(); !slices.ContainsFunc(log, func(line string) bool { return strings.HasSuffix(line, "b") }) {
			t.Errorf("calls %q, want one of b", log)
		}
	})
}

// An unanswered create that the driver has refused since waits for its deadline and keeps nobody out; its next call
// comes before those of all that wait for their first.
func TestAnUnansweredCreateGoesBeforeNewOnes(t *testing.T) {
	inWorld(t, atMost(1), func(t *testing.T, w *world) {
		w.driver.answers(append([]answer{noAnswer, final}, slices.Repeat([]answer{{after: 4 * time.Second}}, 9)...)...)
		w.origin("src")
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			w.clone(name, "src")
			w.pass(time.Millisecond)
		}
		w.pass(time.Hour)
		// The second call of a would be repeated at 2 s, while b holds the place until 5 s.
		w.logged("0 a", "1 a", "1 b", "5 a", "9 c", "13 d", "17 e")
		w.noPlacesLeft()
	})
}

// Creates that an earlier process has left are bounded like all others, and come before new ones.
func TestResumedCreatesKeepTheBound(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(madeInBad, madeInBad, madeInBad)
		w.origin("src")
		for _, name := range []string{"a", "b", "c"} {
			w.clone(name, "src")
		}
		w.pass(500 * time.Millisecond)
		w.die()
		if !w.recorded("a") || !w.recorded("b") || !w.recorded("c") {
			t.Fatal("not all are recorded")
		}
		w.driver.answers(slowly(9)...)
		w.driver.most = nil
		w.driver.running = nil
		w.clone("new", "src")
		atMost(1)(&w.cfg)
		w.cfg.CreateWorkers = 10
		w.start()
		w.pass(time.Minute)
		if got := w.driver.mostFrom("handle-pv-of-src"); got != 1 {
			t.Errorf("%d calls at once, want 1", got)
		}
		log := w.log()
		if len(log) != 7 || !strings.HasSuffix(log[6], "new") {
			t.Errorf("calls %q, want one more of each and the new one last", log)
		}
		for _, name := range []string{"a", "b", "c", "new"} {
			if w.pv("pvc-uid-of-"+name) == nil || w.recorded(name) {
				t.Errorf("%s has no PersistentVolume or is recorded", name)
			}
		}
		w.noPlacesLeft()
	})
}

// protectedOrigin is origin, with the finalizer of a source: what is cloned from it needs no write of a claim.
func (w *world) protectedOrigin(name string) {
	w.Helper()
	w.origin(name)
	w.change(name, func(claim *corev1.PersistentVolumeClaim) {
		claim.Finalizers = append(claim.Finalizers, wellknown.FinalizerCloneSource)
	})
}

// A stop drives what only this process knows to its end, one after the other; what waits for its first call is left.
func TestAStopKeepsTheBound(t *testing.T) {
	inWorld(t, atMost(1), func(t *testing.T, w *world) {
		w.protectedOrigin("src")
		w.api.failing(forbidLeases)
		w.driver.answers(noStatus, noStatus, answer{after: 2 * time.Second}, answer{after: 2 * time.Second})
		for _, name := range []string{"a", "b"} {
			w.clone(name, "src")
			w.pass(time.Millisecond)
		}
		w.clone("c", "src") // at once busy, so that its place is reserved
		w.pass(100 * time.Millisecond)
		w.term(drainTime)
		if got := w.driver.mostFrom("handle-pv-of-src"); got != 1 {
			t.Errorf("%d calls at once, want 1", got)
		}
		for _, name := range []string{"a", "b"} {
			if w.pv("pvc-uid-of-"+name) == nil {
				t.Errorf("%s was lost, calls %q", name, w.log())
			}
		}
	})
}

// The same beside a call that was running when the stop came: what is driven waits for its end.
func TestAStopKeepsTheBoundBesideACall(t *testing.T) {
	inWorld(t, atMost(1), func(t *testing.T, w *world) {
		w.protectedOrigin("src")
		w.api.failing(forbidLeases)
		w.driver.answers(noStatus, answer{after: 3 * time.Second}, answer{after: 2 * time.Second})
		w.clone("a", "src")
		w.pass(time.Millisecond)
		w.clone("b", "src")
		w.pass(100 * time.Millisecond)
		w.term(drainTime)
		w.logged("0 a", "0 b", "3 a")
		if got := w.driver.mostFrom("handle-pv-of-src"); got != 1 {
			t.Errorf("%d calls at once, want 1", got)
		}
	})
}

// Who is deleted while it waits leaves its place to the next.
func TestAClaimThatIsDeletedWhileItWaits(t *testing.T) {
	inWorld(t, atMost(1), func(t *testing.T, w *world) {
		w.driver.answers(slowly(9)...)
		w.origin("src")
		for _, name := range []string{"a", "b", "c"} {
			w.clone(name, "src")
			w.pass(time.Millisecond)
		}
		w.remove(w.live("b"))
		w.pass(time.Minute)
		w.logged("0 a", "5 c")
		w.noPlacesLeft()
	})
}

// Whatever the driver answers and whoever is deleted: the bound holds, every claim that stays gets its volume, and
// nothing is remembered in the end.
func TestTheBoundHoldsWhateverHappens(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 7)) //nolint:gosec // a seed that is always the same
			limit := 1 + random.IntN(3)
			inWorld(t, func(cfg *Config) { cfg.MaxCreatesPerSource, cfg.CreateWorkers = limit, 1+random.IntN(8) }, func(t *testing.T, w *world) {
				kinds := []answer{{}, final, exists, noAnswer, madeInBad, noStatus, {code: codes.Aborted}, {code: codes.Unavailable}, {code: codes.InvalidArgument}}
				script := make([]answer, 60)
				for i := range script {
					script[i] = kinds[random.IntN(len(kinds))]
					script[i].after = time.Duration(random.IntN(9000)) * time.Millisecond
				}
				w.driver.answers(script...)
				sources := []string{"src", "other"}
				for _, source := range sources {
					w.origin(source)
				}
				stay := map[string]bool{}
				for i := range 20 {
					name := fmt.Sprint("c", i)
					w.clone(name, sources[random.IntN(2)])
					stay[name] = true
					w.pass(time.Duration(random.IntN(3000)) * time.Millisecond)
					if gone := fmt.Sprint("c", random.IntN(i+1)); random.IntN(5) == 0 && stay[gone] {
						w.remove(w.live(gone))
						delete(stay, gone)
					}
				}
				w.pass(6 * time.Hour)
				for _, source := range sources {
					if got := w.driver.mostFrom("handle-pv-of-" + source); got > limit {
						t.Errorf("%d calls at once from %s, want at most %d", got, source, limit)
					}
				}
				for name := range stay {
					if w.pv("pvc-uid-of-"+name) == nil {
						t.Errorf("%s has no volume", name)
					}
				}
				w.noPlacesLeft()
			})
		})
	}
}

// The queue alone: no more than the limit, everybody in one place, nobody waits while there is a place.
func TestLimiter(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2)) //nolint:gosec // a seed that is always the same
	for range 200 {
		limit := 1 + random.IntN(3)
		woken := map[types.UID]bool{}
		l := newLimiter(limit, func(uid types.UID) { woken[uid] = true })
		for range 60 {
			uid := types.UID(fmt.Sprint(random.IntN(8)))
			if random.IntN(2) == 0 {
				if l.tryAcquire(uid, "k", random.IntN(3) == 0) != l.has(uid) {
					t.Fatal("tryAcquire does not tell what it has done")
				}
				if woken[uid] && !l.has(uid) {
					t.Fatal("a place that was reserved is gone")
				}
			} else {
				l.release(uid, random.IntN(3) == 0)
				delete(woken, uid)
			}
			s := l.keys["k"]
			if s == nil {
				continue
			}
			places := len(s.places) + len(s.busy) + len(s.retries) + len(s.firstCalls)
			if len(s.places) > limit || places != len(l.keyOf) {
				t.Fatalf("limit %d, %+v, of %v", limit, s, l.keyOf)
			}
			if len(s.retries) > 0 && s.hasPlace(limit, true) || len(s.firstCalls) > 0 && s.hasPlace(limit, false) {
				t.Fatalf("somebody waits while there is a place: limit %d, %+v", limit, s)
			}
		}
		for i := range 8 {
			l.release(types.UID(fmt.Sprint(i)), false)
		}
		if len(l.keys)+len(l.keyOf) != 0 {
			t.Fatalf("left are %v, %v", l.keys, l.keyOf)
		}
	}
}

// A stop takes back the places that were reserved for claims which nobody wakes any more, and none whose call runs.
func TestADrainKeepsTheTurnsOfCalls(t *testing.T) {
	t.Parallel()
	l := newLimiter(2, func(types.UID) {})
	for _, uid := range []types.UID{"ended", "running", "woken", "waiting"} {
		l.tryAcquire(uid, "k", false)
	}
	l.release("ended", false)
	l.drain()
	if !l.has("running") || !l.tryAcquire("driven", "k", true) || l.tryAcquire("too many", "k", true) {
		t.Errorf("running %v", l.keys["k"].places)
	}
	l.release("running", false)
	l.release("driven", false)
	if len(l.keys)+len(l.keyOf) != 0 {
		t.Errorf("left are %v, %v", l.keys, l.keyOf)
	}
}

func (l *limiter) has(uid types.UID) bool {
	s := l.keys[l.keyOf[uid]]
	return s != nil && s.places[uid]
}

package provision

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/csi-sidecars/external-provisioner/pkg/cluster"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// desk is markers with an API server that has one claim, "c".
type desk struct {
	*world
	m       *markers
	client  *fake.Clientset
	ctx     context.Context //nolint:containedctx // it stands for the life of the process
	end     context.CancelFunc
	refused []string
	cached  *corev1.PersistentVolumeClaim
}

const markDelay = 50 * time.Millisecond

func atDesk(t *testing.T, delay time.Duration, test func(t *testing.T, d *desk)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := &desk{world: &world{T: t, api: newAPIServer()}}
		d.ctx, d.end = context.WithCancel(t.Context())
		dead := &atomic.Bool{}
		d.client = d.api.client(dead.Load)
		d.m = newMarkers(d.client, delay, func(reason string) { d.refused = append(d.refused, reason) })
		d.put(fixture.Claim("c").UID("u").Annotation("tenant", "data").Finalizer("kubernetes.io/pvc-protection").Obj())
		d.cached = d.live("c")
		t.Cleanup(func() { d.end(); d.m.wait() })
		test(t, d)
	})
}

// says compares the annotation of the claim, "" for unmarked, and that finalizer and annotation agree.
func (d *desk) says(want string) {
	d.Helper()
	claim := d.live("c")
	if got := claim.Annotations[wellknown.AnnProvisioningInProgress]; got != want || hasMarkerFinalizer(claim) != (want != "") {
		d.Errorf("annotation %q, finalizers %v, want %q", got, claim.Finalizers, want)
	}
	if claim.Annotations["tenant"] != "data" {
		d.Errorf("the tenant's annotation is lost: %v", claim.Annotations)
	}
}

func (d *desk) updates(want int) {
	d.Helper()
	if got := d.api.wrote("update persistentvolumeclaims"); got != want {
		d.Errorf("%d writes, want %d", got, want)
	}
}

// forgotten checks that no state is kept of a claim that needs none.
func (d *desk) forgotten() {
	d.Helper()
	d.m.mu.Lock()
	defer d.m.mu.Unlock()
	if len(d.m.marks) != 0 {
		d.Errorf("%d states are kept", len(d.m.marks))
	}
}

func (d *desk) unavailable(until time.Duration) {
	begin := time.Now()
	d.api.failing(func(string, string, string) error {
		if time.Since(begin) < until {
			return apierrors.NewInternalError(errors.New("etcd is away"))
		}
		return nil
	})
}

func TestAQuickCallIsNotMarked(t *testing.T) {
	atDesk(t, markDelay, func(_ *testing.T, d *desk) {
		d.m.begin(d.ctx, d.cached, "v")
		d.pass(markDelay - time.Millisecond)
		d.m.end(d.ctx, "u")
		d.pass(time.Minute)
		d.updates(0)
		d.forgotten()
	})
}

func TestALongCallIsMarkedAndUnmarked(t *testing.T) {
	atDesk(t, markDelay, func(t *testing.T, d *desk) {
		d.m.begin(d.ctx, d.cached, "v")
		d.pass(markDelay)
		d.says("v")
		if !d.m.has("u") {
			t.Error("has says no")
		}
		d.m.begin(d.ctx, d.cached, "v") // a repetition of the call
		d.m.want(d.ctx, d.cached, "v")
		d.pass(time.Minute)
		d.updates(1)
		d.m.end(d.ctx, "u")
		d.pass(0)
		d.says("")
		d.updates(2)
		d.forgotten()
		d.m.end(d.ctx, "u")
		d.pass(time.Minute)
		d.updates(2)
	})
}

// A call that has ended while its marker could not be written is not marked any more.
func TestTheEndOvertakesTheWrite(t *testing.T) {
	atDesk(t, markDelay, func(_ *testing.T, d *desk) {
		d.unavailable(time.Second)
		d.m.want(d.ctx, d.cached, "v")
		d.pass(500 * time.Millisecond)
		d.m.end(d.ctx, "u")
		d.pass(time.Minute)
		d.says("")
		d.updates(0)
		d.forgotten()
	})
}

// What is wanted while the old marker is being removed is on the claim in the end, with the new text.
func TestAWantOvertakesTheRemoval(t *testing.T) {
	atDesk(t, markDelay, func(t *testing.T, d *desk) {
		d.m.want(d.ctx, d.cached, "old")
		d.pass(0)
		d.unavailable(time.Second)
		d.m.end(d.ctx, "u")
		d.pass(500 * time.Millisecond)
		if !d.m.removing("u") {
			t.Error("removing says no")
		}
		d.m.want(d.ctx, d.cached, "new")
		d.pass(time.Minute)
		d.says("new")
		d.m.end(d.ctx, "u")
		d.pass(0)
		d.says("")
		d.forgotten()
	})
}

// The same marker, wanted again before its removal began, is not written twice.
func TestAWantCancelsTheRemoval(t *testing.T) {
	atDesk(t, markDelay, func(_ *testing.T, d *desk) {
		d.m.want(d.ctx, d.cached, "v")
		d.pass(0)
		d.unavailable(time.Second)
		d.m.end(d.ctx, "u")
		d.pass(500 * time.Millisecond)
		d.m.want(d.ctx, d.cached, "v")
		d.pass(time.Minute)
		d.says("v")
		d.updates(1)
	})
}

func TestAMarkerMeetsOtherWriters(t *testing.T) {
	atDesk(t, markDelay, func(t *testing.T, d *desk) {
		conflicts := 0
		d.api.failing(func(verb, resource, name string) error {
			if verb == "update" && conflicts < 3 {
				conflicts++
				return apierrors.NewConflict(schema.GroupResource{Resource: resource}, name, errors.New("modified"))
			}
			return nil
		})
		if err := d.m.ensure(d.ctx, d.cached, "v"); err != nil {
			t.Error(err)
		}
		d.says("v")
		if conflicts != 3 || len(d.refused) != 0 {
			t.Errorf("%d conflicts, refusals %v", conflicts, d.refused)
		}
	})
}

func TestEnsureWaitsForTheAPIServer(t *testing.T) {
	atDesk(t, 0, func(t *testing.T, d *desk) {
		d.unavailable(time.Minute)
		begin := time.Now()
		if err := d.m.ensure(d.ctx, d.cached, "v"); err != nil {
			t.Error(err)
		}
		if waited := time.Since(begin); waited < time.Minute || waited > 2*time.Minute {
			t.Errorf("waited %s", waited)
		}
		d.says("v")
	})
}

func TestEnsureEndsWithItsContext(t *testing.T) {
	atDesk(t, 0, func(t *testing.T, d *desk) {
		d.unavailable(time.Hour)
		ctx, cancel := context.WithTimeout(d.ctx, time.Second)
		defer cancel()
		if err := d.m.ensure(ctx, d.cached, "v"); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v", err)
		}
	})
}

func TestWhyAClaimCannotBeMarked(t *testing.T) {
	t.Parallel()
	resource := schema.GroupResource{Resource: "persistentvolumeclaims"}
	for name, tc := range map[string]struct {
		prepare func(d *desk)
		want    func(error) bool
		counted []string
	}{
		"it is gone": {func(d *desk) { d.remove(d.cached) }, func(err error) bool { return errors.Is(err, cluster.ErrGone) }, nil},
		"another one has its name": {func(d *desk) {
			d.remove(d.cached)
			d.put(fixture.Claim("c").UID("another").Annotation("tenant", "data").Obj())
		}, func(err error) bool { return errors.Is(err, cluster.ErrGone) }, nil},
		"it is being deleted": {func(d *desk) {
			d.api.mu.Lock()
			defer d.api.mu.Unlock()
			_ = d.api.delete("persistentvolumeclaims/default/c", nil)
		}, func(err error) bool { return errors.Is(err, errTerminating) }, []string{"Terminating"}},
		"the right is missing": {func(d *desk) { d.api.failing(forbidMarkers) }, apierrors.IsForbidden, []string{"Forbidden"}},
		"an admission rule refuses it": {func(d *desk) {
			d.api.failing(func(verb, _, name string) error {
				if verb == "update" {
					return apierrors.NewInvalid(schema.GroupKind{Kind: "PersistentVolumeClaim"}, name, nil)
				}
				return nil
			})
		}, apierrors.IsInvalid, []string{"Invalid"}},
		"the request is bad": {func(d *desk) {
			d.api.failing(func(verb, _, _ string) error {
				if verb == "update" {
					return apierrors.NewBadRequest("no")
				}
				return nil
			})
		}, apierrors.IsBadRequest, []string{"BadRequest"}},
		"a webhook has a reason of its own": {func(d *desk) {
			d.api.failing(func(verb, _, name string) error {
				err := apierrors.NewForbidden(resource, name, nil)
				err.ErrStatus.Reason = metav1.StatusReason("no finalizers for " + name)
				if verb == "update" {
					return err
				}
				return nil
			})
		}, func(err error) bool { return strings.Contains(err.Error(), "forbidden") }, []string{"Other"}},
		"the method is not allowed": {func(d *desk) {
			d.api.failing(func(string, string, string) error { return apierrors.NewMethodNotSupported(resource, "update") })
		}, apierrors.IsMethodNotSupported, []string{"MethodNotAllowed"}},
	} {
		t.Run(name, func(t *testing.T) {
			atDesk(t, 0, func(t *testing.T, d *desk) {
				tc.prepare(d)
				err := d.m.ensure(d.ctx, d.cached, "v")
				if err == nil || !tc.want(err) {
					t.Errorf("error %v", err)
				}
				if diff := cmp.Diff(tc.counted, d.refused); diff != "" {
					t.Errorf("counted (-want +got):\n%s", diff)
				}
				if d.m.has("u") {
					t.Error("has says yes")
				}
				d.m.end(d.ctx, "u")
				d.pass(0)
				d.forgotten()
			})
		})
	}
}

// A refusal is not for ever: the next call asks again.
func TestARefusalIsAskedAgain(t *testing.T) {
	atDesk(t, 0, func(t *testing.T, d *desk) {
		d.api.failing(forbidMarkers)
		if err := d.m.ensure(d.ctx, d.cached, "v"); !apierrors.IsForbidden(err) {
			t.Fatal(err)
		}
		d.api.failing(nil)
		if err := d.m.ensure(d.ctx, d.cached, "v"); err != nil {
			t.Fatal(err)
		}
		d.says("v")
	})
}

// A claim that is being deleted may keep, and lose, a marker that it has.
func TestAMarkedClaimIsDeleted(t *testing.T) {
	atDesk(t, markDelay, func(t *testing.T, d *desk) {
		d.m.want(d.ctx, d.cached, "v")
		d.pass(0)
		d.remove(d.cached)
		if err := d.m.ensure(d.ctx, d.cached, "v"); err != nil {
			t.Error(err)
		}
		d.says("v")
		d.m.end(d.ctx, "u")
		d.pass(0)
		if d.live("c") != nil {
			t.Error("the claim is still there")
		}
		d.forgotten()
	})
}

func TestAFoundMarkerIsRemoved(t *testing.T) {
	atDesk(t, -1, func(t *testing.T, d *desk) {
		claim := d.live("c")
		setMarker(claim, "theirs")
		d.put(claim)
		d.m.found(d.live("c"), "theirs")
		if !d.m.has("u") || d.m.removing("u") {
			t.Error("a found marker is there and stays")
		}
		d.m.begin(d.ctx, claim, "ours")
		d.m.want(d.ctx, claim, "ours")
		if err := d.m.ensure(d.ctx, claim, "ours"); err != nil {
			t.Error(err)
		}
		d.says("theirs") // no new ones with a negative delay
		d.m.end(d.ctx, "u")
		d.pass(0)
		d.says("")
		d.forgotten()
	})
}

// A marker that stays would hold a deleted claim for ever: its removal is tried until the process ends.
func TestARemovalIsNotGivenUp(t *testing.T) {
	atDesk(t, markDelay, func(_ *testing.T, d *desk) {
		d.m.want(d.ctx, d.cached, "v")
		d.pass(0)
		d.api.failing(forbidMarkers)
		d.m.end(d.ctx, "u")
		d.pass(time.Hour)
		d.says("v")
		d.api.failing(nil)
		d.pass(time.Minute)
		d.says("")
	})
}

// The end of the process ends every writer.
func TestWritersEndWithTheProcess(t *testing.T) {
	atDesk(t, markDelay, func(t *testing.T, d *desk) {
		d.unavailable(time.Hour)
		d.m.want(d.ctx, d.cached, "v")
		d.pass(time.Second)
		d.end()
		d.m.wait()
		if d.m.has("u") {
			t.Error("has says yes")
		}
		d.says("")
	})
}

// crowd begins n calls, each for a claim of its own, and returns the claims.
func (d *desk) crowd(prefix string, n int) []*corev1.PersistentVolumeClaim {
	d.Helper()
	claims := make([]*corev1.PersistentVolumeClaim, n)
	for i := range claims {
		name := fmt.Sprintf("%s%03d", prefix, i)
		d.put(fixture.Claim(name).UID(name).Obj())
		claims[i] = d.live(name)
		d.m.begin(d.ctx, claims[i], "v")
	}
	return claims
}

// markedOf returns how many of the claims are marked.
func (d *desk) markedOf(claims []*corev1.PersistentVolumeClaim) int {
	return len(slices.DeleteFunc(slices.Clone(claims), func(c *corev1.PersistentVolumeClaim) bool { return !d.marked(c.Name) }))
}

func (d *desk) endAll(claims []*corev1.PersistentVolumeClaim) {
	for _, claim := range claims {
		d.m.end(d.ctx, claim.UID)
	}
}

// When many calls are slow at once, the marks go to those that stay slow; nothing is written for the others.
func TestMarksTakeTurns(t *testing.T) {
	atDesk(t, markDelay, func(t *testing.T, d *desk) {
		claims := d.crowd("c", 100)
		d.pass(markDelay)
		if got := d.markedOf(claims); got != markBurst {
			t.Errorf("%d claims marked at once, want %d", got, markBurst)
		}
		d.pass(time.Second)
		if got := d.markedOf(claims); got < markBurst+markRate-1 || got > markBurst+markRate+1 {
			t.Errorf("%d claims marked after a second, want about %d", got, markBurst+markRate)
		}
		d.endAll(claims)
		// Those who waited have left the line, and the next one has its turn.
		d.m.begin(d.ctx, d.cached, "v")
		d.pass(markDelay + 2*time.Second/markRate)
		d.says("v")
		d.m.end(d.ctx, "u")
		d.pass(time.Minute)
		if got := d.markedOf(claims); got != 0 {
			t.Errorf("%d claims are marked at the end", got)
		}
		if got := d.api.wrote("update"); got > 2*(markBurst+markRate+1+1) {
			t.Errorf("%d writes", got)
		}
		d.forgotten()
	})
}

// Calls that end in time, many more than there are turns, keep no slow one from its mark, and hold up no stop.
func TestCallsThatEndTakeNoTurns(t *testing.T) {
	atDesk(t, markDelay, func(t *testing.T, d *desk) {
		var running [][]*corev1.PersistentVolumeClaim
		for i := range 60 {
			if i == 40 {
				d.m.begin(d.ctx, d.cached, "v")
			}
			running = append(running, d.crowd(fmt.Sprintf("c%d-", i), 10))
			d.pass(markDelay)
			if i > 0 {
				d.endAll(running[i-1])
			}
		}
		d.says("v")
		d.endAll(running[len(running)-1])
		begin := time.Now()
		d.m.wait()
		if took := time.Since(begin); took != 0 {
			t.Errorf("the last writer ended after %s", took)
		}
	})
}

// What is known to need its mark waits for no turn, whether it stands in line or not.
func TestAnUnansweredCallWaitsForNoTurn(t *testing.T) {
	atDesk(t, markDelay, func(t *testing.T, d *desk) {
		claims := d.crowd("c", 100)
		d.pass(markDelay)
		waiting := slices.DeleteFunc(slices.Clone(claims), func(c *corev1.PersistentVolumeClaim) bool { return d.marked(c.Name) })
		last := waiting[len(waiting)-1]
		d.m.want(d.ctx, last, "v")
		if err := d.m.ensure(d.ctx, d.cached, "v"); err != nil {
			t.Error(err)
		}
		d.pass(0)
		d.says("v")
		if got := d.markedOf([]*corev1.PersistentVolumeClaim{last}); got != 1 {
			t.Error("the call in line is not marked")
		}
		d.pass(time.Minute)
		if got := d.api.wrote("update"); got != len(claims)+1 {
			t.Errorf("%d writes, want one for each of %d claims", got, len(claims)+1)
		}
	})
}

// A call may end while its timer waits for the lock: then there is nothing to mark any more.
func TestATimerThatIsLateMarksNothing(t *testing.T) {
	atDesk(t, markDelay, func(t *testing.T, d *desk) {
		d.m.begin(d.ctx, d.cached, "v")
		d.m.mu.Lock()
		time.Sleep(markDelay)
		k := d.m.marks["u"]
		if k.timer.Stop() {
			t.Error("the timer does not wait for the lock")
		}
		d.m.disarm(k)
		d.m.settle(k)
		d.m.mu.Unlock()
		d.pass(time.Minute)
		d.updates(0)
		d.forgotten()
	})
}

// losing makes the API server apply the next updates and answer with err, or with nothing if that is nil.
func (d *desk) losing(n int, err error) {
	if err == nil {
		err = errors.New("connection reset by peer")
	}
	d.client.PrependReactor("update", "persistentvolumeclaims", func(action clienttesting.Action) (bool, runtime.Object, error) {
		if n == 0 {
			return false, nil, nil
		}
		n--
		_, _ = d.api.react(action)
		return true, nil, err
	})
}

// A marker whose write was applied and not answered comes off the claim at the end of the create.
func TestTheAnswerToAWriteIsLost(t *testing.T) {
	t.Parallel()
	for name, lost := range map[string]error{
		"the connection breaks":   nil,
		"the server is too slow":  apierrors.NewTimeoutError("the request may have been applied", 0),
		"the server has an error": apierrors.NewInternalError(errors.New("etcdserver: request timed out")),
	} {
		t.Run(name, func(t *testing.T) {
			atDesk(t, markDelay, func(t *testing.T, d *desk) {
				d.losing(1, lost)
				d.m.want(d.ctx, d.cached, "v")
				d.pass(0)
				d.says("v")
				if d.m.has("u") {
					t.Error("a write without an answer counts as a marker")
				}
				d.m.end(d.ctx, "u")
				if !d.m.removing("u") {
					t.Error("removing says no")
				}
				d.pass(time.Minute)
				d.says("")
				d.forgotten()
			})
		})
	}
}

// The same write is not sent twice when the claim shows that the first was applied.
func TestALostWriteIsLookedFor(t *testing.T) {
	atDesk(t, markDelay, func(t *testing.T, d *desk) {
		d.losing(1, nil)
		d.m.want(d.ctx, d.cached, "v")
		d.pass(time.Second)
		if !d.m.has("u") {
			t.Error("has says no")
		}
		d.updates(1)
	})
}

// What a removal without an answer has taken off is put back when it is wanted again.
func TestAWantFollowsALostRemoval(t *testing.T) {
	atDesk(t, markDelay, func(t *testing.T, d *desk) {
		d.m.want(d.ctx, d.cached, "v")
		d.pass(0)
		d.losing(1, nil)
		d.m.end(d.ctx, "u")
		d.pass(0)
		d.says("")
		if d.m.has("u") {
			t.Error("has says yes when the marker may be gone")
		}
		d.m.want(d.ctx, d.cached, "v")
		d.pass(time.Minute)
		d.says("v")
		if !d.m.has("u") {
			t.Error("has says no")
		}
	})
}

// A refusal that comes when the create has ended is nobody's any more.
func TestARefusalAfterTheEnd(t *testing.T) {
	atDesk(t, markDelay, func(_ *testing.T, d *desk) {
		d.client.PrependReactor("update", "persistentvolumeclaims", func(clienttesting.Action) (bool, runtime.Object, error) {
			d.m.end(d.ctx, "u")
			return true, nil, forbidMarkers("update", "persistentvolumeclaims", "c")
		})
		d.m.want(d.ctx, d.cached, "v")
		d.pass(time.Minute)
		d.forgotten()
	})
}

// The end of a create is not held up by the pause after a failed write, nor is a stop.
func TestTheEndEndsThePause(t *testing.T) {
	atDesk(t, markDelay, func(t *testing.T, d *desk) {
		d.unavailable(time.Hour)
		d.m.want(d.ctx, d.cached, "v")
		d.pass(10 * time.Minute)
		d.m.end(d.ctx, "u")
		begin := time.Now()
		d.m.wait()
		if took := time.Since(begin); took != 0 {
			t.Errorf("the writer ended after %s", took)
		}
		d.forgotten()
	})
}

// A volume that was made needs its mark only when the PersistentVolume takes long.
func TestAnAnsweredCallIsMarkedLater(t *testing.T) {
	atDesk(t, markDelay, func(_ *testing.T, d *desk) {
		d.m.begin(d.ctx, d.cached, "v")
		d.pass(markDelay / 2)
		d.m.answered("u")
		d.pass(saveGrace - time.Millisecond)
		d.says("")
		d.pass(time.Millisecond)
		d.says("v")
	})
}

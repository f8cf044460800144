package provision

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

const (
	begun     = `Normal Provisioning External provisioner is provisioning volume for claim "default/c"`
	stillC    = `Normal Provisioning Still provisioning volume for claim "default/c", 1m0s so far: `
	forDriver = "waiting for the driver"
	succeeded = "Normal ProvisioningSucceeded Successfully provisioned volume pvc-uid-of-c"
	refusal   = "Warning ProvisioningFailed "
)

func toldAs(code codes.Code) string { return fmt.Sprintf("rpc error: code = %s desc = as told", code) }

func quietly(cfg *Config) { cfg.QuietEvents = true }

// remembered returns of how many objects it is known what was told, and how many timers run.
func (w *world) remembered() (objects, timers int) {
	w.c.quiet.mu.Lock()
	defer w.c.quiet.mu.Unlock()
	for _, t := range w.c.quiet.byUID {
		if t.timer != nil {
			timers++
		}
	}
	return len(w.c.quiet.byUID), timers
}

// What a user is told of one claim, whatever happens to it; afterwards nothing is remembered of it.
func TestQuietEventsOfAClaim(t *testing.T) {
	t.Parallel()
	exhausted := answer{code: codes.ResourceExhausted}
	slow := answer{after: 3 * time.Minute}
	for name, tc := range map[string]struct {
		script []answer
		play   func(w *world) // nil: the claim "c" comes, and an hour passes
		want   []string
	}{
		"made at once":                     {nil, nil, []string{begun, succeeded}},
		"made after equal failures":        {[]answer{final, final, final}, nil, []string{begun, refusal + toldAs(codes.Internal), succeeded}},
		"made after failures that differ":  {[]answer{final, final, exhausted, exhausted, final}, nil, []string{begun, refusal + toldAs(codes.Internal), refusal + toldAs(codes.ResourceExhausted), refusal + toldAs(codes.Internal), succeeded}},
		"one call that is long":            {[]answer{slow}, nil, []string{begun, stillC + forDriver, succeeded}},
		"tries that are many":              {[]answer{final, final, final, final, final, final, final, final}, nil, []string{begun, refusal + toldAs(codes.Internal), stillC + toldAs(codes.Internal), succeeded}},
		"a long call after a failure":      {[]answer{final, slow}, nil, []string{begun, refusal + toldAs(codes.Internal), stillC + forDriver + " again, after " + toldAs(codes.Internal), succeeded}},
		"a call that ends within a minute": {[]answer{{after: 59 * time.Second}}, nil, []string{begun, succeeded}},
		"no answers, and the claim is gone, while a Lease says its operation": {[]answer{madeInBad, slow}, func(w *world) {
			claim := w.claim("c")
			w.pass(100 * time.Millisecond)
			w.remove(claim)
		}, []string{begun, refusal + toldAs(codes.DeadlineExceeded)}},
		"no answers, and the claim is gone": {[]answer{madeInBad, slow, {code: codes.Aborted}}, func(w *world) {
			w.api.failing(forbidLeases)
			claim := w.claim("c")
			w.pass(100 * time.Millisecond)
			w.remove(claim)
		}, []string{begun, refusal + toldAs(codes.DeadlineExceeded)}},
		"no answers, and the create ends when the claim is gone": {[]answer{noAnswer, final, final, final, final}, func(w *world) {
			w.api.failing(forbidLeases)
			claim := w.claim("c")
			w.pass(100 * time.Millisecond)
			w.remove(claim)
		}, []string{begun, refusal + toldAs(codes.DeadlineExceeded), refusal + toldAs(codes.Internal)}},
		"an invalid PersistentVolume, and the claim is gone": {nil, func(w *world) {
			w.api.failing(func(verb, resource, name string) error {
				if verb == "create" && resource == "persistentvolumes" {
					return apierrors.NewInvalid(schema.GroupKind{Kind: "PersistentVolume"}, name, nil)
				}
				return forbidLeases(verb, resource, name)
			})
			claim := w.claim("c")
			w.pass(100 * time.Millisecond)
			w.remove(claim)
		}, []string{begun, refusal + `The volume is made, and PersistentVolume pvc-uid-of-c cannot be saved yet: PersistentVolume "pvc-uid-of-c" is invalid`}},
		"a request that cannot be fulfilled, and the claim is deleted": {[]answer{{code: codes.InvalidArgument}}, func(w *world) {
			claim := w.claim("c")
			w.pass(30 * time.Second)
			w.remove(claim)
		}, []string{begun, refusal + "The request cannot be fulfilled as it is (infeasible), retries will be delayed until claim, class or what they name change: " + toldAs(codes.InvalidArgument)}},
		"a claim that is bound to another volume": {[]answer{final, final, final, final, final, final}, func(w *world) {
			w.claim("c")
			w.pass(30 * time.Second)
			w.change("c", func(claim *corev1.PersistentVolumeClaim) {
				claim.Spec.VolumeName, claim.Status.Phase = "another", corev1.ClaimBound
			})
		}, []string{begun, refusal + toldAs(codes.Internal)}},
		"a PersistentVolume that is not taken": {nil, func(w *world) {
			w.api.failing(refuseNewPVs)
			w.claim("c")
			w.pass(2 * time.Minute)
			w.api.failing(nil)
		}, []string{begun,
			refusal + "The volume is made, and PersistentVolume pvc-uid-of-c cannot be saved yet: no connection",
			stillC + "The volume is made, and PersistentVolume pvc-uid-of-c cannot be saved yet: no connection", succeeded}},
		"another process goes on": {[]answer{madeInBad, final}, func(w *world) {
			w.claim("c")
			w.pass(100 * time.Millisecond)
			w.die()
			w.start()
		}, []string{begun, refusal + toldAs(codes.DeadlineExceeded), begun, refusal + toldAs(codes.Internal), succeeded}},
		"a populator's claim": {nil, func(w *world) {
			w.put(fixture.Claim("c").UID("uid-of-c").Class("fast").For(driverName).From("example.com", "Recipe", "r").Obj())
			w.pass(time.Hour)
			w.remove(w.live("c"))
		}, []string{`Normal Provisioning Assuming an external populator will provision the volume: this provisioner does not serve data source Recipe "r"`}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, quietly, func(t *testing.T, w *world) {
				w.driver.answers(tc.script...)
				if tc.play == nil {
					w.claim("c")
				} else {
					tc.play(w)
				}
				w.pass(time.Hour)
				if diff := cmp.Diff(tc.want, w.events.having()); diff != "" {
					t.Errorf("events (-want +got):\n%s", diff)
				}
				if objects, _ := w.remembered(); objects != 0 {
					t.Errorf("%d objects are remembered", objects)
				}
			})
		})
	}
}

// While the scheduler looks for another node nothing is told; the minute begins anew with the next attempt.
func TestQuietEventsOfAClaimThatWaitsForANode(t *testing.T) {
	inWorld(t, func(cfg *Config) { quietly(cfg); cfg.Settings.Capabilities.Topology = true }, func(t *testing.T, w *world) {
		w.put(fixture.Class("late").UID("class-2").Provisioner(driverName).WaitForFirstConsumer().Obj())
		w.driver.answers(answer{code: codes.ResourceExhausted}, answer{after: 3 * time.Minute})
		w.put(fixture.Claim("c").UID("uid-of-c").Class("late").For(driverName).SelectedNode("full").Obj())
		w.pass(5 * time.Minute)
		want := []string{begun, refusal + toldAs(codes.ResourceExhausted)}
		if diff := cmp.Diff(want, w.events.having()); diff != "" {
			t.Errorf("events while it waits (-want +got):\n%s", diff)
		}
		if objects, timers := w.remembered(); objects != 1 || timers != 0 {
			t.Errorf("%d objects and %d timers, want one and none", objects, timers)
		}
		w.change("c", func(claim *corev1.PersistentVolumeClaim) { claim.Annotations[wellknown.AnnSelectedNode] = "other" })
		w.pass(5 * time.Minute)
		want = append(want, stillC+forDriver+" again, after "+toldAs(codes.ResourceExhausted), succeeded)
		if diff := cmp.Diff(want, w.events.having()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

// Such a claim has no place in the queue, and is forgotten all the same.
func TestAClaimThatWaitsForANodeIsForgotten(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(w *world){
		"when it is gone": func(w *world) { w.remove(w.live("c")) },
		"when it is bound": func(w *world) {
			w.change("c", func(claim *corev1.PersistentVolumeClaim) {
				claim.Spec.VolumeName, claim.Status.Phase = "another", corev1.ClaimBound
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(cfg *Config) { quietly(cfg); cfg.Settings.Capabilities.Topology = true }, func(t *testing.T, w *world) {
				w.put(fixture.Class("late").UID("class-2").Provisioner(driverName).WaitForFirstConsumer().Obj())
				w.driver.answers(answer{code: codes.ResourceExhausted})
				w.put(fixture.Claim("c").UID("uid-of-c").Class("late").For(driverName).SelectedNode("full").Obj())
				w.pass(5 * time.Minute)
				end(w)
				w.pass(0)
				if objects, _ := w.remembered(); objects != 0 {
					t.Errorf("%d objects are remembered", objects)
				}
			})
		})
	}
}

// The workers are free while a claim's minute passes, and a stop leaves no timer behind.
func TestQuietEventsNeedNoWorkerAndEnd(t *testing.T) {
	inWorld(t, func(cfg *Config) { quietly(cfg); cfg.CreateWorkers = 1 }, func(t *testing.T, w *world) {
		w.driver.answers(answer{after: time.Hour})
		w.claim("c")
		w.pass(61 * time.Second)
		if got := w.events.having("Still provisioning"); len(got) != 1 {
			t.Errorf("events of the only worker's claim: %q", got)
		}
		w.put(fixture.Claim("d").UID("uid-of-d").Class("none").For(driverName).Obj())
		w.pass(0)
		w.term(0)
		if _, timers := w.remembered(); timers != 0 {
			t.Errorf("%d timers after the stop", timers)
		}
	})
	t.Run("a timer that is running", func(t *testing.T) {
		inWorld(t, quietly, func(t *testing.T, w *world) {
			w.driver.answers(answer{after: time.Hour})
			w.claim("c")
			w.pass(30 * time.Second)
			w.term(time.Second)
			w.pass(time.Hour)
			if got := w.events.having("Still provisioning"); len(got) != 0 {
				t.Errorf("events after the stop: %q", got)
			}
		})
	})
}

// Without the flag each attempt is told, as ever, and nothing besides.
func TestEventsAreNotQuietByThemselves(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(final, final, answer{after: 3 * time.Minute})
		w.claim("c")
		w.pass(time.Hour)
		failed := refusal + toldAs(codes.Internal)
		if diff := cmp.Diff([]string{begun, failed, begun, failed, begun, succeeded}, w.events.having()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

// Failed deletions are told when they differ; a secret that is not read is told once beside them.
func TestQuietEventsOfAPersistentVolume(t *testing.T) {
	inWorld(t, func(cfg *Config) {
		quietly(cfg)
		cfg.DeletionSecretNamespaces = []string{"allowed"}
	}, func(t *testing.T, w *world) {
		full := answer{code: codes.FailedPrecondition}
		w.driver.deletes = []answer{final, final, final, full, full, final}
		w.put(released().DeletionSecret("elsewhere", "s").Obj())
		w.pass(40 * time.Second)
		if objects, _ := w.remembered(); objects != 1 {
			t.Errorf("%d objects are remembered while it fails, want one", objects)
		}
		w.api.failing(func(verb, resource, _ string) error {
			if verb == "delete" && resource == "persistentvolumes" {
				return errors.New("no")
			}
			return nil
		})
		w.pass(10 * time.Minute)
		w.api.failing(nil)
		w.pass(10 * time.Minute)
		const failed = "Warning VolumeFailedDelete "
		want := []string{
			failed + "secret elsewhere/s is not read: its namespace is not among --deletion-secret-namespaces; deleting without a secret",
			failed + toldAs(codes.Internal), failed + toldAs(codes.FailedPrecondition), failed + toldAs(codes.Internal),
			failed + "The volume is deleted, and the PersistentVolume cannot be removed yet: delete PersistentVolume: no",
		}
		if diff := cmp.Diff(want, w.events.having()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
		if objects, _ := w.remembered(); objects != 0 {
			t.Errorf("%d objects are remembered", objects)
		}
	})
}

// A PersistentVolume that goes by other hands is forgotten, between two calls and during one.
func TestAPersistentVolumeThatIsGoneIsForgotten(t *testing.T) {
	t.Parallel()
	for name, when := range map[string]time.Duration{"between two calls": 500 * time.Millisecond, "during a call": 1500 * time.Millisecond} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, quietly, func(t *testing.T, w *world) {
				w.driver.deletes = []answer{final, {after: time.Second, code: codes.Internal}}
				w.put(released().Obj())
				w.pass(when)
				live := w.pv("pv")
				live.Finalizers = nil
				w.put(live)
				w.remove(live)
				w.pass(time.Minute)
				if objects, _ := w.remembered(); objects != 0 {
					t.Errorf("%d objects are remembered", objects)
				}
				if n := len(w.c.deletions.byUID); n != 0 {
					t.Errorf("%d deletions are remembered", n)
				}
			})
		})
	}
}

// Of a long text no more is remembered than an event shows.
func TestQuietEventsRememberShortTexts(t *testing.T) {
	inWorld(t, quietly, func(t *testing.T, w *world) {
		claim := w.claim("c")
		w.c.tell(claim, eventFailed(errors.New(strings.Repeat("x", 1<<20))))
		w.c.quiet.mu.Lock()
		defer w.c.quiet.mu.Unlock()
		if got := len(w.c.quiet.byUID[claim.UID].failure); got != maxEventBytes {
			t.Errorf("%d bytes are remembered, want %d", got, maxEventBytes)
		}
	})
}

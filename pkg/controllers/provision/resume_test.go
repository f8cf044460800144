package provision

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// The classic leak: no answer, the process dies, the claim is deleted, another process starts. The claim stays until
// the volume has a PersistentVolume, which is then deleted.
func TestACreateOutlivesItsProcess(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(madeInBad)
		claim := w.claim("c")
		w.pass(100 * time.Millisecond)
		w.die()
		w.remove(claim)
		if !w.marked("c") {
			t.Fatal("the claim is gone, nobody remembers the volume")
		}
		w.start()
		w.pass(time.Second)
		calls := w.driver.createCalls()
		if len(calls) != 2 {
			t.Fatalf("%d calls, want 2", len(calls))
		}
		if diff := cmp.Diff(calls[0].req, calls[1].req, protocmp.Transform()); diff != "" {
			t.Errorf("the resumed request differs (-first +resumed):\n%s", diff)
		}
		if w.live("c") != nil {
			t.Error("the claim is still held")
		}
		w.phase("pvc-uid-of-c", corev1.VolumeReleased)
		w.pass(time.Second)
		if w.driver.volumeCount() != 0 || w.pv("pvc-uid-of-c") != nil {
			t.Error("volume or PersistentVolume is left")
		}
	})
}

// A process that finds a marker counts the create as unanswered: no final error to its first call ends it.
func TestAFoundMarkerCountsAsUnanswered(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(append([]answer{madeInBad}, slices.Repeat([]answer{final}, 7)...)...)
		w.claim("c")
		w.pass(100 * time.Millisecond)
		w.die()
		w.start()
		w.pass(time.Minute)
		if !w.marked("c") {
			t.Error("ended before the third final error that counts")
		}
		w.pass(5 * time.Second)
		w.calls(0, 0, 1, 3, 7, 15, 31, 63)
		if w.marked("c") {
			t.Error("not ended by the third final error that counts")
		}
	})
}

// Our PersistentVolume is there, and the process died before it could take the marker off.
func TestAMarkerGoesWhenThePVIsThere(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(answer{after: time.Second})
		w.claim("c")
		w.pass(500 * time.Millisecond)
		w.api.failing(func(verb, resource, _ string) error {
			if verb == "update" && resource == "persistentvolumeclaims" {
				return apierrors.NewInternalError(context.DeadlineExceeded)
			}
			return nil
		})
		w.pass(time.Second)
		w.die()
		w.api.failing(nil)
		if !w.marked("c") || w.pv("pvc-uid-of-c") == nil {
			t.Fatal("no marker beside a PersistentVolume to begin with")
		}
		w.start()
		w.pass(time.Second)
		if w.marked("c") {
			t.Error("the marker is left")
		}
		w.calls(0)
	})
}

// A PersistentVolume of the name that belongs to another claim or driver does not end the create.
func TestAnotherPVOfTheNameEndsNothing(t *testing.T) {
	t.Parallel()
	for name, holder := range map[string]*corev1.PersistentVolume{
		"another driver's": fixture.PV("pvc-uid-of-c").Driver("other").BoundTo(fixture.Claim("c").UID("uid-of-c").Obj()).Obj(),
		"another claim's":  fixture.PV("pvc-uid-of-c").ProvisionedBy(driverName).BoundTo(fixture.Claim("c").UID("another").Obj()).Obj(),
		"nobody's":         fixture.PV("pvc-uid-of-c").ProvisionedBy(driverName).Obj(),
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.driver.answers(madeInBad)
				w.claim("c")
				w.pass(100 * time.Millisecond)
				w.die()
				w.put(holder)
				w.start()
				w.pass(time.Minute)
				w.calls(0, 0)
				if !w.marked("c") {
					t.Error("the marker went although the volume has no PersistentVolume")
				}
				if len(w.events.having("Warning ProvisioningFailed", "cannot be saved", "that is not for this volume")) == 0 {
					t.Errorf("events: %v", w.events.having())
				}
			})
		})
	}
}

// The way out of a create that cannot be finished is told every five minutes, with driver and volume.
func TestAStuckCreate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		meanwhile func(w *world)
		why       string
		wayOut    func(w *world)
		wantCalls []int
	}{
		"the class is gone and comes back": {
			func(w *world) { w.remove(w.api.Class("fast")) }, `its class "fast" is gone`,
			func(w *world) { w.put(fixture.Class("fast").UID("class-1").Provisioner(driverName).Obj()) },
			[]int{0, 660},
		},
		"the class was made anew and the marker is taken off by hand": {
			func(w *world) {
				w.remove(w.api.Class("fast"))
				w.put(fixture.Class("fast").UID("class-2").Provisioner(driverName).Obj())
			},
			`its class "fast" was made anew since`,
			func(w *world) {
				w.change("c", func(claim *corev1.PersistentVolumeClaim) { claim.Finalizers, claim.Annotations = nil, nil })
			},
			[]int{0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.driver.answers(madeInBad)
				claim := w.claim("c")
				w.pass(100 * time.Millisecond)
				w.die()
				tc.meanwhile(w)
				w.remove(claim)
				w.start()
				w.pass(11*time.Minute - 100*time.Millisecond)
				if got := w.events.having("Warning ProvisioningFailed", driverName, `"pvc-uid-of-c"`, tc.why, `"Markers"`); len(got) != 3 {
					t.Errorf("%d events in eleven minutes, want 3: %v", len(got), w.events.having())
				}
				if !w.marked("c") {
					t.Fatal("not marked any more")
				}
				tc.wayOut(w)
				w.pass(time.Minute)
				w.calls(tc.wantCalls...)
				if w.live("c") != nil {
					t.Error("the claim is still held")
				}
				w.pass(time.Hour)
				w.calls(tc.wantCalls...)
			})
		})
	}
}

// A claim that is being deleted is held by its marker, and no attempt can be planned any more: whatever is missing, the
// way out is told. What could not be read may be there after all.
func TestATerminatingClaimThatCannotBePlanned(t *testing.T) {
	t.Parallel()
	claim := func() *fixture.ClaimBuilder {
		return fixture.Claim("c").UID("uid-of-c").Class("fast").For(driverName).Finalizer(wellknown.FinalizerProvisioningInProgress, "kubernetes.io/pvc-protection").
			Annotation(wellknown.AnnProvisioningInProgress, marker{UID: "uid-of-c", Driver: driverName, Class: "class-1"}.encode())
	}
	attributes := func() *storagev1.VolumeAttributesClass {
		return &storagev1.VolumeAttributesClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, DriverName: driverName}
	}
	for name, tc := range map[string]struct {
		claim  *corev1.PersistentVolumeClaim
		before func(w *world)
		why    string
		stuck  bool
		after  func(w *world)
	}{
		"its source is gone": {
			claim: claim().FromClaim("src").Terminating().Obj(), why: "src", stuck: true,
			after: func(w *world) { w.origin("src") },
		},
		"no ReferenceGrant grants its source": {
			claim: claim().FromAbroad("", "PersistentVolumeClaim", "abroad", "src").Terminating().Obj(), why: "ReferenceGrant", stuck: true,
		},
		"its VolumeAttributesClass is gone": {
			claim: claim().AttributesClass("gold").Terminating().Obj(), why: `VolumeAttributesClass "gold"`, stuck: true,
			after: func(w *world) { w.put(attributes()) },
		},
		"its VolumeAttributesClass cannot be read": {
			claim: claim().AttributesClass("gold").Terminating().Obj(), why: "etcd",
			before: func(w *world) {
				w.put(attributes())
				w.api.failing(func(verb, resource, _ string) error {
					if resource == "volumeattributesclasses" {
						return apierrors.NewInternalError(errors.New("etcd"))
					}
					return nil
				})
			},
			after: func(w *world) { w.api.failing(nil) },
		},
		"the name of its secret cannot be told": {
			claim: claim().Terminating().Obj(), why: "team", stuck: true,
			before: func(w *world) {
				w.put(fixture.Class("fast").UID("class-1").Provisioner(driverName).
					Parameter("csi.storage.k8s.io/node-publish-secret-name", "${pvc.annotations['team']}").Parameter("csi.storage.k8s.io/node-publish-secret-namespace", "default").Obj())
			},
			after: func(w *world) {
				w.change("c", func(claim *corev1.PersistentVolumeClaim) { claim.Annotations["team"] = "blue" })
			},
		},
		"the claim is not being deleted": {
			claim: claim().FromClaim("src").Obj(), why: "src",
			after: func(w *world) { w.origin("src") },
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(cfg *Config) {
				cfg.WantsVAC, cfg.Settings.CrossNamespace = func() bool { return true }, true
			}, func(t *testing.T, w *world) {
				if tc.before != nil {
					tc.before(w)
				}
				w.put(tc.claim)
				w.pass(time.Second / 2)
				told := w.events.having("Warning ProvisioningFailed", tc.why)
				stuck := w.events.having("Warning ProvisioningFailed", driverName, `"pvc-uid-of-c"`, tc.why, `"Markers"`)
				if len(told) != 1 || tc.stuck != (len(stuck) == 1) {
					t.Fatalf("events %v", w.events.having())
				}
				w.pass(time.Hour)
				stuck = w.events.having("Warning ProvisioningFailed", `"Markers"`)
				if tc.stuck != (len(stuck) >= 11 && len(stuck) <= 13) || !tc.stuck && len(stuck) > 0 {
					t.Errorf("%d events in an hour that name the way out", len(stuck))
				}
				if !w.marked("c") {
					t.Fatal("not marked any more")
				}
				if tc.after == nil {
					return
				}
				tc.after(w)
				w.pass(6 * time.Minute)
				if w.pv("pvc-uid-of-c") == nil || w.marked("c") {
					t.Errorf("PersistentVolume %v, marked %v", w.pv("pvc-uid-of-c"), w.marked("c"))
				}
			})
		})
	}
}

// After a restart the secret is gone together with the claim's namespace: the call is made without.
func TestAMissingSecretHoldsNoTerminatingClaim(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.put(fixture.Class("fast").UID("class-1").Provisioner(driverName).
			Parameter("csi.storage.k8s.io/provisioner-secret-name", "s").Parameter("csi.storage.k8s.io/provisioner-secret-namespace", "default").Obj())
		secret := fixture.Secret("default", "s", nil)
		secret.Data = map[string][]byte{"key": []byte("value")}
		w.put(secret)
		w.driver.answers(madeInBad)
		claim := w.claim("c")
		w.pass(100 * time.Millisecond)
		w.die()
		w.remove(secret)
		w.start()
		w.pass(5 * time.Second)
		w.calls(0) // the claim lives: its secret is waited for
		w.remove(claim)
		w.pass(5 * time.Minute)
		calls := w.driver.createCalls()
		if len(calls) != 2 || len(calls[0].keys) != 1 || len(calls[1].keys) != 0 {
			t.Errorf("calls %v, want a second one without secrets", calls)
		}
		if w.live("c") != nil {
			t.Error("the claim is still held")
		}
	})
}

// What a tenant wrote into a marker by hand holds nothing and starts nothing.
func TestForgedMarkersAreRemoved(t *testing.T) {
	t.Parallel()
	for name, annotation := range map[string]string{
		"another claim's":       `{"v":1,"uid":"another","driver":"driver.example.com","class":"class-1"}`,
		"no JSON":               `yes`,
		"nothing":               ``,
		"more than we write":    `{"v":1,"uid":"uid-of-c","driver":"driver.example.com","node":"` + strings.Repeat("n", maxMarkerBytes) + `"}`,
		"the finalizer alone":   "-",
		"the wrong kind of uid": `{"v":1,"uid":7,"driver":"driver.example.com"}`,
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.die()
				b := fixture.Claim("c").UID("uid-of-c").Class("fast").For(driverName).Bound("pv").Finalizer(wellknown.FinalizerProvisioningInProgress)
				if annotation != "-" {
					b.Annotation(wellknown.AnnProvisioningInProgress, annotation)
				}
				w.put(b.Obj())
				w.start()
				w.pass(time.Second)
				claim := w.live("c")
				if _, annotated := claim.Annotations[wellknown.AnnProvisioningInProgress]; annotated || hasMarkerFinalizer(claim) {
					t.Errorf("the marker is left: %v", claim.ObjectMeta)
				}
				w.calls([]int(nil)...)
			})
		})
	}
}

// The marker of another driver is that driver's.
func TestAnotherDriversMarkerStays(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.put(fixture.Claim("c").UID("uid-of-c").Class("fast").For("other").Finalizer(wellknown.FinalizerProvisioningInProgress).
			Annotation(wellknown.AnnProvisioningInProgress, marker{UID: "uid-of-c", Driver: "other"}.encode()).Obj())
		w.pass(time.Minute)
		if !w.marked("c") {
			t.Error("the marker is gone")
		}
		w.calls([]int(nil)...)
	})
}

// After the end of a create its marker goes. Until the cache shows that, it is not taken for one that an earlier
// process left.
func TestOurOwnOldMarkerIsNotResumed(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(answer{after: time.Second, code: final.code}, answer{code: final.code})
		w.claim("c")
		w.pass(500 * time.Millisecond) // marked, and the cache shows it
		w.api.lag(true)
		w.pass(10 * time.Second)
		w.api.lag(false)
		w.pass(10 * time.Second)
		w.calls(0, 2, 4)
	})
}

// The same when the API server is slow to take it off.
func TestAMarkerThatIsBeingRemovedIsNotResumed(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(answer{after: time.Second, code: final.code}, answer{code: final.code})
		w.claim("c")
		w.pass(500 * time.Millisecond)
		w.api.failing(func(verb, resource, _ string) error {
			if verb == "update" && resource == "persistentvolumeclaims" {
				return apierrors.NewInternalError(context.DeadlineExceeded)
			}
			return nil
		})
		w.pass(10 * time.Second)
		w.api.failing(nil)
		w.pass(time.Minute)
		w.calls(0, 2, 4)
		if w.marked("c") {
			t.Error("the marker is left")
		}
	})
}

// A marker that the cache still shows, while the API server does not answer, is not taken for one that is there: what
// is made after that is marked.
func TestAMarkerThatCannotBeReadIsNotResumed(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(answer{after: time.Second, code: final.code}, madeInBad, noAnswer, noAnswer)
		w.claim("c")
		w.pass(500 * time.Millisecond) // marked, and the cache shows it
		w.api.lag(true)
		w.pass(time.Second) // ended, and the marker was taken off
		w.api.failing(func(verb, resource, _ string) error {
			if verb == "get" && resource == "persistentvolumeclaims" {
				return apierrors.NewInternalError(context.DeadlineExceeded)
			}
			return nil
		})
		w.pass(time.Second)
		w.calls(0)
		w.api.failing(nil)
		w.pass(2 * time.Second)
		w.calls(0, 4)
		if !w.marked("c") {
			t.Error("nobody but this process knows of the volume")
		}
		w.api.lag(false)
		w.pass(time.Minute)
		if w.pv("pvc-uid-of-c") == nil || w.marked("c") {
			t.Errorf("PersistentVolume %v, marked %v", w.pv("pvc-uid-of-c"), w.marked("c"))
		}
	})
}

// Marked claims come before all others after a start, as there may be volumes for them.
func TestMarkedClaimsAreTakenUpFirst(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.CreateWorkers = 1 }, func(t *testing.T, w *world) {
		w.die()
		for _, name := range []string{"a", "b", "c", "d", "e"} {
			w.claim(name)
		}
		for _, name := range []string{"c", "e"} {
			w.change(name, func(claim *corev1.PersistentVolumeClaim) {
				setMarker(claim, marker{UID: claim.UID, Driver: driverName, Class: "class-1"}.encode())
			})
		}
		w.start()
		w.pass(time.Minute)
		var names []string
		for _, call := range w.driver.createCalls() {
			names = append(names, strings.TrimPrefix(call.name, "pvc-uid-of-"))
		}
		if diff := cmp.Diff([]string{"c", "e", "a", "b", "d"}, names); diff != "" {
			t.Errorf("calls (-want +got):\n%s", diff)
		}
	})
}

// forge puts a claim with a marker that is about another one.
func (w *world) forge() {
	w.Helper()
	w.put(fixture.Claim("c").UID("uid-of-c").Class("fast").For(driverName).Finalizer(wellknown.FinalizerProvisioningInProgress).
		Annotation(wellknown.AnnProvisioningInProgress, marker{UID: "another", Driver: driverName}.encode()).Obj())
}

// A forged marker that cannot be removed at once holds a deleted claim no longer than the API server is away.
func TestTheRemovalOfAForgedMarkerIsRepeated(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.die()
		w.forge()
		w.remove(w.live("c"))
		begin := time.Now()
		w.api.failing(func(verb, resource, _ string) error {
			if verb == "update" && resource == "persistentvolumeclaims" && time.Since(begin) < 10*time.Second {
				return apierrors.NewInternalError(context.DeadlineExceeded)
			}
			return nil
		})
		w.start()
		w.pass(20 * time.Second)
		if w.live("c") != nil {
			t.Error("the claim is still held")
		}
		w.calls([]int(nil)...)
	})
}

// Without the right to remove it, a forged marker keeps nobody from a volume.
func TestAForgedMarkerThatStays(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.api.failing(forbidMarkers)
		w.forge()
		w.pass(time.Second)
		w.calls(0)
		if w.pv("pvc-uid-of-c") == nil {
			t.Error("no PersistentVolume")
		}
		w.api.failing(nil)
	})
}

// A marker that has become true since the cache saw it is not removed.
func TestAMarkerThatIsNotForgedAnyMoreStays(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.die()
		w.forge()
		w.api.lag(true)
		w.change("c", func(claim *corev1.PersistentVolumeClaim) {
			setMarker(claim, marker{UID: "uid-of-c", Driver: driverName, Class: "class-1"}.encode())
		})
		w.start()
		w.pass(time.Second)
		if !w.marked("c") {
			t.Error("the marker is gone")
		}
	})
}

// Without the right to update claims: one warning and a count, and provisioning goes on; strict marking refuses.
func TestClaimsThatCannotBeMarked(t *testing.T) {
	forbid := func(verb, resource, name string) error {
		if verb == "update" && resource == "persistentvolumeclaims" {
			return apierrors.NewForbidden(schema.GroupResource{Resource: resource}, name, nil)
		}
		return nil
	}
	t.Parallel()
	t.Run("default", func(t *testing.T) {
		inWorld(t, nil, func(t *testing.T, w *world) {
			w.api.failing(forbid)
			w.driver.answers(madeInBad, madeInBad)
			w.claim("c")
			w.pass(time.Minute)
			if w.pv("pvc-uid-of-c") == nil {
				t.Error("no PersistentVolume")
			}
			if got := counted(t, w.c.metrics.markersRefused.WithLabelValues("Forbidden")); got < 1 {
				t.Errorf("refusals counted: %v", got)
			}
		})
	})
	t.Run("strict", func(t *testing.T) {
		inWorld(t, func(cfg *Config) { cfg.MarkerDelay = 0 }, func(t *testing.T, w *world) {
			w.api.failing(forbid)
			w.claim("c")
			w.pass(2 * time.Second)
			w.calls([]int(nil)...)
			if len(w.events.having("Warning ProvisioningFailed", "the claim cannot be marked, so the driver is not called", "forbidden")) != 2 {
				t.Errorf("events: %v", w.events.having())
			}
			w.api.failing(nil)
			w.pass(2 * time.Second)
			w.calls(3)
		})
	})
}

// Strict: marked before the first call. Negative: never. Default: after the delay.
func TestWhenAClaimIsMarked(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		delay time.Duration
		want  map[time.Duration]bool // at this time, is it marked?
	}{
		"strict":   {0, map[time.Duration]bool{0: true, time.Second: true, 3 * time.Second: false}},
		"default":  {50 * time.Millisecond, map[time.Duration]bool{40 * time.Millisecond: false, 60 * time.Millisecond: true, 3 * time.Second: false}},
		"negative": {-1, map[time.Duration]bool{0: false, time.Second: false, 3 * time.Second: false}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(cfg *Config) { cfg.MarkerDelay = tc.delay }, func(t *testing.T, w *world) {
				w.driver.answers(answer{after: 2 * time.Second})
				w.claim("c")
				begin := time.Now()
				for _, at := range []time.Duration{0, 40 * time.Millisecond, 60 * time.Millisecond, time.Second, 3 * time.Second} {
					w.pass(at - time.Since(begin))
					if want, asked := tc.want[at]; asked && w.marked("c") != want {
						t.Errorf("after %s marked %v, want %v", at, w.marked("c"), want)
					}
				}
				if w.pv("pvc-uid-of-c") == nil {
					t.Error("no PersistentVolume")
				}
			})
		})
	}
}

// No new markers with a negative delay, but old ones are resumed and removed.
func TestNegativeDelayResumesOldMarkers(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.MarkerDelay = -1 }, func(t *testing.T, w *world) {
		w.put(fixture.Claim("c").UID("uid-of-c").Class("fast").For(driverName).Terminating().Finalizer(wellknown.FinalizerProvisioningInProgress).
			Annotation(wellknown.AnnProvisioningInProgress, marker{UID: "uid-of-c", Driver: driverName, Class: "class-1"}.encode()).Obj())
		w.pass(time.Second)
		w.calls(0)
		if w.pv("pvc-uid-of-c") == nil || w.live("c") != nil {
			t.Errorf("PersistentVolume %v, claim %v", w.pv("pvc-uid-of-c"), w.live("c"))
		}
	})
}

// Writing and removing our marker brings no claim back to the queue.
func TestOurMarkerTriggersNothing(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(answer{after: time.Second, code: final.code})
		w.claim("c")
		w.pass(1900 * time.Millisecond)
		w.calls(0) // the marker came at 0.05s and went at 1s
		if got := w.api.wrote("update persistentvolumeclaims"); got != 2 {
			t.Errorf("%d writes of the claim, want 2", got)
		}
		w.pass(time.Second)
		w.calls(0, 2)
	})
}

package provision

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/csi-sidecars/external-provisioner/pkg/operations"
	"github.com/csi-sidecars/external-provisioner/pkg/source"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// withSecret gives class "fast" a secret, which is there.
func (w *world) withSecret() {
	w.Helper()
	w.put(fixture.Class("fast").UID("class-1").Provisioner(driverName).
		Parameter("csi.storage.k8s.io/provisioner-secret-name", "s").Parameter("csi.storage.k8s.io/provisioner-secret-namespace", "default").Obj())
	secret := fixture.Secret("default", "s", nil)
	secret.Data = map[string][]byte{"key": []byte("value")}
	w.put(secret)
}

// untouched fails if the claim carries anything of ours.
func (w *world) untouched(name string) {
	w.Helper()
	claim := w.live(name)
	if claim == nil {
		return
	}
	if diff := cmp.Diff([]string{"kubernetes.io/pvc-protection"}, claim.Finalizers); diff != "" {
		w.Errorf("finalizers of the claim (-want +got):\n%s", diff)
	}
	if _, ours := claim.Annotations[wellknown.AnnProvisioningInProgress]; ours {
		w.Error("the claim carries an annotation of ours")
	}
}

// The classic leak: no answer, the process dies, the claim is deleted, another process starts. The volume gets its
// PersistentVolume, is released, and deleted.
func TestAnOperationOutlivesItsProcess(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(madeInBad)
		claim := w.claim("c")
		w.pass(100 * time.Millisecond)
		w.untouched("c")
		w.die()
		w.remove(claim)
		if w.live("c") != nil {
			t.Fatal("the claim is held")
		}
		w.start()
		w.pass(time.Second)
		calls := w.driver.createCalls()
		if len(calls) != 2 {
			t.Fatalf("%d calls, want 2", len(calls))
		}
		if diff := cmp.Diff(calls[0].req, calls[1].req, protocmp.Transform()); diff != "" {
			t.Errorf("the request that was sent again differs (-first +again):\n%s", diff)
		}
		w.phase("pvc-uid-of-c", corev1.VolumeReleased)
		w.pass(2 * time.Second)
		if w.driver.volumeCount() != 0 || w.pv("pvc-uid-of-c") != nil || w.recorded("c") {
			t.Errorf("left: volumes %d, PersistentVolume %v, operation %v", w.driver.volumeCount(), w.pv("pvc-uid-of-c"), w.recorded("c"))
		}
	})
}

// The request does not depend on the flags of the process that sends it again.
func TestARequestIsReplayedAsItWas(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(madeInBad)
		w.claim("c")
		w.pass(100 * time.Millisecond)
		w.die()
		w.cfg.Settings.VolumeNamePrefix, w.cfg.Settings.ExtraCreateMetadata, w.cfg.Settings.DefaultFSType = "other", true, "xfs"
		w.remove(w.api.Class("fast"))
		w.start()
		w.pass(time.Second)
		calls := w.driver.createCalls()
		if len(calls) != 2 {
			t.Fatalf("%d calls, want 2", len(calls))
		}
		if diff := cmp.Diff(calls[0].req, calls[1].req, protocmp.Transform()); diff != "" {
			t.Errorf("the request that was sent again differs (-first +again):\n%s", diff)
		}
		if pv := w.pv("pvc-uid-of-c"); pv == nil || pv.Spec.StorageClassName != "fast" {
			t.Errorf("PersistentVolume %v", pv)
		}
	})
}

// An operation of an earlier process counts as one of which a call may be at work: it takes three final errors to end it.
func TestARecoveredOperationIsUncertain(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(append([]answer{madeInBad}, slices.Repeat([]answer{final}, 7)...)...)
		claim := w.claim("c")
		w.pass(100 * time.Millisecond)
		w.die()
		w.remove(claim)
		w.start()
		w.pass(time.Minute)
		if !w.recorded("c") {
			t.Error("ended before the third final error that counts")
		}
		w.pass(5 * time.Second)
		w.calls(0, 0, 1, 3, 7, 15, 31, 63)
		if w.recorded("c") {
			t.Error("not ended by the third final error that counts")
		}
	})
}

// The PersistentVolume is saved, and the process died before the Lease said so: no call is made, also when no cache shows it.
func TestAnOperationEndsWhenThePVIsThere(t *testing.T) {
	t.Parallel()
	for name, lagging := range map[string]bool{"in the cache": false, "not yet in the cache": true} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.driver.answers(answer{after: time.Second})
				w.claim("c")
				w.pass(999 * time.Millisecond)
				if lagging {
					w.api.lag(true)
				}
				w.api.failing(func(verb, resource, _ string) error {
					if verb == "update" && resource == "leases" {
						return apierrors.NewInternalError(errors.New("etcd"))
					}
					return nil
				})
				w.pass(time.Second / 2)
				w.die()
				w.api.failing(nil)
				if !w.recorded("c") || w.pv("pvc-uid-of-c") == nil {
					t.Fatal("no operation beside a PersistentVolume to begin with")
				}
				w.start()
				w.pass(3 * time.Second)
				if w.recorded("c") {
					t.Error("the operation has not ended")
				}
				w.calls(0)
			})
		})
	}
}

// A PersistentVolume of the name that belongs to another claim or driver does not end the operation.
func TestAnotherPVOfTheNameEndsNothing(t *testing.T) {
	t.Parallel()
	for name, existing := range map[string]*corev1.PersistentVolume{
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
				w.put(existing)
				w.start()
				w.pass(time.Minute)
				w.calls(0, 0)
				if !w.recorded("c") {
					t.Error("the operation has ended although the volume has no PersistentVolume")
				}
				if len(w.events.having("Warning ProvisioningFailed", "cannot be saved", "that is not for this volume")) == 0 {
					t.Errorf("events: %v", w.events.having())
				}
			})
		})
	}
}

// The references of secrets must be those that the class gives, or the operation is not replayed. The way out is told every
// five minutes, with driver and volume.
func TestAnOperationWithOtherSecretsIsStuck(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		meanwhile func(w *world)
		why       string
		wayOut    func(w *world)
		wantCalls []int
	}{
		"the class is gone and comes back": {
			func(w *world) { w.remove(w.api.Class("fast")) }, `its class "fast" is gone`,
			func(w *world) { w.withSecret() }, []int{0, 660},
		},
		"the class was created again, and the Lease is deleted": {
			func(w *world) {
				w.remove(w.api.Class("fast"))
				w.put(fixture.Class("fast").UID("class-2").Provisioner(driverName).Obj())
			},
			"was created again since",
			func(w *world) { w.remove(w.leaseOf("c")) }, []int{0},
		},
		"the class gives another secret, and the Lease is annotated": {
			func(w *world) {
				w.put(fixture.Class("fast").UID("class-1").Provisioner(driverName).
					Parameter("csi.storage.k8s.io/provisioner-secret-name", "other").Parameter("csi.storage.k8s.io/provisioner-secret-namespace", "default").Obj())
			},
			"gives other secrets",
			func(w *world) { w.forget("c") }, []int{0},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.withSecret()
				w.driver.answers(madeInBad)
				claim := w.claim("c")
				w.pass(100 * time.Millisecond)
				w.die()
				tc.meanwhile(w)
				w.remove(claim)
				w.start()
				w.pass(11*time.Minute - 100*time.Millisecond)
				if got := w.events.having("Warning ProvisioningFailed", driverName, `"pvc-uid-of-c"`, tc.why, "operations forget"); len(got) != 3 {
					t.Errorf("%d events in eleven minutes, want 3: %v", len(got), w.events.having())
				}
				if !w.recorded("c") {
					t.Fatal("not recorded any more")
				}
				tc.wayOut(w)
				w.pass(6 * time.Minute)
				w.calls(tc.wantCalls...)
				if w.recorded("c") {
					t.Error("the operation has not ended")
				}
				forgotten := w.events.having("Warning OperationForgotten", driverName, `"pvc-uid-of-c"`)
				if want := len(tc.wantCalls) == 1; want != (len(forgotten) == 1) {
					t.Errorf("events of the end by hand: %v", forgotten)
				}
				w.pass(time.Hour)
				w.calls(tc.wantCalls...)
			})
		})
	}
}

// forget ends the operation of the claim as a person does.
func (w *world) forget(name string) {
	w.Helper()
	lease := w.leaseOf(name)
	lease.Annotations[wellknown.AnnForgetOperation] = "true"
	w.put(lease)
}

// An operation that a person has ended is not tried again, and its claim gets a new one.
func TestAnOperationEndedByHandIsForgotten(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(noAnswer, noAnswer, answer{})
		w.claim("c")
		w.pass(1500 * time.Millisecond)
		w.forget("c")
		w.pass(10 * time.Second)
		if calls := w.driver.createCalls(); len(calls) != 3 {
			t.Errorf("calls at %v, want a third one, of a new operation", w.driver.at())
		}
		if len(w.events.having("Warning OperationForgotten", driverName, `"pvc-uid-of-c"`)) != 1 || !w.inLog("ended by hand", `volume="pvc-uid-of-c"`) {
			t.Errorf("events: %v", w.events.having())
		}
		if w.pv("pvc-uid-of-c") == nil || w.recorded("c") {
			t.Errorf("PersistentVolume %v, recorded %v", w.pv("pvc-uid-of-c"), w.recorded("c"))
		}
	})
}

// The same while the PersistentVolume cannot be saved: the event names the handle.
func TestAnUnsavedVolumeIsForgotten(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.api.failing(refuseNewPVs)
		claim := w.claim("c")
		w.pass(time.Second)
		w.remove(claim)
		w.forget("c")
		w.pass(time.Minute)
		if len(w.events.having("Warning OperationForgotten", `"id-of-pvc-uid-of-c"`)) != 1 {
			t.Errorf("events: %v", w.events.having())
		}
		w.api.failing(nil)
		w.pass(time.Hour)
		if w.pv("pvc-uid-of-c") != nil || len(w.driver.deleteCalls()) != 0 {
			t.Error("the volume was not left to the person")
		}
	})
}

// After a restart the secret is gone together with the claim's namespace: the call is made without.
func TestAMissingSecretHoldsNoGoneClaim(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.withSecret()
		w.driver.answers(madeInBad)
		claim := w.claim("c")
		w.pass(100 * time.Millisecond)
		w.die()
		w.remove(fixture.Secret("default", "s", nil))
		w.start()
		w.pass(5 * time.Second)
		w.calls(0) // the claim lives: its secret is waited for
		w.remove(claim)
		w.pass(5 * time.Minute)
		calls := w.driver.createCalls()
		if len(calls) != 2 || len(calls[0].keys) != 1 || len(calls[1].keys) != 0 {
			t.Errorf("calls %v, want a second one without secrets", calls)
		}
	})
}

// What cannot be read is no answer: nothing is called before it is known whether the PersistentVolume is there.
func TestNothingIsReplayedWhileThePVCannotBeRead(t *testing.T) {
	t.Parallel()
	for _, resource := range []string{"persistentvolumes", "persistentvolumeclaims"} {
		t.Run(resource, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.driver.answers(madeInBad)
				w.claim("c")
				w.pass(100 * time.Millisecond)
				w.die()
				w.api.failing(func(verb, r, _ string) error {
					if verb == "get" && r == resource {
						return apierrors.NewInternalError(errors.New("etcd"))
					}
					return nil
				})
				w.start()
				w.pass(10 * time.Second)
				w.calls(0)
				w.api.failing(nil)
				w.pass(10 * time.Second)
				if calls := w.driver.createCalls(); len(calls) != 2 || w.pv("pvc-uid-of-c") == nil {
					t.Errorf("%d calls, PersistentVolume %v", len(calls), w.pv("pvc-uid-of-c"))
				}
			})
		})
	}
}

// What earlier processes left takes half of the workers, so that new claims go on.
func TestNewClaimsGoOnBesideRecoveredOperations(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.CreateWorkers = 4 }, func(t *testing.T, w *world) {
		w.driver.answers(slices.Repeat([]answer{madeInBad}, 6)...)
		for i := range 6 {
			w.claim(fmt.Sprint("old", i))
		}
		w.pass(100 * time.Millisecond)
		w.die()
		w.driver.answers(slices.Repeat([]answer{{after: 5 * time.Second}}, 8)...)
		w.start()
		w.claim("new")
		w.pass(time.Second)
		before := len(w.driver.createCalls()) - 6
		if before != 3 || w.driver.mostFrom("") > 4 {
			t.Errorf("%d calls run, want those of two recovered operations and of the new claim", before)
		}
		w.pass(time.Minute)
		if got := len(w.driver.createCalls()); got != 13 || w.driver.volumeCount() != 7 {
			t.Errorf("%d calls, %d volumes, want 13 and 7", got, w.driver.volumeCount())
		}
	})
}

// The Lease of an operation in a backup that was restored says it with another UID: it is reported and never replayed.
func TestARestoredLeaseIsReported(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(madeInBad)
		claim := w.claim("c")
		w.pass(100 * time.Millisecond)
		w.die()
		restored := w.leaseOf("c")
		w.remove(restored)
		w.remove(claim)
		restored.UID, restored.ResourceVersion = "restored", ""
		w.api.mu.Lock()
		_, err := w.api.create(keyOf(restored), restored)
		w.api.mu.Unlock()
		if err != nil {
			t.Fatal(err)
		}
		w.start()
		w.pass(time.Hour)
		w.calls(0)
		if got := w.events.having("Warning OperationNotReplayed", driverName); len(got) != 1 {
			t.Errorf("events: %v", w.events.having())
		}
		if liveAs[*coordinationv1.Lease](w, keyOf(restored)) == nil {
			t.Error("the Lease is gone")
		}
	})
}

// The driver is not called before its operation is recorded; the claim's user is told why.
func TestNoCallBeforeTheOperationIsRecorded(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.pass(time.Second)
		w.api.failing(func(verb, resource, _ string) error {
			if verb != "get" && resource == "leases" {
				return apierrors.NewInternalError(errors.New("etcd is slow"))
			}
			return nil
		})
		w.claim("c")
		w.pass(time.Minute)
		w.calls([]int(nil)...)
		if got := w.events.having("Warning ProvisioningFailed", "record the operation", "etcd is slow"); len(got) != 1 {
			t.Errorf("events: %v", w.events.having())
		}
		w.api.failing(nil)
		w.pass(time.Minute)
		if len(w.driver.createCalls()) != 1 || w.pv("pvc-uid-of-c") == nil {
			t.Errorf("calls %v, PersistentVolume %v", w.driver.at(), w.pv("pvc-uid-of-c"))
		}
	})
}

// While an operation waits to be recorded, what it was planned from may change: then it is planned anew, and for a claim
// that goes no volume is made.
func TestAnOperationThatWaitsFollowsItsClaim(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		meanwhile func(w *world)
		want      int64 // bytes of the request; 0 for no call
	}{
		"nothing changes": {func(*world) {}, 1 << 30},
		"the claim grows": {func(w *world) {
			w.change("c", func(claim *corev1.PersistentVolumeClaim) {
				claim.Spec.Resources.Requests = fixture.Claim("d").Size("5Gi").Obj().Spec.Resources.Requests
			})
		}, 5 << 30},
		"the claim goes":     {func(w *world) { w.remove(w.live("c")) }, 0},
		"the claim is bound": {func(w *world) { w.change("c", func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "static" }) }, 0},
		"the class is gone":  {func(w *world) { w.remove(w.api.Class("fast")) }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.pass(time.Second)
				w.api.failing(func(verb, resource, _ string) error {
					if verb != "get" && resource == "leases" {
						return apierrors.NewInternalError(errors.New("etcd is slow"))
					}
					return nil
				})
				w.claim("c")
				w.pass(time.Second)
				tc.meanwhile(w)
				w.pass(time.Second)
				w.api.failing(nil)
				w.pass(time.Minute)
				calls := w.driver.createCalls()
				switch {
				case tc.want == 0 && len(calls) == 0:
				case len(calls) != 1 || calls[0].req.GetCapacityRange().GetRequiredBytes() != tc.want:
					t.Errorf("calls %v, want one for %d bytes", calls, tc.want)
				}
				w.pass(5 * time.Second)
				if w.recorded("c") {
					t.Error("the operation is left")
				}
			})
		})
	}
}

// Without the right to write Leases volumes are made as the original makes them.
func TestWithoutTheRightToRecord(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.die()
		w.api.failing(forbidLeases)
		w.start()
		w.claim("c")
		w.pass(time.Second)
		w.calls(0)
		if w.pv("pvc-uid-of-c") == nil || !w.inLog("Operations cannot be recorded") {
			t.Error("no PersistentVolume, or no warning")
		}
	})
}

// A volume is deleted only when no Lease says the operation that made it.
func TestADeletionWaitsForTheEndOfItsOperation(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.pass(time.Second)
		claim := w.claim("c")
		w.pass(10 * time.Millisecond)
		w.api.failing(func(verb, resource, _ string) error {
			if verb == "update" && resource == "leases" {
				return apierrors.NewInternalError(errors.New("etcd is slow"))
			}
			return nil
		})
		w.remove(claim)
		w.phase("pvc-uid-of-c", corev1.VolumeReleased)
		w.pass(10 * time.Second)
		if got := w.driver.deleteCalls(); len(got) != 0 || w.leaseOf("c") == nil {
			t.Fatalf("deleted %v, Lease %v", got, w.leaseOf("c"))
		}
		w.api.failing(nil)
		w.pass(time.Minute)
		if got := w.driver.deleteCalls(); len(got) != 1 || w.pv("pvc-uid-of-c") != nil || w.leaseOf("c") != nil {
			t.Errorf("deleted %v, PersistentVolume %v, Lease %v", got, w.pv("pvc-uid-of-c"), w.leaseOf("c"))
		}
	})
}

// Another process has made a volume for the claim while this one made its own: the second one is deleted and counted.
func TestAnExtraVolumeIsDeleted(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(answer{after: time.Second})
		w.claim("c")
		w.pass(time.Second / 2)
		w.put(fixture.PV("pvc-uid-of-c").ProvisionedBy(driverName).Driver(driverName).Handle("another").BoundTo(w.live("c")).Obj())
		w.pass(time.Minute)
		w.calls(0)
		deleted := w.driver.deleteCalls()
		if len(deleted) != 1 || deleted[0].id != "id-of-pvc-uid-of-c" || counted(t, w.c.metrics.extraVolumes) != 1 {
			t.Errorf("deleted %v, counted %v", deleted, counted(t, w.c.metrics.extraVolumes))
		}
		if pv := w.pv("pvc-uid-of-c"); pv == nil || pv.Spec.CSI.VolumeHandle != "another" || w.recorded("c") {
			t.Errorf("PersistentVolume %v, recorded %v", pv, w.recorded("c"))
		}
	})
}

// What an operation keeps is what the PersistentVolume and the source need.
func TestAnOperationKeepsThePlan(t *testing.T) {
	t.Parallel()
	block, expand := corev1.PersistentVolumeBlock, corev1.PersistentVolumeReclaimRetain
	claim := fixture.Claim("c").UID("u").Class("fast").FromClaim("src").Obj()
	claim.Spec.VolumeMode = &block
	class := fixture.Class("fast").UID("k").Provisioner("in-tree").Obj()
	class.ReclaimPolicy, class.MountOptions = &expand, []string{"noatime"}
	ref, err := source.Of(claim, false)
	if err != nil {
		t.Fatal(err)
	}
	plan := &Plan{
		Request: &csi.CreateVolumeRequest{Name: "pvc-u"}, Claim: claim, Class: class, Source: ref, SourceUID: "src-uid", FSType: "xfs", VACName: "gold", SelectedNode: "n", Reschedulable: true, Translated: true,
		Labels: map[string]string{"a": "b"}, Annotations: map[string]string{"c": "d"}, Identity: "me", PublishReadonly: true,
	}
	want := operationOf(plan)
	want.Driver = driverName
	text, err := operations.Encode(want, "lease")
	if err != nil {
		t.Fatal(err)
	}
	op, err := operations.Decode(text, "lease")
	if err != nil {
		t.Fatal(err)
	}
	got := planOf(op)
	if got.Source != ref || got.SourceUID != "src-uid" || source.Key(got.Claim) != source.Key(claim) || labelsOf(got.Claim) != labelsOf(claim) {
		t.Errorf("source %+v of %q, labels %v", got.Source, got.SourceUID, labelsOf(got.Claim))
	}
	again := operationOf(got)
	again.Driver = driverName
	if diff := cmp.Diff(want, again, protocmp.Transform()); diff != "" {
		t.Errorf("the operation of the recovered plan (-want +got):\n%s", diff)
	}
}

package provision

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/csi-sidecars/external-provisioner/pkg/volume"
	"github.com/csi-sidecars/external-provisioner/pkg/wellknown"
	"github.com/csi-sidecars/external-provisioner/test/fixture"
)

// calls compares when CreateVolume was called, in seconds.
func (w *world) calls(want ...int) {
	w.Helper()
	if diff := cmp.Diff(want, w.driver.at()); diff != "" {
		w.Errorf("CreateVolume was called at these seconds (-want +got):\n%s", diff)
	}
}

var (
	final     = answer{code: codes.Internal}
	exists    = answer{code: codes.AlreadyExists}
	away      = answer{code: codes.Unavailable}
	aborted   = answer{code: codes.Aborted}
	noAnswer  = answer{code: codes.DeadlineExceeded}
	madeInBad = answer{code: codes.DeadlineExceeded, made: true}
	noStatus  = answer{plain: true}
)

// A good answer to the first call: one request, one PersistentVolume, two events.
func TestAQuickCreate(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.claim("c")
		w.pass(time.Second)
		w.calls(0)
		if w.pv("pvc-uid-of-c") == nil {
			t.Fatal("no PersistentVolume")
		}
		if got := w.api.wrote("update persistentvolumeclaims"); got != 0 {
			t.Errorf("%d writes of the claim, want none", got)
		}
		want := []string{
			`Normal Provisioning External provisioner is provisioning volume for claim "default/c"`,
			"Normal ProvisioningSucceeded Successfully provisioned volume pvc-uid-of-c",
		}
		if diff := cmp.Diff(want, w.events.having()); diff != "" {
			t.Errorf("events (-want +got):\n%s", diff)
		}
	})
}

func TestRepetitionFollowsTheAnswer(t *testing.T) {
	t.Parallel()
	repeat := func(a answer, n int) []answer {
		list := make([]answer, n)
		for i := range list {
			list[i] = a
		}
		return list
	}
	for name, tc := range map[string]struct {
		script    []answer
		want      []int
		wantMade  bool
		ended     bool // nothing is recorded at the end
		wantFails int  // events ProvisioningFailed
	}{
		"real errors double their distance":               {repeat(final, 4), []int{0, 1, 3, 7, 15}, true, true, 4},
		"AlreadyExists to a first call is final":          {repeat(exists, 1), []int{0, 1}, true, true, 1},
		"so they do while an earlier call may be at work": {append([]answer{noAnswer}, repeat(final, 4)...), []int{0, 1, 2, 4, 8, 16}, true, true, 5},
		"AlreadyExists is an error like any other":        {append([]answer{noAnswer}, repeat(exists, 6)...), []int{0, 1, 2, 4, 8, 16, 32, 64}, true, true, 7},
		"an error without a gRPC status is no answer":     {[]answer{noStatus, final}, []int{0, 1, 3}, true, true, 2},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.driver.answers(tc.script...)
				w.claim("c")
				w.pass(5 * time.Minute)
				w.calls(tc.want...)
				if made := w.pv("pvc-uid-of-c") != nil; made != tc.wantMade {
					t.Errorf("PersistentVolume there: %v, want %v", made, tc.wantMade)
				}
				if tc.ended == w.recorded("c") {
					t.Errorf("recorded: %v", w.recorded("c"))
				}
				if got := len(w.events.having("Warning", "ProvisioningFailed")); got != tc.wantFails {
					t.Errorf("%d events of failure, want %d: %v", got, tc.wantFails, w.events.having())
				}
			})
		})
	}
}

// How many final answers end the operation of a claim that is gone depends on what became of its calls. While it goes on it
// is recorded, and afterwards nothing is called any more.
func TestFinalErrorsEndAnUnansweredCreate(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		first   answer
		timeout time.Duration
		want    []int // calls
	}{
		"all calls were answered, so the next final error does":  {away, 10 * time.Minute, []int{0, 1}},
		"a call without an answer needs three":                   {noAnswer, 10 * time.Second, []int{0, 1, 2, 4, 8, 16, 32, 64}},
		"so does one that another call kept out":                 {aborted, 10 * time.Second, []int{0, 1, 2, 4, 8, 16, 32, 64}},
		"these are a minute apart, however long the deadline is": {noAnswer, 10 * time.Hour, []int{0, 1, 2, 4, 8, 16, 32, 64, 128, 256}},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, func(cfg *Config) { cfg.Timeout = tc.timeout }, func(t *testing.T, w *world) {
				w.driver.answers(append([]answer{tc.first}, slices.Repeat([]answer{final}, 20)...)...)
				w.put(fixture.Claim("c").UID("uid-of-c").Class("fast").For(driverName).Obj())
				w.pass(500 * time.Millisecond)
				if !w.recorded("c") {
					t.Fatal("the operation is not recorded while it is unanswered")
				}
				w.remove(w.live("c"))
				last := time.Duration(tc.want[len(tc.want)-1]) * time.Second
				w.pass(max(0, last-1500*time.Millisecond))
				if last > time.Second && !w.recorded("c") {
					t.Error("ended too soon")
				}
				w.pass(time.Hour)
				w.calls(tc.want...)
				if w.recorded("c") {
					t.Error("the operation has not ended")
				}
			})
		})
	}
}

// What is no answer of the driver ends nothing, whatever its code.
func TestAnErrorThatIsNoAnswerEndsNothing(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		script   []answer
		recorded bool
	}{
		"the response cannot be decoded":      {slices.Repeat([]answer{{code: codes.Internal, cutOff: true}}, 100), true},
		"a later request cannot be encoded":   {append([]answer{noAnswer}, slices.Repeat([]answer{{code: codes.Internal, unsent: true}}, 100)...), true},
		"the first request cannot be encoded": {slices.Repeat([]answer{{code: codes.Internal, unsent: true}}, 100), false},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.driver.answers(tc.script...)
				claim := w.claim("c")
				w.pass(10 * time.Minute)
				w.remove(claim)
				w.pass(10 * time.Minute)
				if w.recorded("c") != tc.recorded {
					t.Errorf("recorded %v, want %v", w.recorded("c"), tc.recorded)
				}
				w.driver.answers()
				w.pass(10 * time.Minute)
				if made := w.pv("pvc-uid-of-c") != nil; made != tc.recorded || w.live("c") != nil {
					t.Errorf("in the end: PersistentVolume made %v, claim %v", made, w.live("c"))
				}
			})
		})
	}
}

// AlreadyExists after a missing answer backs off like any error while the claim lives. A claim that is being deleted is
// not held for ever: an event names the volume that may be left.
func TestAlreadyExistsHoldsNoClaimForEver(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(append([]answer{noAnswer}, slices.Repeat([]answer{exists}, 10000)...)...)
		w.put(fixture.Claim("c").UID("uid-of-c").Class("fast").For(driverName).Obj())
		w.pass(24 * time.Hour)
		if calls, most := len(w.driver.createCalls()), int(24*time.Hour/w.cfg.RetryMax)+10; calls > most {
			t.Errorf("%d calls in a day, want at most %d", calls, most)
		}
		if !w.recorded("c") {
			t.Fatal("the create has ended while the claim waits for its volume")
		}
		if left := w.events.having("is let go"); len(left) != 0 {
			t.Errorf("events of a claim that lives: %q", left)
		}
		w.terminate("c")
		w.pass(2 * w.cfg.RetryMax)
		if w.live("c") != nil {
			t.Error("the claim is still held")
		}
		if left := w.events.having("Warning ProvisioningFailed", driverName, `"pvc-uid-of-c"`, "Look for it"); len(left) != 1 {
			t.Errorf("%d events name the volume, want one: %q", len(left), left)
		}
		n := len(w.driver.createCalls())
		w.pass(time.Hour)
		if got := len(w.driver.createCalls()); got != n {
			t.Errorf("%d calls after the end", got-n)
		}
	})
}

// "Not now" is not punished like an error: short, capped, with chance.
func TestBusyAnswersComeBackSoon(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		script := make([]answer, 30)
		for i := range script {
			script[i] = answer{code: codes.Aborted}
		}
		w.driver.answers(script...)
		w.claim("c")
		w.pass(10 * time.Minute)
		at := w.driver.createCalls()
		if len(at) != 31 || w.pv("pvc-uid-of-c") == nil {
			t.Fatalf("%d calls, want 31 and a PersistentVolume", len(at))
		}
		for i := 1; i < len(at); i++ {
			if wait := at[i].at - at[i-1].at; wait > 10*time.Second {
				t.Errorf("call %d came %s after the one before, want at most 10s", i, wait)
			}
		}
	})
}

// withMetadata passes on what claims say of their team.
func withMetadata(cfg *Config) {
	keys := volume.ClaimKeys{Annotations: volume.Keys{"team"}, Labels: volume.Keys{"team"}}
	cfg.Settings.CreateMetadata, cfg.Settings.CopyToPV = keys, keys
}

// While a create is unanswered, its request is sent again unchanged whatever happens to what it was made from, and
// nothing of that ends it.
func TestAnUnansweredCreateIsFrozen(t *testing.T) {
	t.Parallel()
	for name, meanwhile := range map[string]func(w *world){
		"the class is gone":       func(w *world) { w.remove(w.api.Class("fast")) },
		"the class has changed":   func(w *world) { w.put(fixture.Class("fast").Provisioner(driverName).Parameter("a", "b").Obj()) },
		"the class names another": func(w *world) { w.put(fixture.Class("fast").Provisioner("other").Obj()) },
		"the annotation is gone": func(w *world) {
			w.change("c", func(claim *corev1.PersistentVolumeClaim) {
				delete(claim.Annotations, wellknown.AnnStorageProvisioner)
			})
		},
		"what it says has changed": func(w *world) {
			w.change("c", func(claim *corev1.PersistentVolumeClaim) {
				claim.Labels = map[string]string{"team": "red"}
				claim.Annotations["team"] = "red"
			})
		},
		"another node is selected": func(w *world) {
			w.change("c", func(claim *corev1.PersistentVolumeClaim) { claim.Annotations[wellknown.AnnSelectedNode] = "n2" })
		},
		"a pre-check fails": func(w *world) { w.remove(w.api.Claim("default", "c")) },
		"another PersistentVolume is bound": func(w *world) {
			w.change("c", func(claim *corev1.PersistentVolumeClaim) { claim.Spec.VolumeName = "another" })
		},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, withMetadata, func(t *testing.T, w *world) {
				w.driver.answers(madeInBad, final)
				w.claim("c")
				w.pass(500 * time.Millisecond)
				meanwhile(w)
				w.pass(time.Minute)
				calls := w.driver.createCalls()
				if len(calls) < 3 {
					t.Fatalf("%d calls, want at least 3", len(calls))
				}
				for _, call := range calls[1:] {
					if diff := cmp.Diff(calls[0].req, call.req, protocmp.Transform()); diff != "" {
						t.Errorf("a repeated request differs (-first +later):\n%s", diff)
					}
				}
				if pv := w.pv("pvc-uid-of-c"); pv == nil {
					t.Error("the volume has no PersistentVolume")
				} else if pv.Labels["team"] != "" || pv.Annotations["team"] != "" {
					t.Errorf("labels %v and annotations %v are younger than the request", pv.Labels, pv.Annotations)
				}
				if w.recorded("c") {
					t.Error("the operation is recorded after the end")
				}
			})
		})
	}
}

// Without a Lease, memory alone drives the create of a claim that is gone: OK makes the PersistentVolume, which
// Kubernetes releases and we delete.
func TestAClaimThatIsGoneIsFinished(t *testing.T) {
	inWorld(t, func(cfg *Config) { cfg.Operations = nil }, func(t *testing.T, w *world) {
		w.driver.answers(madeInBad, final, noAnswer)
		claim := w.claim("c")
		w.pass(500 * time.Millisecond)
		w.remove(claim)
		w.pass(time.Minute)
		pv := w.pv("pvc-uid-of-c")
		if pv == nil || pv.Spec.ClaimRef.UID != claim.UID {
			t.Fatalf("PersistentVolume: %v", pv)
		}
		w.phase(pv.Name, corev1.VolumeReleased)
		w.pass(time.Second)
		if w.driver.volumeCount() != 0 || w.pv(pv.Name) != nil || len(w.driver.deleteCalls()) != 1 {
			t.Errorf("left: %d volumes, %v; %d DeleteVolume calls", w.driver.volumeCount(), w.pv(pv.Name), len(w.driver.deleteCalls()))
		}
		if len(w.events.having("ProvisioningSucceeded")) != 0 {
			t.Error("a claim that is gone was told of success")
		}
	})
}

// A final answer ends a create of which nothing is unanswered: a claim that is gone is dropped then.
func TestAFailedCreateOfAGoneClaimIsDropped(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(answer{code: codes.ResourceExhausted, after: time.Second})
		claim := w.claim("c")
		w.pass(20 * time.Millisecond)
		w.remove(claim)
		w.pass(10 * time.Minute)
		w.calls(0)
		if w.live("c") != nil {
			t.Error("the claim is held")
		}
		if n := len(w.c.creates.where(func(create) bool { return true })); n != 0 {
			t.Errorf("%d creates are remembered", n)
		}
	})
}

// Each attempt that fails is one line of the log at the level of errors, with claim, code and reason.
func TestFailuresAreLogged(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(final, answer{code: codes.ResourceExhausted})
		w.claim("c")
		w.pass(time.Minute)
		for _, words := range [][]string{{`code="Internal"`, `reason="DriverError"`}, {`code="ResourceExhausted"`, `reason="NoRoom"`}} {
			if got := w.linesInLog(append(words, "ERROR", "Cannot provision the claim", `PVC="default/c"`, `class="fast"`)...); got != 1 {
				t.Errorf("%d lines with %q, want one", got, words)
			}
		}
		w.put(fixture.Claim("bad").UID("uid-of-bad").Class("fast").For(driverName).Selector("a", "b").Obj())
		w.pass(time.Second)
		if got := w.linesInLog("ERROR", "Cannot provision the claim", `PVC="default/bad"`, `code="none"`, `reason="Refused"`); got == 0 {
			t.Error("a claim that is refused is not in the log")
		}
	})
}

// A missing class is logged once, whatever the retries, and its creation wakes the claim.
func TestAMissingClassIsLoggedOnce(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.put(fixture.Claim("c").UID("uid-of-c").Class("later").For(driverName).Obj())
		w.pass(time.Hour)
		if got := w.linesInLog("ERROR", "its class is missing", `PVC="default/c"`, `class="later"`); got != 1 {
			t.Errorf("%d lines, want one", got)
		}
		w.put(fixture.Class("later").UID("class-2").Provisioner(driverName).Obj())
		w.pass(time.Millisecond)
		if w.pv("pvc-uid-of-c") == nil {
			t.Error("the claim was not woken")
		}
	})
}

func TestBadAnswers(t *testing.T) {
	t.Parallel()
	small := answer{made: true, edit: func(v *csi.Volume) { v.CapacityBytes = 1 }}
	for name, tc := range map[string]struct {
		first       answer
		deletes     []answer
		wantDeletes int
		want        []int
		event       string
	}{
		"a small volume is cleaned up, and the request is put off": {small, nil, 1, []int{0, 511}, "infeasible"},
		"an empty id is tried again":                               {answer{made: true, edit: func(v *csi.Volume) { v.VolumeId = "" }}, nil, 0, []int{0, 1}, "volume"},
		"a clean-up that fails is in background": {
			small,
			[]answer{final, final, final, final, final}, 5,
			[]int{0, 1}, "orphaned",
		},
		"a clean-up has five tries": {small, []answer{final, final, final, final}, 5, []int{0, 511}, "infeasible"},
	} {
		t.Run(name, func(t *testing.T) {
			inWorld(t, nil, func(t *testing.T, w *world) {
				w.driver.answers(tc.first)
				w.driver.deletes = tc.deletes
				w.claim("c")
				w.pass(10 * time.Minute)
				w.calls(tc.want...)
				if got := len(w.driver.deleteCalls()); got != tc.wantDeletes {
					t.Errorf("%d DeleteVolume calls, want %d", got, tc.wantDeletes)
				}
				if len(w.events.having("Warning ProvisioningFailed", tc.event)) != 1 {
					t.Errorf("no event with %q: %v", tc.event, w.events.having())
				}
				if w.pv("pvc-uid-of-c") == nil || w.recorded("c") {
					t.Errorf("at the end: PersistentVolume %v, recorded %v", w.pv("pvc-uid-of-c"), w.recorded("c"))
				}
			})
		})
	}
}

// A volume that could not be cleaned up is not forgotten because of one error that follows.
func TestAVolumeThatIsNotCleanedUpIsNotForgotten(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(answer{made: true, edit: func(v *csi.Volume) { v.CapacityBytes = 1 }}, final)
		w.driver.deletes = slices.Repeat([]answer{final}, 5)
		w.claim("c")
		w.pass(1500 * time.Millisecond)
		w.calls(0, 1)
		if !w.recorded("c") {
			t.Error("the create has ended, and the volume is there")
		}
	})
}

// While a bad answer is cleaned up its operation is recorded.
func TestTheClaimIsMarkedBeforeACleanUp(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(answer{made: true, edit: func(v *csi.Volume) { v.CapacityBytes = 1 }})
		w.driver.deletes = []answer{{after: time.Second}}
		w.claim("c")
		w.pass(20 * time.Millisecond)
		if len(w.driver.deleteCalls()) != 1 || !w.recorded("c") {
			t.Errorf("%d clean-ups, recorded %v", len(w.driver.deleteCalls()), w.recorded("c"))
		}
		w.pass(2 * time.Second)
		if w.recorded("c") {
			t.Error("recorded after a clean-up that succeeded")
		}
	})
}

// A driver's error reaches the user as it is, and the state of the world before the call stays when there was none.
func TestTheDriversWordsAreTheUsersWords(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.driver.answers(answer{code: codes.OutOfRange})
		w.claim("c")
		w.pass(100 * time.Millisecond)
		if len(w.events.having("Warning ProvisioningFailed rpc error: code = OutOfRange desc = as told")) != 1 {
			t.Errorf("events: %v", w.events.having())
		}
	})
}

// A claim whose class comes late is provisioned then, without an event before.
func TestTheClassComesLate(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.remove(w.api.Class("fast"))
		w.claim("c")
		w.pass(2 * time.Second)
		if got := w.events.having(); len(got) != 0 {
			t.Errorf("events without a class: %v", got)
		}
		w.put(fixture.Class("fast").UID("class-2").Provisioner(driverName).Obj())
		w.pass(2 * time.Second)
		w.calls(2)
	})
}

// Events and verdicts of claims that are not for us.
func TestNotOurClaims(t *testing.T) {
	inWorld(t, nil, func(t *testing.T, w *world) {
		w.put(fixture.Claim("foreign").UID("f").Class("fast").For("other").Obj())
		w.put(fixture.Claim("bound").UID("b").Class("fast").For(driverName).Bound("pv").Obj())
		w.put(fixture.Claim("filled").UID("p").Class("fast").For(driverName).From("example.com", "Recipe", "r").Obj())
		w.pass(time.Minute)
		w.change("filled", func(claim *corev1.PersistentVolumeClaim) { claim.Annotations["a"] = "b" })
		w.pass(time.Minute)
		w.calls([]int(nil)...)
		got := w.events.having()
		if len(got) != 1 || !strings.HasPrefix(got[0], "Normal Provisioning Assuming an external populator will provision the volume") {
			t.Errorf("events: %v, want the one about a populator", got)
		}
	})
}

// A populator's claim that goes while it is looked at leaves nothing behind.
func TestAPopulatorsClaimGoesMeanwhile(t *testing.T) {
	meanwhile := func() {}
	inWorld(t, func(cfg *Config) { cfg.WantsVAC = func() bool { meanwhile(); return false } }, func(t *testing.T, w *world) {
		meanwhile = func() {
			meanwhile = func() {}
			w.remove(w.live("c"))
			time.Sleep(time.Millisecond) // the handlers hear of it
		}
		w.put(fixture.Claim("c").UID("uid-of-c").Class("fast").For(driverName).From("example.com", "Recipe", "r").Obj())
		w.pass(time.Second)
		if n := len(w.c.creates.byUID); n != 0 {
			t.Errorf("%d creates are remembered", n)
		}
	})
}
